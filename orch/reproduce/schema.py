"""Every field of a paper's file: what was published, the experiments behind it, and the claims. Pages derive from here.

A published number stands once, under `evidence`, with its provenance; claims and experiments refer to it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from orch.recipe.schema import Version
from orch.recipe.section import Section

Provenance = Literal["table", "log", "repository", "text", "abstract", "plot", "recollection", "derived", "guess"]
"""How a number came to us, best first. `derived` and `guess` are our own: never a claim, at most an input."""

Metric = Literal[
    "step_time",
    "speedup",
    "throughput",
    "scaling_efficiency",
    "exposed_time",
    "bytes",
    "memory",
    "quality",
    "time_to_target",
    "count",
    "ordering",
    "holds",
]
METRICS: dict[str, str] = {
    "step_time": "seconds of one step; with `over`, over / of",
    "speedup": "step time of `over` / step time of `of`; of several stacks as `over` the fastest",
    "throughput": "samples a second of all workers; with `over`, of / over",
    "scaling_efficiency": "throughput over that of as many single workers that do not communicate",
    "exposed_time": "seconds of a step that only communication explains; with `over`, over / of",
    "bytes": "bytes that a worker hands to collectives in a step; with `over`, over / of",
    "memory": "the most bytes that a worker holds; with `over`, over / of",
    "quality": "loss or accuracy: needs a training, not a simulation",
    "time_to_target": "seconds to a quality: needs a training, not a simulation",
    "count": "collectives of a step; with `over`, over / of",
    "ordering": "`of` lists stacks, fastest first",
    "holds": "`of` is faster than every stack of `over`, by more than 1 %",
}
ORDERED = ("ordering", "holds")
TRAINED = ("quality", "time_to_target")


def _slug(value: str) -> str:
    if not value or value.strip(".-") != value or not all(part.isalnum() or part in ".-_" for part in value):
        raise ValueError("must be letters, digits, dots, hyphens and underscores")
    return value


Slug = Annotated[str, AfterValidator(_slug)]
Text = Annotated[str, Field(min_length=1)]
Values = dict[str, Any]
Positive = Annotated[float, Field(gt=0)]


class Evidence(Section):
    """One published number, range or table, and how it came to us."""

    value: Positive | None = Field(default=None, description="a published number")
    range: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="a published range: [lowest, highest]"
    )
    table: Text | None = Field(
        default=None, description="a CSV file beside this one: a column `id`, columns of conditions, a column a stack"
    )
    values: Literal["step_time", "throughput"] | None = Field(
        default=None, description="what the columns of stacks hold: seconds a step, or samples a second of all workers"
    )
    also: list[str] = Field(default=[], description="columns of stacks that no recipe here runs")
    source: Provenance = Field(description="how it came to us")
    where: Text = Field(description="where it stands, as a reader would look it up")

    @model_validator(mode="after")
    def _one(self) -> Evidence:
        if sum(form is not None for form in (self.value, self.range, self.table)) != 1:
            raise ValueError("must hold exactly one of value, range, table")
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError("has a range that begins at its end: range: [LOWEST, HIGHEST]")
        if (self.table is None) != (self.values is None):
            raise ValueError("needs values beside table: step_time or throughput" if self.table else "has no table")
        return self


class Cells(Section):
    """The cells of an experiment: one a row of a published table."""

    table: Text = Field(description="the table, by its name under evidence")
    only: Values = Field(default={}, description="the rows whose columns hold these values; a list allows several")
    set: Values = Field(
        default={}, description='overrides of the recipe, by path; "${column}" puts in what the row holds'
    )


class Grid(Section):
    """A full grid of cells, which claims state together: every value of every axis with every other."""

    axes: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)] = Field(
        description="by path of an override, or by a name: its values; a value may be overrides itself, by path"
    )
    fits: bool = Field(default=False, description="leave out what the device's memory cannot hold")
    source: Provenance = Field(description="how the grid came to us")
    where: Text = Field(description="where it stands, or what it was made up from")


class PlanCosts(Section):
    """The constants that a paper's own planner used, which are not what its cluster really cost."""

    set: Annotated[Values, Field(min_length=1)] = Field(description="overrides of the recipe: knobs of techniques")
    source: Provenance = Field(description="how they came to us")
    where: Text = Field(description="where they stand")


