"""FasterMoE's smart schedule: groups of ranks take turns, so that experts compute for one group while another's rows travel.

Helps: exchanges and experts of like length, and rows for a rank's own group, which travel least. Does not: one of the two much
longer, groups so small that start-ups count; loads that differ, as turns are as long as their slowest pair. Lossless.
Source: He et al., PPoPP 2022 (text; FastMoE code seen): n groups of g ranks; in step s rows for the s-th next group leave, and
those of the s-th group before arrive; sends first, then the way back. g is 4 there; here, unless asked for, the number with the
shortest layer (ours). Shadow experts: in place of rows a hot expert's weights are sent to all ranks, which compute their own
rows for it. FastMoE's greedy rule chooses them, but once, from `loads` as a run found them, where FastMoE counts anew in every
step. A prediction has even loads: it sees what copies cost, and of their gain only the rows that stay. Layers with a capacity have
none, nor have experts that several ranks hold or rows that are packed. Its topology gate changes what is learned and is left
out. Experts cut into slices are left as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from orch.plan import AllToAll, Crossing, Plan, Rows, RowSizes, Step, Task, crossings, recut
from orch.technique import Context, Knobs, Slot, Technique, count
from techniques.moe._pipeline import makespan, seconds
from techniques.moe._shadows import Shadowed, shadowed, with_shadows

GROUP = "experts"
FIRST_OFFERS = (1, 2, 4, 8)


class Config(Knobs):
    """How ranks are grouped."""

    group: int | None = count(
        None,
        "neighbouring ranks in a group, at most: as many as divide those that share experts; none: chosen (FastMoE: 4)",
        least=1,
        most=4096,
    )

    loads: tuple[float, ...] | None = Field(
        None,
        description="rows of each expert, in proportion, by which hot ones are copied; none: no copies",
        min_length=2,
    )
    shadows: int | None = count(
        None, "experts of a layer that are copied, the hottest first; none: by a greedy rule", most=4096
    )


def groups(ranks: int, most: int | None = None) -> list[int]:
    """Return the sizes that cut `ranks` ranks into equal groups, of at most `most`; all of them but the whole."""
    sizes = [size for size in range(1, ranks) if ranks % size == 0]
    return [size for size in sizes if most is None or size <= most]


def settings(config: Config) -> Iterator[Config]:
    """Yield a config with each size that is tried where none is asked for."""
    for size in FIRST_OFFERS if config.group is None else (config.group,):
        yield config.model_copy(update={"group": size})


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Let the ranks that share experts take turns in every crossing."""
    ranks = plan.groups[GROUP].size if GROUP in plan.groups else 1
    sizes = groups(ranks)
    if config.group is not None:
        # Groups that do not divide the ranks are as large as they may be below.
        sizes = groups(ranks, config.group)[-1:] if config.group < ranks else []
    if ranks == 1:
        return plan

    def change(step: Step) -> Step:
        copied = _copied(plan, step, context, config)
        return with_shadows(_taking_turns(plan, step, context, ranks, sizes, config.group is not None), copied)

    return plan.each_step(change)


def _copied(plan: Plan, step: Step, context: Context, config: Config) -> list[Shadowed]:
    """Return the layers that have copies of experts."""
    if config.loads is None:
        return []
    found = {(crossing.module, crossing.backward): crossing for crossing in crossings(step) if len(crossing.stages) > 1}
    layers = [
        shadowed(plan, context, there, found[module, True], config.loads, config.shadows)
        for (module, backward), there in found.items()
        if not backward and (module, True) in found
    ]
    return [layer for layer in layers if layer is not None]


def _taking_turns(plan: Plan, step: Step, context: Context, ranks: int, sizes: Sequence[int], always: bool) -> Step:
    cuts: dict[str, Sequence[Task]] = {}
    best: dict[str, int] = {}  # of each layer; backward goes as forward did
    both: dict[str, list[Crossing]] = {}
    for crossing in crossings(step):
        if len(crossing.stages) > 1 and all(
            isinstance(t.op, AllToAll | RowSizes) for t in crossing.stages if isinstance(t.op, Rows)
        ):
            both.setdefault(crossing.module, []).append(crossing)
    for module, found in both.items():
        options = list(sizes) if always else [ranks, *sizes]
        best[module] = min(
            options or [ranks],
            key=lambda size: (sum(_seconds(plan, context, one, ranks, size) for one in found), -size),
        )
        if best[module] < ranks:
            for crossing in found:
                chunks = crossing.in_turns(ranks // best[module], alone=best[module] == 1)
                cuts.update((stage.name, cut) for stage, cut in zip(crossing.stages, chunks, strict=True))
    return recut(step, cuts) if cuts else step


def _seconds(plan: Plan, context: Context, crossing: Crossing, ranks: int, size: int) -> float:
    """Return how long a crossing takes in groups of `size`: all sends before the first way back."""
    turns = ranks // size
    if turns == 1:
        return sum(seconds(plan, context, task) for task in crossing.stages)
    known: Mapping[str, float] = {
        task.name: seconds(plan, context, task) for tasks in crossing.in_turns(turns, alone=size == 1) for task in tasks
    }
    # What is left out of turn 0 takes no time.
    times = [[known.get(f"{stage.name}.t{turn}", 0.0) for turn in range(turns)] for stage in crossing.stages]
    return makespan(times, [stage.stream for stage in crossing.stages], crossing.before)


technique = Technique(
    name="fastermoe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="10.1145/3503221.3508418",
    lossless=True,
    config=Config,
    settings=settings,
    excludes=dict.fromkeys(
        ("pairwise-a2a", "pipe-a2a", "two-level-a2a"), "its turns are a way of their own for rows from rank to rank"
    ),
)
