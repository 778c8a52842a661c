"""SM-MoE: chunks of a mixture whose products leave multiprocessors to the kernels that communicate.

Helps: GPUs whose collectives are kernels and compete with products for multiprocessors, where a cluster says so
(`sharing: {units, held}`); exchanges and experts of like length. Does not: networks that need no multiprocessors, CPU workers
(which have none: there it is `pipemoe` in another launch order), layers not worth cutting. Lossless.
Source: Pan et al., ICDCS 2025 (abstract only: that contention makes overlap useless and unsteady, and the remedies of launching
products later and splitting them). All else is a design of ours: who holds what (`orch/simulate/contended.py`), launch order
as the order of the step's list, and the choice of chunks, pieces and channels by the simulator. How long a launch must be held
back on a GPU until a collective is resident is not in a plan, and was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

from orch.plan import AllToAll, Crossing, Expert, ExpertBackward, Plan, Step, Task, crossings, recut
from orch.technique import Context, Knobs, Slot, Technique, choice, count
from techniques.moe._pipeline import degrees, laid

PIECES = (1, 2, 4, 8)


class Config(Knobs):
    """Chunks, their launch order, and what competes."""

    degree: int | None = count(None, "chunks of a forward crossing; none: chosen", least=1, most=64)
    degree_backward: int | None = count(None, "chunks of a backward crossing; none: chosen", least=1, most=64)
    most: int = count(8, "the largest degree that may be chosen", least=1, most=64)
    launch: Literal["delayed", "oblivious"] = choice(
        "delayed",
        "delayed: experts of a chunk start behind the exchanges that may run beside them; oblivious: as soon as its rows are there",
    )
    pieces: int | None = count(
        None, "pieces in which the experts' rows are computed; none: the best of 1, 2, 4, 8", least=1, most=64
    )
    channels: int | None = count(
        None,
        "multiprocessors that an exchange holds; none: the best of those the cluster says, a half and a fourth",
        least=1,
        most=64,
    )


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every crossing, split its products, and put its tasks in the order in which they are launched."""
    return plan.each_step(lambda step: _Pass(plan, step, context, config).run())


class _Pass:
    """The pass over one step. Crossings alike are worked out once."""

    def __init__(self, plan: Plan, step: Step, context: Context, config: Config) -> None:
        self.plan, self.step, self.context, self.config = plan, step, context, config
        self.known: dict[object, tuple[int, int, int]] = {}

    def run(self) -> Step:
        cuts: dict[str, Sequence[Task]] = {}
        blocks: dict[str, list[str]] = {}
        for crossing in crossings(self.step):
            if len(crossing.stages) == 1:
                continue
            chunks = cut(crossing, *self._best(crossing))
            cuts.update((stage.name, tasks) for stage, tasks in zip(crossing.stages, chunks, strict=True))
            names = [task.name for task in launched(crossing, chunks, self.config.launch)]
            blocks.update(dict.fromkeys(names, names))
        return laid(recut(self.step, cuts), blocks) if cuts else self.step

    def _best(self, crossing: Crossing) -> tuple[int, int, int]:
        """Return degree, pieces and channels with the shortest crossing; on ties the fewest chunks, pieces, most channels."""
        options = list(self._options(crossing))
        if len(options) == 1:
            return options[0]
        key = (crossing.backward, *(_facts(task) for task in crossing.stages))
        if key not in self.known:
            self.known[key] = min(options, key=lambda one: (self._seconds(crossing, one), one[0], one[1], -one[2]))
        return self.known[key]

    def _options(self, crossing: Crossing) -> Iterator[tuple[int, int, int]]:
        config, sharing = self.config, self.context.cluster.sharing
        held = sharing.held if sharing is not None else 0
        asked = config.degree_backward if crossing.backward else config.degree
        most = min(asked or config.most, crossing.positions)
        of_degree = range(1, most + 1) if asked is None else [most]
        # Where nothing competes no piece is worth its start-up, and nobody holds anything.
        of_pieces = [config.pieces] if config.pieces else PIECES if held else [1]
        fewer = {max(1, held // share) for share in (1, 2, 4)}
        of_channels = [0] if not held else [config.channels] if config.channels else sorted(fewer, reverse=True)
        for degree, pieces, channels in product(of_degree, of_pieces, of_channels):
            yield degree, pieces, 0 if channels == held else channels

    def _seconds(self, crossing: Crossing, option: tuple[int, int, int]) -> float:
        tasks = launched(crossing, cut(crossing, *option), self.config.launch)
        # Whether two orders take equally long must not hang on rounding.
        return float(f"{self.context.makespan_s(self.plan, tasks):.9e}")


def cut(crossing: Crossing, degree: int, pieces: int, channels: int) -> list[list[Task]]:
    """Return, per stage, its tasks: chunks, experts in pieces, exchanges on so many channels."""
    return [[_with(task, pieces, channels) for task in tasks] for tasks in crossing.cut(degree)]


def _with(task: Task, pieces: int, channels: int) -> Task:
    op = task.op
    if isinstance(op, Expert | ExpertBackward) and pieces > 1:
        return replace(task, op=replace(op, pieces=pieces))
    if isinstance(op, AllToAll) and channels:
        return replace(task, op=replace(op, channels=channels))
    return task


def launched(crossing: Crossing, chunks: Sequence[Sequence[Task]], launch: str) -> list[Task]:
    """Return the tasks of a cut crossing in launch order, which every stream keeps.

    Delayed: what brings rows, all chunks, first; then chunk by chunk what computes them and the exchange that takes them away,
    which so stands before the next chunk's products. Oblivious: a chunk's products stand behind its own rows, before the
    next chunk's; all exchanges back come last.
    """
    stages, place = crossing.stages, crossing.stages.index(crossing.expert)
    moves = [number for number, task in enumerate(stages) if task.stream != crossing.expert.stream]
    first = max((number for number in moves if number < place), default=-1) + 1
    back = min((number for number in moves if number > place), default=len(stages))
    last = max((number for number in moves if number > place), default=back - 1) + 1
    units = [range(first), range(first, last)] if launch == "delayed" else [range(back), range(back, last)]
    units += [range(number, number + 1) for number in range(last, len(stages))]
    return [chunks[stage][chunk] for unit in units for chunk in range(len(chunks[0])) for stage in unit]


def _facts(task: Task) -> tuple[object, ...]:
    """Return what decides the cost of a stage, whose layer it may be."""
    return task.stream, task.group, type(task.op), task.op.nbytes, *(getattr(task.op, name, None) for name in _SIZES)


_SIZES = ("flops", "moved_bytes", "seconds", "dtype", "positions", "products", "algorithm", "leg", "neighbours")


technique = Technique(
    name="sm-moe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="IEEE ICDCS 2025, document 11183819",
    lossless=True,
    config=Config,
    settings=degrees,
)