class Experiment(Section):
    """A recipe, run once for every cell."""

    recipe: Text = Field(description="the recipe, a path from this file or a name")
    says: str = Field(default="", description="one line on what it is")
    cells: Cells | None = Field(default=None, description="rows of a table; default: the recipe as it stands")
    grid: Grid | None = Field(default=None, description="a full grid in place of a table's rows")
    set: Values = Field(default={}, description="overrides of the recipe, by path, for every cell")
    plan_costs: PlanCosts | None = Field(
        default=None,
        description="the paper's own constants of planners; without them planners know the cluster's costs",
    )


class Claim(Section):
    """A statement of the paper as data, or what is missing to make it one."""

    id: Slug = Field(description="its name, unique in the paper")
    says: Text = Field(description="the statement, in words")
    metric: Metric | None = Field(default=None, description="what is compared")
    of: str | list[str] | None = Field(default=None, description="the stack it is about; for ordering, all of them")
    over: str | list[str] | None = Field(default=None, description="the stack or stacks it is compared with")
    experiment: str | None = Field(default=None, alias="in", description="the experiment, by name")
    only: Values = Field(default={}, description="the cells whose row holds these values; default: all cells")
    aggregate: Literal["mean", "max", "min", "range", "any"] | None = Field(
        default=None, description="what the paper states of its cells together; default: each cell by itself"
    )
    published: float | list[float] | bool | str | None = Field(
        default=None, description="a name under evidence, or a number or [lowest, highest] with its source"
    )
    source: Provenance | None = Field(default=None, description="how a number written here came to us")
    where: str = Field(default="", description="where it stands in the paper")
    mended: str | None = Field(default=None, description="the stack that does what `of` was meant to do, beside it")
    guessed: str = Field(default="", description="what of its cells or inputs is a guess; caps the outcome")
    note: str = Field(default="", description="what explains a difference, printed with the outcome")
    missing: str = Field(default="", description="what this orch lacks to run it: then it is not runnable here")
    pending: str = Field(default="", description="why nobody has made it data yet: then it is not yet judged")


class Defect(Section):
    """An algorithm as published that does not do what is said of it, and the one that does."""

    id: Slug = Field(description="its name")
    says: Text = Field(description="what is wrong, in one line")
    published: Text = Field(description="the stack with the algorithm as published")
    mended: Text = Field(description="the stack with the algorithm that does what was meant")
    experiment: Text = Field(alias="in", description="the smallest counter-example: an experiment with both stacks")
    worse: float = Field(gt=1, description="step time of the published over the mended one, in the counter-example")


class PaperFile(Section):
    """A paper: what it published, and what that says about experiments that can be run again."""

    orch: Version = Field(description="version of this format")
    paper: Slug = Field(description="short name; ids of its evidence begin with it")
    title: Text = Field(description="title of the paper")
    venue: Text = Field(description="where and when it appeared")
    repository: str = Field(default="", description="where its authors keep their code")
    evidence: dict[Slug, Evidence] = Field(default={}, description="what was published: {NAME: {value, source, where}}")
    experiments: dict[Slug, Experiment] = Field(default={}, description="what can be run: {NAME: {recipe, cells}}")
    claims: Annotated[list[Claim], Field(min_length=1)] = Field(description="the statements")
    checks: list[Claim] = Field(default=[], description="our own derivations, in the form of claims; never counted")
    defects: list[Defect] = Field(default=[], description="algorithms that do not do what is said of them")
