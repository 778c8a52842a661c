"""Run a full grid of layers in simulation at once: what tasks cost are arrays, an entry a layer and a draw.

Layers whose plans have the same tasks are planned together: their sizes become arrays in one plan. A technique that says
among which settings its planner chooses (`Technique.settings`) is simulated with each on all layers, and each layer takes
its best. A pass that compares sizes cannot plan so; then every layer is planned by itself. Draws are the first `DRAWS` of
the fixed points: of a Sobol sequence they lie as evenly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orch.errors import OrchError, Position
from orch.experiment.memory import peak_memory_bytes
from orch.experiment.predict import optimizer_kind
from orch.models.catalogue import NamedModel
from orch.models.model import validated
from orch.models.profile import Profile
from orch.plan import Buffer, Collective, Expert, Plan, Rows, Segment, Step, Task
from orch.recipe import Recipe
from orch.recipe.overrides import parse_override
from orch.recipe.source import display
from orch.reproduce.draws import Input, drawn, groups_of, inputs_of
from orch.reproduce.evaluate import Cell, CellDraws, Setting, StackDraws, check_stack, in_words, kinds_of, loaded
from orch.reproduce.paper import Paper, recipe_path
from orch.simulate import makespan_s, ready_times
from orch.simulate.simulator import Known
from orch.simulate.variants import step_times, step_times_of
from orch.stack import Member, applied, payload_bytes
from orch.technique import Context
from orch.workload import Layout, forward_reads, mixture_training

DRAWS = 128
POSITIONS = 840  # of every layer in a plan of many: the degrees up to 8 divide it
QUICK = ("model.", "train.batch_per_worker")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Layer:
    """One layer: its profile and plain plan, and the cells that are it (an axis may change nothing)."""

    profile: Profile
    plain: Plan
    cells: list[Cell]
    batch: int


def evaluate_grid(paper: Paper, experiment: str, stacks: Sequence[str]) -> list[CellDraws]:
    """Return `stacks` of every cell of a grid that fits, over the draws."""
    path = recipe_path(paper, experiment)
    found: list[CellDraws] = []
    for slow, cells in _by_recipe(paper, experiment):
        recipe = loaded(path, [setting.text for setting in slow], slow)
        for name in stacks:
            check_stack(recipe, name, paper, experiment)
        inputs = tuple(replace(entry, coordinate=entry.coordinate[:DRAWS]) for entry in inputs_of(recipe))
        if len(groups_of(inputs)) > 1:
            message = "only costs are drawn on a grid, and something else is uncertain"
            raise OrchError(message, code="E354", where=Position(display(path)), hint="state it")
        given = paper.spec.experiments[experiment].grid
        layers = _layers(recipe, cells, fits=bool(given and given.fits))
        found += _Grid(recipe, inputs, stacks).run(layers)
    if not found:
        message = f"no layer of {experiment} fits into memory"
        raise OrchError(message, code="E352", where=Position(display(path)), hint="fits: false")
    return found


def _by_recipe(paper: Paper, experiment: str) -> Iterator[tuple[tuple[Setting, ...], list[Cell]]]:
    """Yield the settings that change the recipe, and the cells that share it: those differ in their layer only."""
    spec = paper.spec.experiments[experiment]
    assert spec.grid is not None
    place = ("experiments", experiment)
    common = tuple(Setting(key, in_words(value), paper.place(*place, "set", key)) for key, value in spec.set.items())
    axes = [
        [
            tuple(
                Setting(path, in_words(one), paper.place(*place, "grid", "axes", axis))
                for path, one in (value if isinstance(value, Mapping) else {axis: value}).items()
            )
            for value in values
        ]
        for axis, values in spec.grid.axes.items()
    ]
    groups: dict[tuple[Setting, ...], list[Cell]] = {}
    for number, chosen in enumerate(product(*axes)):
        settings = tuple(setting for one in chosen for setting in one)
        slow = tuple(setting for axis in chosen for setting in axis if not all(_quick(one) for one in axis))
        quick = tuple(setting for setting in settings if setting not in slow)
        groups.setdefault((*common, *slow), []).append(Cell(f"layer {number}", (*common, *slow, *quick)))
    yield from groups.items()


def _quick(setting: Setting) -> bool:
    return setting.path.startswith(QUICK)


def _layers(recipe: Recipe, cells: Sequence[Cell], *, fits: bool) -> list[_Layer]:
    """Return the different layers of the cells; with `fits` those that the device's memory holds."""
    model = recipe.model
    if not isinstance(model, NamedModel):
        message = "a grid is run for a model that has a name"
        raise OrchError(message, code="E354", where=Position(display(recipe.path)), hint="model: {use: NAME}")
    base = model.knobs.model_dump()
    found: dict[tuple[Any, int], _Layer | None] = {}
    for cell in cells:
        batch, changed, where = recipe.batch_per_worker(), dict[str, Any](), cell.settings[-1].where
        for setting in cell.settings:
            name = setting.path.removeprefix("model.")
            if setting.path == "train.batch_per_worker":
                batch = _batch(setting)
            elif name != setting.path:
                changed[name], where = _read(setting), setting.where
        knobs = validated(type(model.knobs), base | changed, "model", where)
        key = (knobs, batch)
        if key not in found:
            found[key] = _layer(recipe, model.model.profile(knobs), batch, fits=fits)
        layer = found[key]
        if layer is not None:
            layer.cells.append(cell)
    return [layer for layer in found.values() if layer is not None]


