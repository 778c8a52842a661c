"""Copies of hot experts in a plan: which ones pay, and the tasks that share, compute and return them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from orch.errors import OrchError
from orch.plan import (
    COMPUTE,
    COUNTS,
    NET,
    AddShadows,
    AllToAll,
    Crossing,
    Expert,
    ExpertBackward,
    Plan,
    ReturnGradients,
    Rows,
    ShadowBackward,
    ShadowExperts,
    ShareExpert,
    Step,
    Task,
    Update,
)
from orch.technique import Context
from techniques.moe._pipeline import seconds

EXPERTS, REPLICAS = "experts", "replicas"
SHARE, RETURN = "share", "return"


def hottest(rows: Sequence[float], row_s: float, share_s: float) -> list[int]:
    """Return the experts of which copies pay, the hottest first: `rows` of each, seconds of a row where it is computed, and
    of sharing one expert.

    FastMoE's greedy rule: a copy more, as long as what then is the hottest, with all that is shared, takes less.
    """
    order = sorted(range(len(rows)), key=lambda expert: (-rows[expert], expert))
    chosen: list[int] = []
    best = row_s * rows[order[0]]
    for expert, following in pairwise(order):
        new = row_s * rows[following] + (len(chosen) + 1) * share_s
        if new >= best:
            break
        chosen.append(expert)
        best = new
    return chosen


@dataclass(frozen=True)
class Shadowed:
    """A layer some of whose experts are copied: `share` of its rows stay, `whole` bytes would leave without copies."""

    module: str
    experts: tuple[int, ...]
    share: float
    whole: int
    numel: int
    held: int
    tensors: frozenset[str]


def shadowed(
    plan: Plan, context: Context, there: Crossing, back: Crossing, loads: Sequence[float], number: int | None
) -> Shadowed | None:
    """Return which experts of a layer are copied under `loads`: as many as asked for, or as the rule says; None: no one.

    Layers with a capacity, and experts of which other ranks hold the same, have no copies.
    """
    dispatch, expert, gradient = there.stages[0].op, there.expert.op, back.expert.op
    if (
        not isinstance(dispatch, AllToAll)
        or not isinstance(gradient, ExpertBackward)
        or REPLICAS in plan.groups
        or not gradient.ready
    ):
        return None
    assert isinstance(expert, Expert)
    ranks = plan.groups[EXPERTS].size
    if len(loads) != (experts := experts_of(context, gradient, ranks)):
        raise OrchError(
            f"loads of {len(loads)} experts, where mixture {there.module!r} has {experts}", code="E515",
            hint="loads: [3, 1, ...] says the rows of each expert, in proportion",
        )  # fmt: skip
    if not dispatch.ragged:
        return None
    held = len(loads) // ranks
    numel = sum(context.numel(tensor) for tensor in gradient.ready) // held
    sent = dispatch.buffer.segments[0].numel / max(1, dispatch.width)
    row_s = sum(seconds(plan, context, task) for one in (there, back) for task in one.stages) / sent
    span = context.span(plan, there.stages[0])
    share_s = context.cluster.broadcast_s(4.0 * numel, span) + context.cluster.reduce_s(4.0 * numel, span)
    rows = [sent * ranks * load / sum(loads) for load in loads]
    order = sorted(range(len(loads)), key=lambda one: (-loads[one], one))
    chosen = hottest(rows, row_s, float(share_s)) if number is None else order[: min(number, len(loads) - 1)]
    if not chosen:
        return None
    share = sum(loads[one] for one in chosen) / sum(loads)
    return Shadowed(there.module, tuple(chosen), share, dispatch.nbytes, numel, held, frozenset(gradient.ready))


def experts_of(context: Context, op: ExpertBackward, ranks: int) -> int:
    """Return how many experts `ranks` ranks hold together: as many as their parameters have first entries."""
    return context.parameters[op.ready[0]][0] * ranks


def with_shadows(step: Step, layers: Sequence[Shadowed]) -> Step:
    """Return the step, cut or not, with copies of experts in `layers`."""
    for layer in layers:
        step = Step(tuple(_with_copies(step, layer)))
    return step


def _with_copies(step: Step, layer: Shadowed) -> Iterator[Task]:
    module = layer.module
    experts = [task.name for task in step if isinstance(task.op, Expert) and task.op.module == module]
    moves = [task.name for task in step if _moves(task, module, "dispatch_backward")]
    shares, returns = list(_moved(layer, SHARE, ShareExpert)), list(_moved(layer, RETURN, ReturnGradients))
    added = AddShadows(module, 0.0, 12.0 * layer.numel)
    last = Task(f"add_shadows.{module}", added, COMPUTE, tuple(one.name for one in returns))
    waiting = True
    for task in step:
        if waiting and isinstance(task.op, Update) and not (task.lag or layer.tensors.isdisjoint(task.op.parameters)):
            yield last
            waiting = False
        if task.name == experts[min(1, len(experts) - 1)]:
            # Own rows are computed while weights are on their way.
            work = _part(task.op, layer.share)
            yield Task(f"shadow.{module}", ShadowExperts(module, *work), COMPUTE, tuple(one.name for one in shares))
        yield _less(task, layer)
        if task.name == f"order.{module}":
            yield from shares
        if task.name == f"restore_backward.{module}":
            first = next(t for t in step if isinstance(t.op, ExpertBackward) and t.op.module == module)
            work = _part(first.op, layer.share)
            yield Task(f"shadow_backward.{module}", ShadowBackward(module, *work), COMPUTE, (task.name,))
        if moves and task.name == moves[-1]:
            yield from returns
    if waiting:  # the next step updates them
        yield last


def _moves(task: Task, module: str, part: str) -> bool:
    return isinstance(task.op, AllToAll) and (task.op.module, task.op.part) == (module, part)


def _moved(layer: Shadowed, part: str, kind: type[ShareExpert]) -> Iterator[Task]:
    after = f"order.{layer.module}" if part == SHARE else f"shadow_backward.{layer.module}"
    for expert in layer.experts:
        name = f"{part}.{layer.module}.e{expert}"
        buffer = Rows.buffer_of(name, layer.numel, "fp32")
        op = kind(buffer, layer.module, part, expert=expert, root=expert // layer.held, whole=layer.whole)
        yield Task(name, op, NET, (after,), group=EXPERTS)


def _part(op: object, share: float) -> tuple[float, float, str, float | None]:
    """Return FLOPs, bytes, dtype and seconds of a share of all that experts do; each turn's task states the whole."""
    assert isinstance(op, Expert | ExpertBackward)
    return share * op.flops, share * op.moved_bytes, op.dtype, None if op.seconds is None else share * op.seconds


def _less(task: Task, layer: Shadowed) -> Task:
    """Return a task of the layer with the rows that stay left out."""
    op, left = task.op, 1.0 - layer.share
    if isinstance(op, Expert | ExpertBackward) and op.module == layer.module:
        measured = None if op.seconds is None else left * op.seconds
        return replace(task, op=replace(op, flops=left * op.flops, moved_bytes=left * op.moved_bytes, seconds=measured))
    if isinstance(op, AllToAll) and op.module == layer.module and op.part != COUNTS:
        (whole,) = op.buffer.segments
        buffer = Rows.buffer_of(task.name, max(1, int(left * whole.numel)), whole.dtype)
        return replace(task, op=replace(op, buffer=buffer))
    return task
