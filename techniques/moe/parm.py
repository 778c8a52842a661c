"""Parm: ranks that share a sample pause sharing inside the mixture, so that each takes 1/m of its work, and rows go to all
slices of an expert in one exchange.

Helps: attention cut over ranks (`parallel.tensor`), which all enter the mixture with the same tokens: gate, exchange and
experts would repeat everything m times. Experts cut into slices (`parallel.slices`) where networks are no faster inside a
node, or start-ups count: no gather before experts, no scatter behind. Does not: whole samples on every rank and whole
experts (then it changes nothing); slices alone on nodes with a fast network inside, as each row crosses once a slice.
Lossless. S1 takes a part of the tokens before the gate, and gathers the outputs; a capacity is that of the part,
ceil(k f (T/m) / E) slots, so with one it may drop others than the whole layer would. S2 routes all tokens on all ranks,
takes a part of the positions (slots, or tokens where none is dropped), and gathers the rows that come back, in pieces
behind those of the exchange: it drops what the layer drops.
Source: Pan et al., INFOCOM 2024 (arXiv:2407.00599): abstract; both schedules recollected, their volumes and their equality
to one layer derived and checked in numbers; the overlap of exchange and gather after the repository (SAA), which works it
off rank by rank: pieces are of positions here (ours). Auto: the least time by costs, as the paper's rule has it (details:
recollection).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import model_validator

from orch.cluster.curves import larger
from orch.errors import OrchError
from orch.plan import (
    COUNTS,
    NET,
    AllToAll,
    Compute,
    Crossing,
    GatherRows,
    Order,
    Plan,
    Rows,
    ScatterRows,
    Step,
    Task,
    crossings,
    meeting,
    recut,
)
from orch.technique import Context, Knobs, Slot, Technique, choice, count
from techniques.moe._pipeline import INTRA, seconds

BLOCK, SLICES, TENSOR = "block", "slices", "tensor"
WHOLE = "whole"
PIECES = (1, 2, 4, 8)
Drawn = dict[str, list[Task]]


class Config(Knobs):
    """Which schedule."""

    schedule: Literal["auto", "s1", "s2", "baseline"] = choice(
        "auto",
        "auto: the fastest one of each layer, by costs; s1: a part of the tokens each, taken before the gate; s2: a part of the "
        "rows each, taken behind it; baseline: all of them, exchange, gather, scatter",
    )
    gathers: int | None = count(
        None,
        "pieces in which s2 rows come back, each gathered behind its exchange; default: the best of 1, 2, 4 and 8 by costs",
        least=1,
        most=64,
    )

    @model_validator(mode="after")
    def _gathers_are_of_s2(self) -> Self:
        if self.gathers is not None and self.schedule in ("s1", "baseline"):
            raise ValueError(f"gathers are of schedule s2, and schedule is {self.schedule}")
        return self


def settings(config: Config) -> Iterator[Config]:
    """Yield a config with each schedule that `auto` chooses between."""
    for schedule in ("s1", "s2", "baseline") if config.schedule == "auto" else (config.schedule,):
        for pieces in PIECES if schedule == "s2" and config.gathers is None else (config.gathers or 1,):
            yield config.model_copy(update={"schedule": schedule, "gathers": pieces})


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Draw every layer as the schedule that is asked for, or the fastest."""
    if (BLOCK not in plan.groups and TENSOR not in plan.groups) or config.schedule == "baseline":
        return plan
    steps = tuple(_Pass(plan, step, context).run(config) for step in plan.steps)
    # By identity: of a grid of layers sizes are arrays, which are not compared.
    return plan if all(new is step for new, step in zip(steps, plan.steps, strict=True)) else replace(plan, steps=steps)


class _Pass:
    """The pass over one step: `m` ranks share each sample, `slices` each expert."""

    def __init__(self, plan: Plan, step: Step, context: Context) -> None:
        self.plan, self.step, self.context = plan, step, context
        self.m = plan.groups[TENSOR].size if TENSOR in plan.groups else 1
        self.slices = plan.groups[SLICES].size if SLICES in plan.groups else 1
        self.inside = INTRA if plan.world_size > self.m else NET
        self.tasks = {task.name: task for task in step}

    def run(self, config: Config) -> Step:
        """Return the step with every layer as `config` asks."""
        by_module: dict[str, list[Crossing]] = {}
        for crossing in crossings(self.step):
            gathered = any(isinstance(task.op, GatherRows) for task in crossing.stages)
            if (self.m > 1 or gathered) and not isinstance(crossing.stages[0].op, GatherRows):
                by_module.setdefault(crossing.module, []).append(crossing)
        chosen: Drawn = {}
        for both in by_module.values():
            layer = _Layer(self, both)
            found = [layer.drawn(one) for one in settings(config) if layer.may(one)]
            if config.schedule != "auto" and not found:
                raise OrchError(
                    f"parm's {config.schedule} cannot share {layer.name} out among {layer.m} ranks", code="E500",
                    hint="its tokens do not divide, or its gate mixes all tokens; schedule: auto takes what can",
                )  # fmt: skip
            if config.schedule == "auto":
                found.append(layer.plain)
            best: Drawn = found[0] if len(found) == 1 else min(found, key=self.seconds)
            chosen.update(best)
        return recut(self._replaced(chosen), {}) if chosen else self.step

    def seconds(self, drawn: Drawn) -> float:
        """Return how long the tasks take, one crossing after the other: the streams start together."""
        free: dict[str, Any] = {}
        ends: dict[str, Any] = {}
        for tasks in drawn.values():
            for task in tasks:
                start = free.get(task.stream, 0.0)
                for name in task.after:
                    start = larger(start, ends.get(name, 0.0))
                free[task.stream] = ends[task.name] = start + seconds(self.plan, self.context, task)
        return float(max(ends.values()))

    def _replaced(self, chosen: Drawn) -> Step:
        return Step(tuple(new for task in self.step for new in chosen.get(task.name, (task,))))


