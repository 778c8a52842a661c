"""Training of a model with mixture-of-experts layers: its experts are spread over ranks, and attention where ranks share
samples; all else is replicated.

The plain plan sends a layer's rows to the experts and back in one piece, forward and backward, and every gradient as
soon as it exists: to all ranks, or for what not all hold to those that hold it as well. Schedules cut and move from there.
Ranks that share a sample meet in front of attention and behind it (`orch.workload.sharing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orch.models.profile import Mixture, Module, Profile, Tensor
from orch.plan import (
    COMPUTE,
    COUNTS,
    ITEM_SIZE,
    NET,
    AllToAll,
    Compute,
    Expert,
    ExpertBackward,
    GatherRows,
    Order,
    OrderBackward,
    Plan,
    Restore,
    RestoreBackward,
    Rows,
    ScatterRows,
    Step,
    Task,
    Update,
)
from orch.workload.data_parallel import (
    BACKWARD_BYTES_PER_ELEMENT,
    FORWARD_BYTES_PER_ELEMENT,
    backward_parts,
    backward_task,
    forward_task,
    gradient_send,
)
from orch.workload.layout import EXPERTS, REPLICAS, SHARDS, SHARES, SLICES, Layout
from orch.workload.sharing import Meetings

INTRA = "net.intra"


@dataclass(frozen=True)
class _Drawing:
    """What the tasks of one plan have in common."""

    layout: Layout
    batch: int
    precision: str
    gradient_dtype: str


def mixture_training(
    profile: Profile,
    layout: Layout,
    batch: int,
    *,
    precision: str = "fp32",
    gradient_dtype: str = "fp32",
    update_s: float | None = None,
) -> Plan:
    """Return the plain plan of one step of `profile` with `batch` samples a worker; see `data_parallel` for the rest.

    `profile` is that of the whole model: experts are spread here, and all ranks are taken to get equally many rows.
    Raises OrchError (E412) when the experts cannot be spread evenly.
    """
    drawing = _Drawing(layout, batch, precision, gradient_dtype)
    local = layout.local(profile)
    by_part = {mixture.experts_module: mixture for mixture in local.mixtures}
    meetings = Meetings(local, layout, batch, precision)
    tasks: list[Task] = []
    for module in local.modules:
        mixture = by_part.get(module.name)
        drawn = [forward_task(module, batch, precision)] if mixture is None else _forward(drawing, mixture, module)
        tasks += meetings.forward(module.name, list(drawn))
    held = _held(local, layout, by_part)
    groups = layout.groups()
    sends: list[Task] = []
    for task in _backward(drawing, local, by_part, meetings):
        tasks.append(task)
        for tensor in task.op.tensors:
            group = held.get(tensor, "world")
            if group in groups and layout.world_size > 1:
                send = gradient_send(tensor, local.tensor(tensor).numel, task.name, gradient_dtype)
                sends.append(send if group == "world" else Task(send.name, send.op, NET, send.after, group=group))
    # A gradient waits for no row: what brings rows back is on the way to the next layer.
    tasks = _sends_behind_rows(tasks, sends)
    alone = [name for name in local.ready_order if held.get(name, "world") not in groups]
    tasks += _updates(local, alone, sends, update_s)
    world = range(layout.world_size)
    return Plan(profile.name, layout.world_size, (Step(tuple(tasks)),), {"all": world}, groups)


def _held(profile: Profile, layout: Layout, by_part: dict[str, Mixture]) -> dict[str, str]:
    """Return, by tensor, the group of the ranks that hold it, where these are not all."""
    held = {tensor.name: REPLICAS for tensor in profile.tensors if tensor.modules[0] in by_part}
    if layout.tensor > 1:
        held |= {name: SHARDS for attention in profile.attentions for name, _ in attention.widths}
    return held if layout.world_size > 1 else {}


def _sends_behind_rows(tasks: list[Task], sends: list[Task]) -> list[Task]:
    """Return the tasks with every gradient's send behind its backward task; an expert's behind its layer's last rows."""
    waiting: dict[str, list[Task]] = {}
    for send in sends:
        waiting.setdefault(send.after[0], []).append(send)
    result: list[Task] = []
    held: list[Task] = []
    for task in tasks:
        result.append(task)
        if isinstance(task.op, ExpertBackward):
            held = waiting.get(task.name, [])
            continue
        if held and isinstance(task.op, OrderBackward):
            result[-1:] = [*held, task]
            held = []
        result += waiting.get(task.name, [])
    return result


