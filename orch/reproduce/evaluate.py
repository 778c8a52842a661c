"""Run an experiment in simulation: every stack of every cell, over all draws of what is uncertain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from orch.errors import OrchError, Position, did_you_mean, quoted
from orch.experiment.memory import peak_memory_bytes
from orch.experiment.predict import Inputs, described, optimizer_kind, plain_plan, plan_stack
from orch.plan import Backward, Collective, Forward, Plan, Task
from orch.recipe import Recipe
from orch.recipe import load as load_recipe
from orch.recipe.source import display
from orch.reproduce.draws import Array, Group, Input, drawn, groups_of, inputs_of
from orch.reproduce.paper import Paper, recipe_path, rows
from orch.reproduce.sobol import NUM_DRAWS
from orch.reproduce.tables import TableRow
from orch.simulate.variants import obstacle, step_times
from orch.stack import payload_bytes


@dataclass(frozen=True)
class Setting:
    """One override of a cell: `path=value`, where it was written, and the numbers of tables it took."""

    path: str
    value: str
    where: Position
    numbers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The override as a command line has it."""
        return f"{self.path}={self.value}"


@dataclass(frozen=True)
class Cell:
    """One cell of an experiment: its name, the overrides that make it, and the row it stands for."""

    name: str
    settings: tuple[Setting, ...]
    row: TableRow | None = None


@dataclass(frozen=True)
class StackDraws:
    """What one stack does in one cell, an entry a draw: times in seconds, and what its plan hands over.

    `ceiling_s` is its own plan with communication free, `single_s` the plain plan so: a worker by itself.
    """

    step_s: Array
    ceiling_s: Array
    single_s: Array
    payload_bytes: Array
    memory_bytes: Array
    num_collectives: Array
    kinds: tuple[str, ...] = ()  # of collectives: all-reduce, ...


@dataclass(frozen=True)
class CellDraws:
    """What a cell gives: its recipe as the draws found it, the uncertain inputs, and a result a stack."""

    cell: Cell
    recipe: Recipe
    inputs: tuple[Input, ...]
    stacks: Mapping[str, StackDraws] = field(repr=False)

    @property
    def samples(self) -> int:
        """Samples of a step, of all workers."""
        return self.recipe.batch_per_worker() * self.recipe.layout.readers


def in_words(value: Any) -> str:
    """Return a value of a paper's file as an override writes it: text as it is, anything else as JSON, which YAML reads."""
    return value if isinstance(value, str) else json.dumps(value)


def cells_of(paper: Paper, experiment: str, only: Mapping[str, Any] | None = None) -> list[Cell]:
    """Return the cells of an experiment, or of these the ones whose rows `only` picks."""
    spec = paper.spec.experiments[experiment]
    path = ("experiments", experiment)
    common = [Setting(key, in_words(value), paper.place(*path, "set", key)) for key, value in spec.set.items()]
    if spec.cells is None:
        return [Cell(experiment, tuple(common))]
    return [
        Cell(_short(row), (*common, *_from_row(paper, experiment, row)), row) for row in rows(paper, spec.cells, only)
    ]


def _short(row: TableRow) -> str:
    """Return a row's id without the name of the paper or repository it begins with."""
    return row.id.partition("/")[2] or row.id


def _from_row(paper: Paper, experiment: str, row: TableRow) -> list[Setting]:
    import re

    spec = paper.spec.experiments[experiment].cells
    assert spec is not None
    settings = []
    for key, value in spec.set.items():
        where = paper.place("experiments", experiment, "cells", "set", key)
        text = in_words(value)
        columns = re.findall(r"\$\{([^{}]*)\}", text)
        for column in columns:
            text = text.replace(f"${{{column}}}", row.cells[paper.tables[spec.table].column(column, where)])
        settings.append(Setting(key, text, where, tuple(row.number_id(column) for column in columns)))
    return settings


def plan_costs(paper: Paper, experiment: str) -> tuple[Setting, ...]:
    """Return the overrides that make planners use the paper's own constants; none where the file gives none."""
    spec = paper.spec.experiments[experiment].plan_costs
    if spec is None:
        return ()
    path = ("experiments", experiment, "plan_costs", "set")
    return tuple(Setting(key, in_words(value), paper.place(*path, key)) for key, value in spec.set.items())


INSIDE = " in a node"
_CALLED = {"gather_rows": "all-gather", "scatter_rows": "reduce-scatter", "sum_rows": "all-reduce"}
Kept = dict[str, list[tuple[Plan, dict[str, Any]]]]


def evaluate(
    paper: Paper, experiment: str, cell: Cell, stacks: Sequence[str], kept: Kept | None = None, *, apart: bool = True
) -> CellDraws:
    """Return `stacks` of one cell over all draws. Raises OrchError at the setting that the recipe refuses.

    `kept` holds what the same cell gave with other planners' costs; a stack whose plan they do not change is not
    simulated again. With `apart` false the times without communication are left out, as NaN.
    """
    kept = {} if kept is None else kept
    path = recipe_path(paper, experiment)
    texts = [setting.text for setting in cell.settings]
    recipe = loaded(path, texts, cell.settings)
    odd = obstacle(recipe.cluster)
    if odd is not None:
        message = f"{odd}: their draws cannot be simulated together"
        hint = "describe equal nodes without jitter, lanes and waits"
        raise OrchError(message, code="E354", where=Position(display(path)), hint=hint)
    inputs = inputs_of(recipe)
    loads = [(group, _varied(path, recipe, texts, group, cell)) for group in groups_of(inputs)]
    found: dict[str, StackDraws] = {}
    for name in stacks:
        check_stack(recipe, name, paper, experiment)
        chosen = (
            loads if _differ(name, [varied for _, varied in loads]) else [(Group((), np.arange(NUM_DRAWS)), recipe)]
        )
        parts = []
        for group, varied in chosen:
            again = kept.setdefault(f"{name} {group.overrides}", [])
            parts.append((group.chosen, _stack(varied, name, inputs, group.chosen, again, apart=apart)))
        found[name] = _joined(parts)
    return CellDraws(cell, recipe, inputs, found)


