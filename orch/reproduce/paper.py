"""A paper's file, read and checked: every name it refers to is there, every claim can be computed or says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from orch import registry
from orch.errors import OrchError, Position, did_you_mean, quoted
from orch.recipe.compose import locate
from orch.recipe.faults import checked
from orch.recipe.source import read_file
from orch.recipe.tree import Node
from orch.reproduce.schema import ORDERED, TRAINED, Cells, Claim, PaperFile
from orch.reproduce.tables import Table, TableRow, read_table

FOLDER = "papers"
UNKNOWN = "E352"
UNFIT = "E353"
MOST_CELLS = 20_000  # of a grid
GRIDDED = ("step_time", "speedup", "throughput", "bytes", "count", "ordering", "holds")


@dataclass(frozen=True)
class Paper:
    """A checked paper. `tables` are its published tables, by their name under evidence."""

    spec: PaperFile
    path: Path
    tree: Node = field(repr=False)
    tables: Mapping[str, Table] = field(repr=False)

    @property
    def name(self) -> str:
        """Its short name."""
        return self.spec.paper

    def place(self, *path: str | int) -> Position:
        """Return where an entry of the file was written."""
        node = self.tree.find(tuple(map(str, path)))
        return (node or self.tree).place

    def where(self, claim: Claim) -> Position:
        """Return where a claim was written."""
        for section in ("claims", "checks"):
            for index, other in enumerate(getattr(self.spec, section)):
                if other is claim:
                    return self.place(section, index)
        return self.tree.where


def papers() -> dict[str, Path]:
    """Return the file of every paper by name: the project's, the user's, the shipped ones; nearer ones hide others."""
    roots = (
        registry.shipped("recipes"),
        Path.home() / ".config" / "orch" / "recipes",
        registry.project().root / "recipes",
    )
    found: dict[str, Path] = {}
    for root in roots:
        folder = root / FOLDER
        if folder.is_dir():
            found |= {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in registry.SUFFIXES}
    return dict(sorted(found.items()))


def find(name: str) -> Path:
    """Return the file of a paper given by name or path. Raises OrchError (E350) with the nearest name."""
    if "/" in name or name.endswith(registry.SUFFIXES):
        return registry.expanded(name)
    known = papers()
    if name not in known:
        hint = did_you_mean(name, known) or f"papers: {', '.join(known)}"
        raise OrchError(f"there is no paper named {quoted(name)}", code="E350", hint=hint)
    return known[name]


def load(path: Path) -> Paper:
    """Return the paper in `path`. Raises the OrchError of its first fault, at its place in the file."""
    tree = read_file(path)
    spec: PaperFile = checked(PaperFile.model_validate, tree, (), PaperFile)
    tables = {
        name: read_table(path.parent / entry.table, (tree.find(("evidence", name, "table")) or tree).where)
        for name, entry in spec.evidence.items()
        if entry.table is not None
    }
    paper = Paper(spec, path, tree, tables)
    _check_experiments(paper)
    _check_ids(paper)
    for section, claims in (("claims", spec.claims), ("checks", spec.checks)):
        for index, claim in enumerate(claims):
            _check_claim(paper, claim, (section, str(index)))
    for index, defect in enumerate(spec.defects):
        _known(paper, defect.experiment, spec.experiments, "experiment", ("defects", str(index), "in"))
        if any(defect.id == other.id for other in spec.defects[:index]):
            at = _at(paper, ("defects", str(index), "id"))
            raise OrchError(f"the id {quoted(defect.id)} stands here twice", code=UNFIT, where=at, hint="rename one")
    return paper


def recipe_path(paper: Paper, experiment: str) -> Path:
    """Return the recipe of an experiment: a path from the paper's file, or a name."""
    text = paper.spec.experiments[experiment].recipe
    node = paper.tree.find(("experiments", experiment, "recipe")) or paper.tree
    path = locate(text, [paper.path.parent], node.where)
    if not path.is_file():
        beside = [other.name for other in path.parent.glob("*") if other.suffix in registry.SUFFIXES]
        hint = did_you_mean(path.name, beside) or "paths count from the folder of the file that holds them"
        raise OrchError(f"recipe {quoted(text)}: there is no such file", code="E100", where=node.where, hint=hint)
    return path