def _read(setting: Setting) -> Any:
    """Return the value of a setting, by the rule that holds for overrides."""
    try:
        return parse_override(setting.text, 1).node.plain()
    except OrchError as error:
        raise OrchError(error.message, code=error.code, where=setting.where, hint=error.hint) from None


def _batch(setting: Setting) -> int:
    value = _read(setting)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        message = f"{setting.text}: must be a whole number, at least 1"
        raise OrchError(message, code="E213", where=setting.where)
    return value


def _layer(recipe: Recipe, profile: Profile, batch: int, *, fits: bool) -> _Layer | None:
    train, layout = recipe.train, recipe.layout
    layout = Layout.of(layout.world_size, profile.mixtures, layout.experts, layout.slices, layout.tensor, layout.tokens)
    plain = mixture_training(
        profile, layout, batch, precision=train.precision, gradient_dtype=train.gradient_dtype, update_s=None
    )
    local = layout.local(profile)
    room = recipe.cluster.device.memory_bytes
    if fits and room is not None:
        needed = peak_memory_bytes(plain, local, batch, train.precision, optimizer_kind(train))
        return None if needed > room else _Layer(local, plain, [], batch)
    return _Layer(local, plain, [], batch)


# A stack, layers whose plain plans have the same tasks, and the plan that has all their sizes.
_Work: TypeAlias = tuple[str, list[_Layer], Plan]