def _varied(path: Path, recipe: Recipe, texts: list[str], group: Group, cell: Cell) -> Recipe:
    words = (text.partition("=") for text in group.overrides)
    more = [Setting(key, value, where) for (key, _, value), where in zip(words, group.places, strict=True)]
    return recipe if not group.overrides else loaded(path, [*texts, *group.overrides], (*cell.settings, *more))


def check_stack(recipe: Recipe, name: str, paper: Paper, experiment: str) -> None:
    """Raise OrchError (E352) where the recipe lacks a stack, at the claim that names it."""
    if name not in recipe.stacks:
        path = display(recipe_path(paper, experiment))
        hint = did_you_mean(name, recipe.stacks) or f"its stacks: {', '.join(recipe.stacks)}"
        message = f"the recipe {path} has no stack {quoted(name)}"
        raise OrchError(message, code="E352", where=_named_at(paper, experiment, name) or Position(path), hint=hint)


def _named_at(paper: Paper, experiment: str, name: str) -> Position | None:
    """Return where the first claim on an experiment, or the first defect shown in it, names a stack."""
    for section, claims in (("claims", paper.spec.claims), ("checks", paper.spec.checks)):
        for index, claim in enumerate(claims):
            for key in ("of", "over", "mended") if claim.experiment == experiment else ():
                named = getattr(claim, key)
                if name == named or (isinstance(named, list) and name in named):
                    return paper.place(section, index, key)
    for index, defect in enumerate(paper.spec.defects):
        for key in ("published", "mended") if defect.experiment == experiment else ():
            if name == getattr(defect, key):
                return paper.place("defects", index, key)
    return None


def _differ(name: str, recipes: Sequence[Recipe]) -> bool:
    """Whether what is drawn as whole recipes changes one stack: a knob of another stack does not."""
    first = recipes[0]
    return any(
        (other.stacks[name], other.cluster, other.model, other.spec.compute)
        != (first.stacks[name], first.cluster, first.model, first.spec.compute)
        for other in recipes
    )


def loaded(path: Path, texts: list[str], settings: Sequence[Setting]) -> Recipe:
    """Return the recipe of `path` under the overrides `texts`; what it refuses of `settings` is raised at their places."""
    try:
        return load_recipe(path, texts)
    except OrchError as error:
        # An override of ours is a line of the paper's file; that is where it is mended.
        source = error.where.source if error.where is not None else ""
        number = int(source.split(":")[0].split()[1]) if source.startswith("override ") else 0
        if 1 <= number <= len(settings):
            raise OrchError(
                f"{texts[number - 1]}: {error.message}",
                code=error.code,
                where=settings[number - 1].where,
                hint=error.hint,
            ) from None
        raise


def _stack(
    recipe: Recipe,
    name: str,
    inputs: tuple[Input, ...],
    chosen: Any,
    again: list[tuple[Plan, dict[str, Any]]],
    *,
    apart: bool,
) -> dict[str, Any]:
    given = described(recipe)
    plan, _ = plan_stack(recipe, name, given, timed=False)
    for other, found in again:
        if other == plan:
            return found
    cluster, (forward, backward) = drawn(recipe, inputs, chosen)

    def stretch(task: Task) -> Any:
        return forward if isinstance(task.op, Forward) else backward if isinstance(task.op, Backward) else 1.0

    free = replace(cluster.communication_free(), sharing=None)  # what takes no time slows nothing
    sends = [task for step in plan.steps for task in step if isinstance(task.op, Collective)]
    found = {
        "step_s": step_times(plan, cluster, stretch),
        "ceiling_s": step_times(plan, free, stretch) if apart else np.nan,
        "single_s": step_times(plain_plan(recipe, name, given), free, stretch) if apart else np.nan,
        "payload_bytes": payload_bytes(plan),
        "memory_bytes": _memory(recipe, name, given, plan),
        "num_collectives": len(sends) / plan.period,
        "kinds": kinds_of(plan, recipe.cluster.devices_per_node),
    }
    again.append((plan, found))
    return found


def kinds_of(plan: Plan, per_node: int) -> tuple[str, ...]:
    """Return the kinds of collectives of a plan; those whose ranks share nodes are so called."""
    inside = {name: len({rank // per_node for rank in group.blocks[0]}) == 1 for name, group in plan.groups.items()}
    whole = inside["world"]
    kinds = {(task.op.kind, task.group) for step in plan.steps for task in step if isinstance(task.op, Collective)}
    found = {
        _CALLED.get(kind, kind).replace("_", "-") + (INSIDE if inside[group] and not whole else "")
        for kind, group in kinds
    }
    return tuple(sorted(found))


def _memory(recipe: Recipe, name: str, given: Inputs, plan: Plan) -> int:
    stack = recipe.stacks[name]
    kept = optimizer_kind(stack.train)
    return peak_memory_bytes(plan, given.profiles[name], recipe.batch_per_worker(name), stack.train.precision, kept)


def _joined(parts: list[tuple[Any, dict[str, Any]]]) -> StackDraws:
    """Return the groups of draws as one."""
    first = parts[0][1]
    found = {key: np.empty(NUM_DRAWS) for key in first if key != "kinds"}
    for chosen, part in parts:
        for key, array in found.items():
            array[chosen] = part[key]
    return StackDraws(**found, kinds=first["kinds"])