def _updates(profile: Profile, alone: list[str], sends: list[Task], update_s: float | None) -> Iterator[Task]:
    """Yield the optimiser's work: on what was sent once all has arrived, on experts that only one rank holds before."""
    numel = {name: profile.tensor(name).numel for name in profile.ready_order}
    whole = Update(profile.ready_order, sum(numel.values()), seconds=update_s)
    if alone:
        yield Task("update.experts", whole.of(tuple(alone), sum(numel[name] for name in alone)))
        rest = tuple(name for name in profile.ready_order if name not in set(alone))
        whole = whole.of(rest, sum(numel[name] for name in rest))
    yield Task("update", whole, COMPUTE, tuple(send.name for send in sends))


def _rows(drawing: _Drawing, mixture: Mixture) -> tuple[int, int]:
    """Return positions and rows of one worker."""
    positions = mixture.positions(mixture.tokens * drawing.batch)
    return positions, positions * mixture.rows_per_position


def _laid_out(
    drawing: _Drawing, mixture: Mixture, kind: type[Compute], measured: float | None, passes: int = 1
) -> Compute:
    """Return the operation that lays tokens out as rows, or adds rows up: each is read and written `passes` times; by
    products, each row, token and number are multiplied and added.
    """
    _, rows = _rows(drawing, mixture)
    tokens = mixture.tokens * drawing.batch
    flops = 2.0 * rows * tokens * mixture.hidden if mixture.order == "einsum" else 0.0
    moved = float(ITEM_SIZE[drawing.precision] * mixture.hidden * passes * (rows + tokens))
    if kind is Order and drawing.layout.tensor > 1 and drawing.layout.tokens != SHARES:
        divided = tokens if drawing.layout.divides(mixture, tokens) else 0
        return Order(
            mixture.name, flops, moved, drawing.precision, measured, tokens=divided, rows=rows, width=mixture.hidden
        )
    return kind(mixture.name, flops, moved, drawing.precision, measured)


def _exchange(drawing: _Drawing, mixture: Mixture, part: str, after: tuple[str, ...]) -> list[Task]:
    """Return the task that moves all rows between the ranks of a block, none where one rank holds all experts."""
    if drawing.layout.experts == 1:
        return []
    return [_move(drawing, mixture, AllToAll, part, after, NET, EXPERTS, 1)]


def _share(drawing: _Drawing, mixture: Mixture, kind: type[Rows], part: str, after: tuple[str, ...]) -> list[Task]:
    """Return the task that gathers rows, or scatters them, among the ranks that share each expert."""
    slices = drawing.layout.slices
    if slices == 1:
        return []
    # Where no rows cross nodes there is one network only.
    stream = INTRA if drawing.layout.experts > 1 else NET
    return [_move(drawing, mixture, kind, part, after, stream, SLICES, slices if kind is ScatterRows else 1)]


def _move(
    drawing: _Drawing,
    mixture: Mixture,
    kind: type[Rows],
    part: str,
    after: tuple[str, ...],
    stream: str,
    group: str,
    times: int,
) -> Task:
    name = f"{part}.{mixture.name}"
    positions, rows = _rows(drawing, mixture)
    buffer = Rows.buffer_of(name, rows * mixture.hidden * times, drawing.precision)
    op = kind(buffer, mixture.name, part, positions, 0, positions, mixture.capacity_factor is None, mixture.hidden)
    return Task(name, op, stream, after, group=group)