def rows(paper: Paper, cells: Cells, only: Mapping[str, Any] | None = None) -> list[TableRow]:
    """Return the rows of a table that an experiment takes, and of these the ones a claim is about."""
    return [row for row in paper.tables[cells.table].rows if _matches(row, cells.only) and _matches(row, only or {})]


def _matches(row: TableRow, only: Mapping[str, Any]) -> bool:
    return all(row.cells[key] in _words(value) for key, value in only.items())


def _words(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _known(paper: Paper, name: str, names: Iterable[str], what: str, path: tuple[str, ...]) -> None:
    if name not in names:
        hint = did_you_mean(name, names) or (f"there are: {', '.join(names)}" if list(names) else f"there is no {what}")
        raise OrchError(
            f"{path[-1]} names {quoted(name)}, which is no {what}", code=UNKNOWN, where=_at(paper, path), hint=hint
        )


def _at(paper: Paper, path: tuple[str, ...]) -> Position:
    """Return where the value at `path` stands, or the deepest entry on the way to it."""
    node = paper.tree.find(path)
    return node.where if node is not None else paper.tree.nearest(path)[0].place


def _check_experiments(paper: Paper) -> None:
    for name, table in paper.tables.items():
        for index, column in enumerate(paper.spec.evidence[name].also):
            table.column(column, _at(paper, ("evidence", name, "also", str(index))))
    for name, experiment in paper.spec.experiments.items():
        cells = experiment.cells
        if cells is not None and experiment.grid is not None:
            at = _at(paper, ("experiments", name, "grid"))
            raise OrchError("has cells of a table and a grid", code=UNFIT, where=at, hint="keep one")
        if experiment.grid is not None and (size := prod(map(len, experiment.grid.axes.values()))) > MOST_CELLS:
            at = _at(paper, ("experiments", name, "grid", "axes"))
            message = f"the grid has {size:,} cells; at most {MOST_CELLS:,} are run"
            raise OrchError(message, code=UNFIT, where=at, hint="state fewer values")
        if cells is None:
            continue
        path = ("experiments", name, "cells")
        _known(paper, cells.table, paper.tables, "table", (*path, "table"))
        for column in cells.only:
            paper.tables[cells.table].column(column, _at(paper, (*path, "only", column)))
        if not rows(paper, cells):
            message = f"no row of {cells.table} is taken"
            raise OrchError(message, code=UNKNOWN, where=_at(paper, (*path, "only")), hint="loosen `only`")


def _check_ids(paper: Paper) -> None:
    seen: set[str] = set()
    for section, claims in (("claims", paper.spec.claims), ("checks", paper.spec.checks)):
        for index, claim in enumerate(claims):
            if claim.id in seen:
                at = _at(paper, (section, str(index), "id"))
                raise OrchError(f"the id {quoted(claim.id)} stands here twice", code=UNFIT, where=at, hint="rename one")
            seen.add(claim.id)


def _check_claim(paper: Paper, claim: Claim, path: tuple[str, ...]) -> None:
    def refuse(message: str, hint: str, key: str = "id") -> OrchError:
        return OrchError(f"claim {quoted(claim.id)} {message}", code=UNFIT, where=_at(paper, (*path, key)), hint=hint)

    if claim.missing and claim.pending:
        raise refuse("is both not runnable (missing) and not yet judged (pending)", "keep one", "pending")
    if claim.missing or claim.pending:
        return
    if claim.metric is None:
        raise refuse("has no metric", "or say what it lacks: `missing:` (to run it) or `pending:` (to make it data)")
    if claim.metric in TRAINED:
        raise refuse(f"needs a training to know its {claim.metric}", "say so: `missing: a training run`", "metric")
    if claim.of is None or claim.experiment is None:
        raise refuse(f"has no `{'of' if claim.of is None else 'in'}`", "name the stack and the experiment")
    _known(paper, claim.experiment, paper.spec.experiments, "experiment", (*path, "in"))
    if isinstance(claim.of, list) != (claim.metric == "ordering"):
        raise refuse("needs one stack as `of`; ordering needs a list", "of: STACK, or of: [FASTEST, .., SLOWEST]", "of")
    if isinstance(claim.of, list) and len(claim.of) < 2:
        raise refuse("orders fewer than two stacks", "of: [FASTEST, .., SLOWEST]", "of")
    named = {key: [one] if isinstance(one, str) else one or [] for key, one in (("of", claim.of), ("over", claim.over))}
    key, twice = next(((key, one) for key, some in named.items() for one in some if some.count(one) > 1), ("", ""))
    if twice:
        raise refuse(f"names stack {quoted(twice)} twice in `{key}`", "keep one", key)
    # Of several the fastest counts, and that may be itself.
    if named["of"] == named["over"] or (claim.metric == "holds" and named["of"][0] in named["over"]):
        raise refuse(f"compares stack {quoted(named['of'][0])} with itself", "over: ANOTHER STACK", "over")
    if claim.metric == "ordering" and claim.over is not None:
        raise refuse("orders the stacks of `of`, and compares with no other", "remove `over`", "over")
    if claim.over == [] or (claim.metric in ("speedup", "holds") and claim.over is None):
        raise refuse(f"has a {claim.metric} without `over`", "over: STACK", "metric")
    if isinstance(claim.over, list) and claim.metric not in ("holds", "speedup"):
        raise refuse("has several stacks as `over`", "only `holds` and `speedup` compare with several", "over")
    if claim.aggregate == "any" and claim.metric not in ORDERED:
        raise refuse("asks whether any cell holds, of a number", "aggregate: mean, max, min or range", "aggregate")
    if claim.aggregate in ("mean", "max", "min", "range") and claim.metric in ORDERED:
        raise refuse(f"has no {claim.aggregate}: it holds or it does not", "aggregate: any, or none", "aggregate")
    _check_published(paper, claim, path, refuse)
    cells = paper.spec.experiments[claim.experiment].cells
    if paper.spec.experiments[claim.experiment].grid is not None:
        if claim.aggregate is None:
            raise refuse("is about every cell of a grid", "aggregate: mean, max, min, range or any")
        if claim.metric not in GRIDDED:
            raise refuse(f"asks for {claim.metric}, which is not computed on grids", f"metrics: {', '.join(GRIDDED)}")
    for column in claim.only:
        if cells is None:
            raise refuse("picks cells of an experiment that has one", "remove `only`", "only")
        paper.tables[cells.table].column(column, _at(paper, (*path, "only", column)))
    if cells is not None and not rows(paper, cells, claim.only):
        raise refuse("is about no cell", "loosen `only`", "only")


Refuse = Callable[..., OrchError]


def _check_published(paper: Paper, claim: Claim, path: tuple[str, ...], refuse: Refuse) -> None:
    value = claim.published
    if claim.metric in ORDERED:
        if value not in (None, True):
            raise refuse("is a statement that holds; it publishes no number", "remove `published`", "published")
        if claim.source is None:
            raise refuse("has no source", "source: abstract, text, table ...")
        return
    if value is None or isinstance(value, bool):
        raise refuse("has nothing published", "published: NAME under evidence, or a number with its source")
    if isinstance(value, str):
        _known(paper, value, paper.spec.evidence, "evidence", (*path, "published"))
        if claim.source is not None:
            raise refuse("gives a source, which its evidence has already", "remove `source`", "source")
    elif claim.source is None:
        raise refuse("gives a number without its source", "source: abstract, text, table ...", "published")
    given = paper.spec.evidence[value] if isinstance(value, str) else None
    source = given.source if given is not None else claim.source
    if source in ("derived", "guess") and path[0] == "claims":
        raise refuse(f"rests on a {source} number, which the paper never published", "put it under `checks`")
    is_range = isinstance(value, list) or (given is not None and given.range is not None)
    if is_range != (claim.aggregate == "range") and not (given is not None and given.table is not None):
        raise refuse("publishes a range exactly when it aggregates to one", "aggregate: range", "published")
    if any(number <= 0 for number in (value if isinstance(value, list) else [value]) if not isinstance(number, str)):
        raise refuse("publishes a number that is not above 0", "times, bytes and ratios are", "published")
    if isinstance(value, list) and len(value) != 2:
        raise refuse("has a range that is no pair", "published: [LOWEST, HIGHEST]", "published")
    if isinstance(value, list) and value[0] > value[1]:
        raise refuse("has a range that begins at its end", "published: [LOWEST, HIGHEST]", "published")