class _Layer:
    """One mixture, forward and backward."""

    def __init__(self, of: _Pass, both: Sequence[Crossing]) -> None:
        self.of, self.both, self.name = of, both, both[0].module
        self.order = of.tasks[f"order.{self.name}"]
        op: Any = self.order.op
        # Ranks that share a sample and have a share of its tokens each do not enter the layer with the same.
        self.m = 1 if isinstance(op.rows, int) and op.rows == 0 else of.m
        self.positions = both[0].positions
        # What a rank crosses with: its part of the slots, or of the tokens.
        self.part = -(-self.positions // self.m)
        first = both[0].stages[0].op
        self.exchanged = isinstance(first, Rows)
        # Slots may be left over, tokens not; and rows that nobody exchanges do not say which of both they have.
        self.even = (isinstance(first, Rows) and not first.ragged) or self.positions % self.m == 0

    @property
    def plain(self) -> Drawn:
        """The layer as it was drawn: what a schedule may replace."""
        ends = ("order", "restore", "restore_backward", "order_backward")
        kept = [name for end in ends if (name := f"{end}.{self.name}") in self.of.tasks]
        gates = [task.name for task in self.of.step if self._gate(task)]
        stages = [task.name for crossing in self.both for task in crossing.stages]
        counts = [name for name in (f"{COUNTS}.{self.name}",) if name in self.of.tasks]
        named = {*kept, *gates, *stages, *counts}
        return {task.name: [task] for task in self.of.step if task.name in named}

    def may(self, config: Config) -> bool:
        """Whether the layer can be drawn so."""
        if config.schedule == "baseline":
            return False
        if self.m == 1:
            return config.schedule == "s1" or (config.gathers or 1) == 1
        op = self.order.op
        assert isinstance(op, Order)
        if config.schedule == "s1":
            return not isinstance(op.tokens, int) or op.tokens > 0
        return self.even and (self.exchanged or (config.gathers or 1) == 1) and (config.gathers or 1) <= self.part

    def drawn(self, config: Config) -> Drawn:
        """Return the layer's tasks by the names of those that they replace."""
        drawn = self.plain
        for crossing in self.both:
            stages = self._crossing(crossing)
            drawn |= {task.name: [] for task in crossing.stages}
            last = f"order_backward.{self.name}" if crossing.backward else f"restore.{self.name}"
            drawn[last] = [replace(self.of.tasks[last], after=(stages[-1].name,))]
            if self.m > 1 and config.schedule == "s2":
                stages = self._with_rows(crossing, stages, config.gathers or 1, drawn)
            drawn[crossing.stages[0].name] = stages
        if f"{COUNTS}.{self.name}" in drawn and self.of.slices > 1:
            drawn[f"{COUNTS}.{self.name}"] = [self._counts(self.of.tasks[f"{COUNTS}.{self.name}"])]
        if self.m > 1 and config.schedule == "s1":
            self._with_tokens(drawn)
        return drawn

    # -- the exchange and the experts --------------------------------------------------------------------------------------

    def _crossing(self, crossing: Crossing) -> list[Task]:
        """Return exchange, expert and exchange with this rank's part of the rows; where there is no exchange, the expert."""
        expert = crossing.expert
        place = crossing.stages.index(expert)
        op: Any = expert.op
        mine = replace(expert, op=op.cut(0, self.part, last=True)) if self.m > 1 else expert
        if not self.exchanged:
            return [mine]
        suffix = "_backward" if crossing.backward else ""
        parts = ("combine", "dispatch") if crossing.backward else ("dispatch", "combine")
        out = self._exchange(crossing.stages[0], f"{parts[0]}{suffix}", crossing.stages[0].after)
        back = self._exchange(crossing.stages[place + 1], f"{parts[1]}{suffix}", (expert.name,))
        return [out, replace(mine, after=(out.name,)), back]

    def _exchange(self, like: Task, part: str, after: tuple[str, ...]) -> Task:
        """Return the exchange, with all slices at once where there are some; `like` is the stage that has the rows now."""
        op = like.op
        assert isinstance(op, Rows)
        name = f"{part}.{self.name}"
        (whole,) = op.buffer.segments
        copies = self.of.slices
        numel = whole.numel if isinstance(op, ScatterRows) else whole.numel * copies
        numel = numel * self.part // self.positions
        buffer = Rows.buffer_of(name, numel, whole.dtype)
        new = AllToAll(buffer, self.name, part, self.part, 0, self.part, op.ragged, op.width, copies=copies)
        return Task(name, new, NET, after, group=BLOCK if copies > 1 else like.group)

    def _counts(self, task: Task) -> Task:
        """Return what tells all slices how many rows come."""
        op = task.op
        assert isinstance(op, AllToAll)
        (numbers,) = op.buffer.segments
        buffer = Rows.buffer_of(task.name, numbers.numel * self.of.slices, numbers.dtype)
        return replace(task, op=replace(op, buffer=buffer, copies=self.of.slices), group=BLOCK)

    # -- S1 ----------------------------------------------------------------------------------------------------------------

    def _gate(self, task: Task) -> bool:
        return isinstance(task.op, Compute) and task.op.module == f"{self.name}.gate"

    def _with_tokens(self, drawn: Drawn) -> None:
        """Let a rank take a part of the tokens before the gate, and gather what comes out: in backward the gradients."""
        m, order = self.m, self.order.op
        assert isinstance(order, Order)
        for name, tasks in drawn.items():
            if self._gate(self.of.tasks[name]) or name.partition(".")[0] in _ENDS:
                drawn[name] = [_divided(task, m) for task in tasks]
        tokens = order.tokens // m
        dtype = order.dtype
        last = {"": f"restore.{self.name}"}
        for task in self.of.step:
            if self._gate(task) and task.op.kind == "backward":
                last["_backward"] = task.name
        module = f"{self.name}.{WHOLE}"
        for suffix, name in last.items():
            gather = f"{WHOLE}{suffix}.{self.name}"
            buffer = Rows.buffer_of(gather, tokens * order.width, dtype)
            op = GatherRows(buffer, module, f"{WHOLE}{suffix}", tokens, 0, tokens, width=order.width)
            drawn[name] = [*drawn[name], *meeting(op, self.of.inside, TENSOR, (name,))]

    # -- S2 ----------------------------------------------------------------------------------------------------------------

    def _with_rows(self, crossing: Crossing, stages: list[Task], pieces: int, drawn: Drawn) -> list[Task]:
        """Return the stages with rows that come back gathered among the ranks that share them, piece by piece."""
        suffix = "_backward" if crossing.backward else ""
        last = stages[-1]
        name = f"{WHOLE}{suffix}.{self.name}"
        order = self.order.op
        assert isinstance(order, Order)
        op: Any = last.op
        if self.exchanged:
            (whole,) = op.buffer.segments
            numel, dtype = whole.numel // self.of.slices, whole.dtype
        else:
            numel, dtype = order.rows * self.part // self.positions * order.width, order.dtype
        buffer = Rows.buffer_of(name, numel, dtype)
        gather = GatherRows(buffer, self.name, f"{WHOLE}{suffix}", self.part, 0, self.part, width=order.width)
        behind: list[Task] = []
        cuts = [self.part * number // pieces for number in range(pieces + 1)]
        for number, (begin, end) in enumerate(pairwise(cuts)):
            chunk = "" if pieces == 1 else f".c{number}"
            if pieces > 1:
                cut = op.cut(begin, end, name=f"{last.name}{chunk}")
                behind.append(replace(last, name=f"{last.name}{chunk}", op=cut))
            came = behind[-1].name if pieces > 1 else last.name
            named = gather.cut(begin, end, name=f"{name}{chunk}")
            behind.append(Task(f"{name}{chunk}", named, self.of.inside, (came,), group=TENSOR))
        ends = f"order_backward.{self.name}" if crossing.backward else f"restore.{self.name}"
        drawn[ends] = [replace(task, after=(behind[-1].name,)) for task in drawn[ends]]
        return [*stages[: -1 if pieces > 1 else None], *behind]


_ENDS = ("order", "restore", "restore_backward", "order_backward")


def _divided(task: Task, m: int) -> Task:
    """Return the task with an m-th of its work."""
    op: Any = task.op
    less: Mapping[str, Any] = {
        "flops": op.flops / m,
        "moved_bytes": op.moved_bytes / m,
        "seconds": None if op.seconds is None else op.seconds / m,
    }
    if isinstance(op, Order):
        less = {**less, "tokens": op.tokens // m}
    return replace(task, op=replace(op, **less))


technique = Technique(
    name="parm",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="arXiv:2407.00599",
    lossless=True,
    config=Config,
    settings=settings,
    excludes={
        "pipe-a2a": "it has a way of its own for rows",
        "two-level-a2a": "it has a way of its own for rows",
        **dict.fromkeys(
            ("bf16-rows", "int8-rows", "bfp8-rows", "zipccl-rows"), "what it adds up must come back as numbers"
        ),
    },
)