def _forward(drawing: _Drawing, mixture: Mixture, module: Module) -> Iterator[Task]:
    name, precision = mixture.name, drawing.precision
    measured = 0.0 if module.forward_s is not None else None
    positions, _ = _rows(drawing, mixture)
    yield Task(f"order.{name}", _laid_out(drawing, mixture, Order, measured))
    after: tuple[str, ...] = (f"order.{name}",)
    if drawing.layout.experts > 1 and mixture.capacity_factor is None:
        counts = Rows.buffer_of(f"{COUNTS}.{name}", mixture.experts, "int64")
        yield Task(f"{COUNTS}.{name}", AllToAll(counts, name, COUNTS), NET, after, group=EXPERTS)
        after = (*after, f"{COUNTS}.{name}")
    stages = [*_exchange(drawing, mixture, "dispatch", after)]
    stages += _share(drawing, mixture, GatherRows, "gather", _last(stages, after))
    moved = FORWARD_BYTES_PER_ELEMENT * module.activation_elements * drawing.batch
    op = Expert(name, module.flops * drawing.batch, moved, precision, module.forward_s,
                positions, 0, positions, mixture.products)  # fmt: skip
    stages.append(Task(f"expert.{name}", op, COMPUTE, _last(stages, after)))
    stages += _share(drawing, mixture, ScatterRows, "scatter", _last(stages, after))
    stages += _exchange(drawing, mixture, "combine", _last(stages, after))
    yield from stages
    yield Task(f"restore.{name}", _laid_out(drawing, mixture, Restore, measured),
               COMPUTE, _last(stages, after))  # fmt: skip


def _crossed_back(drawing: _Drawing, mixture: Mixture, module: Module, ready: tuple[str, ...]) -> Iterator[Task]:
    name, precision = mixture.name, drawing.precision
    measured = 0.0 if module.backward_s is not None else None
    positions, _ = _rows(drawing, mixture)
    yield Task(f"restore_backward.{name}", _laid_out(drawing, mixture, RestoreBackward, measured, 2))
    after = (f"restore_backward.{name}",)
    stages = [*_exchange(drawing, mixture, "combine_backward", after)]
    stages += _share(drawing, mixture, GatherRows, "gather_backward", _last(stages, after))
    moved = BACKWARD_BYTES_PER_ELEMENT * module.activation_elements * drawing.batch
    op = ExpertBackward(name, module.backward_flops * drawing.batch, moved, precision, module.backward_s, ready,
                        positions, 0, positions, 2 * mixture.products)  # fmt: skip
    stages.append(Task(f"expert_backward.{name}", op, COMPUTE, _last(stages, after)))
    stages += _share(drawing, mixture, ScatterRows, "scatter_backward", _last(stages, after))
    stages += _exchange(drawing, mixture, "dispatch_backward", _last(stages, after))
    yield from stages
    yield Task(f"order_backward.{name}", _laid_out(drawing, mixture, OrderBackward, measured),
               COMPUTE, _last(stages, after))  # fmt: skip


def _last(stages: list[Task], first: tuple[str, ...]) -> tuple[str, ...]:
    return (stages[-1].name,) if stages else first


def _backward(drawing: _Drawing, profile: Profile, mixtures: dict[str, Mixture], meetings: Meetings) -> Iterator[Task]:
    """Yield the backward tasks, each mixture's in place of the part that its experts take, and the meetings."""
    batch, precision = drawing.batch, drawing.precision
    own: dict[str, list[str]] = {}
    for name in profile.ready_order:
        owner = profile.tensor(name).modules[0]
        if owner in mixtures:
            own.setdefault(owner, []).append(name)
    for name, modules, tensors in backward_parts(profile):
        left: list[Module] = []
        parts = 0
        rest: tuple[Tensor, ...] = tuple(tensor for tensor in tensors if tensor.modules[0] not in mixtures)
        for place, module in enumerate(modules):
            mixture = mixtures.get(module.name)
            if left and (mixture is not None or meetings.begins(module.name)):
                yield backward_task(f"{name}.before{parts or ''}", tuple(left), (), batch, precision)
                left, parts = [], parts + 1
            if mixture is not None:
                yield from _crossed_back(drawing, mixture, module, tuple(own.get(module.name, ())))
                parts = max(parts, 1)
                continue
            yield from meetings.before(module.name)
            left.append(module)
            if meetings.ends(module.name):
                last = place == len(modules) - 1
                part = name if last else f"{name}.before{parts or ''}"
                yield backward_task(part, tuple(left), rest if last else (), batch, precision)
                yield from meetings.behind(module.name, part)
                left, parts, rest = [], parts + 1, () if last else rest
        if left or rest:
            yield backward_task(name, tuple(left), rest, batch, precision)