class _Grid:
    """The stacks of one recipe over its layers."""

    def __init__(self, recipe: Recipe, inputs: tuple[Input, ...], stacks: Sequence[str]) -> None:
        self.recipe, self.inputs, self.stacks = recipe, inputs, stacks
        self.drawn, _ = drawn(recipe, inputs, np.arange(DRAWS))

    def run(self, layers: Sequence[_Layer]) -> list[CellDraws]:
        """Return what every cell of the layers gives, in the order of the cells."""
        alike: dict[Any, list[_Layer]] = {}
        for layer in layers:
            alike.setdefault(_shape(layer.plain), []).append(layer)
        works = [
            (name, members, plain)
            for members in alike.values()
            for plain in [_sized([layer.plain for layer in members])]
            for name in self.stacks
        ]
        by_layer: dict[int, dict[str, StackDraws]] = {}
        for (name, members, _), results in zip(works, self._all(works), strict=True):
            for layer, result in zip(members, results, strict=True):
                by_layer.setdefault(id(layer), {})[name] = result
        found = [
            CellDraws(cell, self.recipe, self.inputs, by_layer[id(layer)]) for layer in layers for cell in layer.cells
        ]
        return sorted(found, key=lambda draws: int(draws.cell.name.rpartition(" ")[2]))

    def _all(self, works: list[_Work]) -> list[list[StackDraws]]:
        """Return what each of some stacks does on its layers; where there are several processors, worked out on all of them."""
        processes = min(len(os.sched_getaffinity(0)), sum(len(layers) for _, layers, _ in works) // 16, len(works))
        if processes < 2:
            return [self._stack(*work) for work in works]
        _AT_WORK[:] = [(self, works)]  # what forked processes find there need not be sent to them
        try:
            with ProcessPoolExecutor(processes, get_context("fork")) as pool:
                return list(pool.map(_work, range(len(works))))
        finally:
            _AT_WORK.clear()

    def _stack(self, name: str, layers: list[_Layer], plain: Plan) -> list[StackDraws]:
        members = self.recipe.stacks[name].members
        try:
            return self._together(members, plain, layers)
        except (TypeError, ValueError):  # what NumPy says to a pass that compares arrays
            return self._apart(members, layers)

    def _together(self, members: Sequence[Member], plain: Plan, layers: list[_Layer]) -> list[StackDraws]:
        """Plan and simulate many layers at once; `plain` has all their sizes."""
        context = self._context(layers[0])
        options = [
            list(member.technique.settings(member.config)) if member.technique.settings else [member.config]
            for member in members
        ]
        configs = list(product(*options))
        cluster = self.recipe.cluster
        best = np.zeros(len(layers), dtype=np.int64)
        if len(configs) > 1:
            times = []
            known: Known = {}
            for planned in self._each(plain, members, options, context):
                step_s = step_times(planned, cluster, known=known)
                times.append(np.broadcast_to(np.ravel(step_s), len(layers)))
            best = np.argmin(times, axis=0)  # the first of equals: the fewest chunks
        found: list[StackDraws | None] = [None] * len(layers)
        for number in np.unique(best):
            places = np.flatnonzero(best == number)
            plan = _planned(_some(plain, places), members, configs[number], context)
            self._checked(members, configs[number], layers[places[0]])
            steps = np.broadcast_to(step_times(plan, self.drawn), (len(places), DRAWS))
            sizes = np.broadcast_to(np.ravel(payload_bytes(plan)), len(places))
            for place, step_s, nbytes in zip(places, steps, sizes, strict=True):
                found[place] = _draws(plan, step_s, float(nbytes), cluster.devices_per_node)
        return [one for one in found if one is not None]

    def _each(
        self, plan: Plan, members: Sequence[Member], options: Sequence[Sequence[Any]], context: Context
    ) -> Iterator[Plan]:
        """Yield the plans of all settings, in the order of their product; what settings share is planned once."""
        if not members:
            yield plan
            return
        for config in options[0]:
            begun = _planned(plan, members[:1], [config], context)
            yield from self._each(begun, members[1:], options[1:], context)

    def _checked(self, members: Sequence[Member], configs: Sequence[Any], layer: _Layer) -> None:
        """Plan one layer by itself as well: passes over arrays are checked on it."""
        given = [replace(member, config=config) for member, config in zip(members, configs, strict=True)]
        applied(layer.plain, given, self._context(layer))

    def _apart(self, members: Sequence[Member], layers: list[_Layer]) -> list[StackDraws]:
        """Plan every layer by itself, those of equal experts one after another: what passes keep of one serves the next. Plans
        that came out alike are simulated together.
        """
        order = sorted(range(len(layers)), key=lambda number: _experts(layers[number].plain))
        plans: dict[int, Plan] = {}
        for number in order:
            plans[number] = applied(layers[number].plain, members, self._context(layers[number]))
        found = [plans[number] for number in range(len(layers))]
        per_node = self.recipe.cluster.devices_per_node
        return [
            _draws(plan, np.broadcast_to(step_s, DRAWS), payload_bytes(plan), per_node)
            for plan, step_s in zip(found, step_times_of(found, self.drawn), strict=True)
        ]

    def _context(self, layer: _Layer) -> Context:
        profile, cluster = layer.profile, self.recipe.cluster
        return Context(
            cluster,
            cluster.world_size,
            ready=lambda plan, step: ready_times(plan, step, cluster),
            makespan=lambda plan: makespan_s(plan, cluster),
            parameters={tensor.name: tensor.shape for tensor in profile.tensors},
            forward_reads=forward_reads(profile),
            gradient_dtype=self.recipe.train.gradient_dtype,
            mixtures=profile.mixtures,
            stages=profile.stages,
            batch=layer.batch,
        )


_AT_WORK: list[tuple[_Grid, list[_Work]]] = []


def _work(number: int) -> list[StackDraws]:
    ((grid, works),) = _AT_WORK
    return grid._stack(*works[number])


def _experts(plan: Plan) -> list[tuple[float, int]]:
    """Return the sizes of a plan's experts: by them its rows are alike."""
    return [(task.op.flops, task.op.positions) for task in plan.steps[0].of(Expert)]  # type: ignore[attr-defined]


def _planned(plan: Plan, members: Sequence[Member], configs: Sequence[Any], context: Context) -> Plan:
    """Return what the passes make of a plan whose sizes are arrays [layers, 1]."""
    for member, config in zip(members, configs, strict=True):
        plan = member.technique.rewrite(plan, context, config)
    return plan


def _draws(plan: Plan, step_s: Array, nbytes: float, per_node: int) -> StackDraws:
    sends = [task for step in plan.steps for task in step if isinstance(task.op, Collective)]
    nothing = np.full(DRAWS, np.nan)
    count = np.full(DRAWS, len(sends) / plan.period)
    return StackDraws(step_s, nothing, nothing, np.full(DRAWS, nbytes), nothing, count, kinds_of(plan, per_node))


# What may differ between layers that share a plan: everything else must not.
_SIZES = ("flops", "moved_bytes", "seconds", "numel", "width", "hidden", "tokens", "rows", "positions", "end")


def _shape(plan: Plan) -> Any:
    """Return all of a plan but its sizes."""
    return plan.world_size, tuple(
        (task.name, task.stream, task.after, task.group, type(task.op), *_facts(task)) for task in plan.steps[0]
    )


@cache
def _fixed(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name not in (*_SIZES, "buffer"))


def _facts(task: Task) -> list[Any]:
    op = task.op
    kind: Any = type(op)
    found: list[Any] = [(name, getattr(op, name)) for name in _fixed(kind)]
    if isinstance(op, Collective):
        found += [(segment.name, segment.dtype, segment.tensor) for segment in op.buffer.segments]
    if getattr(op, "positions", 1) > 1:
        found.append("cut")
    return found


def _sized(plans: Sequence[Plan]) -> Plan:
    """Return the plan of all: as the first one's, its sizes arrays [plans, 1] where they differ."""
    tasks = []
    for same in zip(*(plan.steps[0].tasks for plan in plans), strict=True):
        ops = [task.op for task in same]
        first = ops[0]
        changes: dict[str, Any] = {
            field.name: _column([getattr(op, field.name) for op in ops])
            for field in fields(first)
            if field.name in _SIZES and field.name not in ("positions", "end")
        }
        if isinstance(first, Collective):
            segments = tuple(
                replace(segment, numel=_column([op.buffer.segments[place].numel for op in ops]))
                for place, segment in enumerate(first.buffer.segments)
            )
            changes["buffer"] = Buffer(first.buffer.name, segments, first.buffer.pad_to)
        if getattr(first, "positions", 1) > 1 and not (isinstance(first, Rows) and "counts" in first.part):
            changes |= {"positions": POSITIONS, "end": POSITIONS}
        tasks.append(replace(same[0], op=replace(first, **changes)))
    return replace(plans[0], steps=(Step(tuple(tasks)),))


def _some(plan: Plan, places: NDArray[np.int64]) -> Plan:
    """Return the plan of some of its layers."""
    tasks = []
    for task in plan.steps[0]:
        op = task.op
        changes: dict[str, Any] = {
            field.name: value[places]
            for field in fields(op)
            if isinstance(value := getattr(op, field.name), np.ndarray)
        }
        if isinstance(op, Collective):
            changes["buffer"] = replace(op.buffer, segments=tuple(_some_of(one, places) for one in op.buffer.segments))
        tasks.append(replace(task, op=replace(op, **changes)))
    return replace(plan, steps=(Step(tuple(tasks)),))


def _some_of(segment: Segment, places: NDArray[np.int64]) -> Segment:
    numel: Any = segment.numel
    if not isinstance(numel, np.ndarray):
        return segment
    some: Any = numel[places]
    return replace(segment, numel=some)


def _column(values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    return np.array(values)[:, None]
