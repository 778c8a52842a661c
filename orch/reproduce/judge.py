"""From a paper's file to what became of its claims: run the cells, compare, judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from orch.reproduce import metrics
from orch.reproduce.draws import Array
from orch.reproduce.evaluate import Cell, CellDraws, Kept, Setting, cells_of, evaluate, plan_costs
from orch.reproduce.grid import evaluate_grid
from orch.reproduce.lineage import Evidence, Origin, caps, evidence_of, origins
from orch.reproduce.paper import Paper
from orch.reproduce.schema import ORDERED, Claim, Defect
from orch.reproduce.verdict import CAPPED, Outcome, Published, Verdict, capped, judge, judge_statement, worst

QUANTILES = (5.0, 50.0, 95.0)


@dataclass(frozen=True)
class Band:
    """Our number over the draws: 5 % of them lie below `lo`, 5 % above `hi`."""

    median: float
    lo: float
    hi: float

    @staticmethod
    def of(draws: Array) -> Band:
        """Return the band of `draws`."""
        lo, median, hi = (float(value) for value in np.percentile(draws, QUANTILES))
        return Band(median, lo, hi)


@dataclass(frozen=True)
class Absolute:
    """The step time of one stack: published, and ours, in seconds."""

    stack: str
    published_s: float
    ours_s: Band

    @property
    def off(self) -> float:
        """|log ours/published|."""
        return abs(math.log(self.ours_s.median / self.published_s))


@dataclass(frozen=True)
class CellResult:
    """A claim in one cell, or over the cells that its aggregate lists."""

    name: str
    published: tuple[float, ...]
    ours: tuple[Band, ...]
    absolute: tuple[Absolute, ...]
    evidence: Evidence
    verdict: Verdict | None
    evidence_why: str = ""
    mended: Band | None = None
    other_costs: str = ""
    inputs: tuple[Origin, ...] = field(default=(), repr=False)
    numbers: tuple[Published, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class ClaimResult:
    """What became of one claim. Without an outcome its evidence says why: an input was fitted on it."""

    claim: Claim
    cells: tuple[CellResult, ...]
    evidence: Evidence
    outcome: Outcome | None
    why: str

    @property
    def judged(self) -> bool:
        """Whether there is an outcome that says something about the claim."""
        return self.outcome not in (None, Outcome.NOT_RUNNABLE, Outcome.NOT_JUDGED)


class Judge:
    """Judges the claims of one paper; cells that several claims are about are run once."""

    def __init__(self, paper: Paper, costs: str | None = None) -> None:
        """`costs` says what planners know: `paper` (their published constants, where the file gives some) or `cluster`."""
        self.paper = paper
        self.costs = costs or "paper"
        self._stacks: dict[str, set[str]] = {}
        self._apart: set[str] = set()  # experiments of which the times without communication matter
        for claim in (*paper.spec.claims, *paper.spec.checks):
            if claim.experiment is not None:
                if claim.metric in metrics.APART:
                    self._apart.add(claim.experiment)
                self._stacks.setdefault(claim.experiment, set()).update(metrics.stacks_of(claim))
        for defect in paper.spec.defects:
            self._stacks.setdefault(defect.experiment, set()).update((defect.published, defect.mended))
        self._draws: dict[tuple[str, str, bool], CellDraws] = {}
        self._kept: dict[tuple[str, str], Kept] = {}
        self._grids: dict[str, list[CellDraws]] = {}

    def uses(self, experiment: str) -> bool:
        """Whether some claim is about an experiment."""
        return experiment in self._stacks

    def claims(self) -> list[ClaimResult]:
        """Return what became of every claim."""
        return [self.result(claim) for claim in self.paper.spec.claims]

    def checks(self) -> list[ClaimResult]:
        """Return what became of our own checks."""
        return [self.result(claim) for claim in self.paper.spec.checks]

    def defect(self, defect: Defect) -> tuple[float, float]:
        """Return the step times [s] of the published and the mended algorithm in a defect's counter-example."""
        cell = cells_of(self.paper, defect.experiment)[0]
        stacks = self.draws(defect.experiment, cell, own_costs=True).stacks
        published, mended = (float(np.median(stacks[name].step_s)) for name in (defect.published, defect.mended))
        return published, mended

    def predictions(self, experiment: str) -> list[tuple[CellDraws, str, float, bool]]:
        """Return every published time of an experiment's table: cell, stack, published seconds a step, and whether an
        input was fitted on it.
        """
        cells = self.paper.spec.experiments[experiment].cells
        found: list[tuple[CellDraws, str, float, bool]] = []
        for cell in cells_of(self.paper, experiment) if cells is not None else ():
            draws = self.draws(experiment, cell)
            for stack in draws.stacks:
                published = metrics.step_published(self.paper, cells.table, draws, stack) if cells is not None else None
                if published is None or cell.row is None:
                    continue
                inputs = origins(self.paper, experiment, draws, self._costs(experiment), [stack])
                evidence, _ = evidence_of(inputs, [cell.row.number_id(stack)])
                found.append((draws, stack, published, evidence is Evidence.FITTED))
        return found

    def result(self, claim: Claim) -> ClaimResult:
        """Return what became of one claim."""
        if claim.missing:
            return ClaimResult(claim, (), Evidence.NONE, Outcome.NOT_RUNNABLE, f"missing: {claim.missing}")
        if claim.pending:
            return ClaimResult(claim, (), Evidence.NONE, Outcome.NOT_JUDGED, claim.pending)
        experiment = str(claim.experiment)
        if self.paper.spec.experiments[experiment].grid is not None:
            return _summed(claim, [self._over_grid(claim, self.grid(experiment))])
        cells = cells_of(self.paper, experiment, claim.only)
        results = self._together(claim, cells) if claim.aggregate else [self._one(claim, cell) for cell in cells]
        return _summed(claim, [result for result in results if result is not None])

    def draws(self, experiment: str, cell: Cell, *, own_costs: bool = False) -> CellDraws:
        """Return a cell's draws; with `own_costs`, its planners know what the cluster really costs."""
        costs = () if own_costs else self._costs(experiment)
        key = (experiment, cell.name, bool(costs))
        if key not in self._draws:
            full = replace(cell, settings=(*cell.settings, *costs))
            kept = self._kept.setdefault((experiment, cell.name), {})
            stacks, apart = sorted(self._stacks[experiment]), experiment in self._apart
            self._draws[key] = evaluate(self.paper, experiment, full, stacks, kept, apart=apart)
        return self._draws[key]

    def grid(self, experiment: str) -> list[CellDraws]:
        """Return the draws of every cell of a grid, all of them run at once."""
        if experiment not in self._grids:
            self._grids[experiment] = evaluate_grid(self.paper, experiment, sorted(self._stacks[experiment]))
        return self._grids[experiment]

    def _costs(self, experiment: str) -> tuple[Setting, ...]:
        return plan_costs(self.paper, experiment) if self.costs == "paper" else ()

    def _one(self, claim: Claim, cell: Cell) -> CellResult | None:
        draws = self.draws(str(claim.experiment), cell)
        coordinates = {entry.path: entry.coordinate for entry in draws.inputs}
        if claim.metric in ORDERED:
            holding = metrics.holds(claim, draws)
            said = (Published(1.0, str(claim.source), ids=self._ids(claim, [draws])),)
            return self._result(
                claim, cell.name, [draws], said, holding[:, None], lambda: judge_statement(holding, coordinates)
            )
        table = self._table(claim)
        if table is not None:
            found = metrics.of_table(self.paper, table, claim, draws)
            if found is None:
                return None
            published: tuple[Published, ...] = (found,)
        else:
            published = tuple(metrics.stated(self.paper, claim))
        ours = metrics.values(claim, draws)
        off = self._off(claim, [draws])
        return self._result(
            claim,
            cell.name,
            [draws],
            published,
            ours[:, None],
            lambda: judge(ours, published, metrics.no_effect(claim), coordinates, off),
        )

    def _together(self, claim: Claim, cells: Sequence[Cell]) -> list[CellResult | None]:
        kind = str(claim.aggregate)
        all_draws = [self.draws(str(claim.experiment), cell) for cell in cells]
        name = f"{kind} of {', '.join(cell.name for cell in cells)}"
        coordinates = {entry.path: entry.coordinate for entry in all_draws[0].inputs}
        if kind == "any":
            holding = np.max([metrics.holds(claim, draws) for draws in all_draws], axis=0)
            numbers: tuple[Published, ...] = (Published(1.0, str(claim.source), ids=self._ids(claim, all_draws)),)
            return [
                self._result(
                    claim, name, all_draws, numbers, holding[:, None], lambda: judge_statement(holding, coordinates)
                )
            ]
        table = self._table(claim)
        if table is not None:
            found = [metrics.of_table(self.paper, table, claim, draws) for draws in all_draws]
            kept = [(one, draws) for one, draws in zip(found, all_draws, strict=True) if one is not None]
            if not kept:  # the paper left all of them empty
                return []
            all_draws = [draws for _, draws in kept]
            name = f"{kind} of {', '.join(draws.cell.name for draws in all_draws)}"
            over = metrics.aggregate(kind, [np.array([one.value]) for one, _ in kept])[0]
            ids = tuple(number for one, _ in kept for number in one.ids)
            numbers = tuple(Published(float(value), kept[0][0].source, ids=ids) for value in over)
        else:
            numbers = tuple(metrics.stated(self.paper, claim))
        ours = metrics.aggregate(kind, [metrics.values(claim, draws) for draws in all_draws])
        off = self._off(claim, all_draws)
        return [
            self._result(
                claim,
                name,
                all_draws,
                numbers,
                ours,
                lambda: judge(ours, numbers, metrics.no_effect(claim), coordinates, off),
            )
        ]

    def _over_grid(self, claim: Claim, all_draws: Sequence[CellDraws]) -> CellResult:
        """Return a claim over a grid; its first cell speaks for the inputs of all."""
        first, kind = all_draws[0], str(claim.aggregate)
        coordinates = {entry.path: entry.coordinate for entry in first.inputs}
        name = f"{kind} of {len(all_draws)} layers"
        if claim.metric in ORDERED:
            each = np.array([metrics.holds(claim, draws) for draws in all_draws])
            holding = each.max(axis=0) if kind == "any" else each.min(axis=0)
            said = (Published(1.0, str(claim.source), ids=self._ids(claim, [first])),)
            name += f", {np.median(each, axis=1).mean():.0%} of which it holds for"
            return self._result(
                claim, name, [first], said, holding[:, None], lambda: judge_statement(holding, coordinates)
            )
        per_cell = [metrics.values(claim, draws) for draws in all_draws]
        low, lower, middle, upper, high = np.percentile(np.median(per_cell, axis=1), (0, 25, 50, 75, 100))
        name += f" (from {low:.3g} to {high:.3g}, half of them {lower:.3g} to {upper:.3g}, median {middle:.3g})"
        numbers = tuple(metrics.stated(self.paper, claim))
        ours = metrics.aggregate(kind, per_cell)
        effect = metrics.no_effect(claim)
        return self._result(
            claim, name, [first], numbers, ours, lambda: judge(ours, numbers, effect, coordinates, None)
        )

    def _result(
        self,
        claim: Claim,
        name: str,
        draws: Sequence[CellDraws],
        numbers: tuple[Published, ...],
        ours: Array,
        verdict: Callable[[], Verdict],
    ) -> CellResult:
        experiment = str(claim.experiment)
        costs = self._costs(experiment)
        inputs = tuple(
            dict.fromkeys(
                o for one in draws for o in origins(self.paper, experiment, one, costs, metrics.stacks_of(claim))
            )
        )
        evidence, why = evidence_of(inputs, [number for entry in numbers for number in entry.ids])
        found = None if evidence is Evidence.FITTED else self._capped(claim, numbers, inputs, verdict())
        return CellResult(
            name,
            tuple(entry.value for entry in numbers),
            tuple(Band.of(ours[:, column]) for column in range(ours.shape[1])),
            tuple(self._absolute(claim, one, stack) for one in draws for stack in self._timed(claim, one)),
            evidence,
            found,
            why,
            self._mended(claim, draws),
            self._with_other_costs(claim, draws),
            inputs,
            numbers,
        )

    def _capped(
        self, claim: Claim, numbers: Sequence[Published], inputs: Sequence[Origin], verdict: Verdict
    ) -> Verdict:
        source = next((entry.source for entry in numbers if entry.source in CAPPED), "")
        reason = f"the published number is a {source}" if source else claim.guessed or caps(inputs)
        return capped(verdict, reason) if reason else verdict

    def _table(self, claim: Claim) -> str | None:
        name = claim.published
        return name if isinstance(name, str) and self.paper.spec.evidence[name].table is not None else None

    def _timed(self, claim: Claim, draws: CellDraws) -> list[str]:
        """Return the stacks of a claim whose absolute step time is published."""
        table = self._rows(claim)
        names = [name for name in metrics.stacks_of(claim) if name != claim.mended]
        return [n for n in names if table and metrics.step_published(self.paper, table, draws, n) is not None]

    def _rows(self, claim: Claim) -> str | None:
        cells = self.paper.spec.experiments[str(claim.experiment)].cells
        return cells.table if cells is not None else None

    def _absolute(self, claim: Claim, draws: CellDraws, stack: str) -> Absolute:
        published = metrics.step_published(self.paper, str(self._rows(claim)), draws, stack)
        return Absolute(stack, published or math.nan, Band.of(draws.stacks[stack].step_s))

    def _off(self, claim: Claim, draws: Sequence[CellDraws]) -> float | None:
        times = [self._absolute(claim, one, stack) for one in draws for stack in self._timed(claim, one)]
        return max((time.off for time in times), default=None)

    def _ids(self, claim: Claim, draws: Sequence[CellDraws]) -> tuple[str, ...]:
        """Return the evidence ids of a statement: the published times that say it, or its own."""
        rows = [(one.cell.row, name) for one in draws for name in self._timed(claim, one)]
        return tuple(row.number_id(name) for row, name in rows if row is not None) or (f"{self.paper.name}/{claim.id}",)

    def _mended(self, claim: Claim, draws: Sequence[CellDraws]) -> Band | None:
        if claim.mended is None or claim.metric in ORDERED:
            return None
        found = [metrics.values(claim, one, claim.mended) for one in draws]
        return Band.of(metrics.aggregate(claim.aggregate or "mean", found)[:, -1])

    def _with_other_costs(self, claim: Claim, draws: Sequence[CellDraws]) -> str:
        """Say what planners that know the cluster's real costs would give, where the paper's did not."""
        experiment = str(claim.experiment)
        if not self._costs(experiment) or claim.metric in ORDERED:
            return ""
        others = [
            self.draws(experiment, replace(one.cell, settings=cell.settings), own_costs=True)
            for one, cell in zip(draws, self._cells(experiment, draws), strict=True)
        ]
        found = metrics.aggregate(claim.aggregate or "mean", [metrics.values(claim, one) for one in others])
        return " to ".join(f"{float(np.median(found[:, column])):.4g}" for column in range(found.shape[1]))

    def _cells(self, experiment: str, draws: Sequence[CellDraws]) -> list[Cell]:
        by_name = {cell.name: cell for cell in cells_of(self.paper, experiment)}
        return [by_name[one.cell.name] for one in draws]


def _summed(claim: Claim, cells: Sequence[CellResult]) -> ClaimResult:
    """Return a claim's result: the worst verdict of the cells that have one, on the weakest evidence of those."""
    judged = [(cell, cell.verdict) for cell in cells if cell.verdict is not None]
    if not cells:
        return ClaimResult(claim, (), Evidence.NONE, Outcome.NOT_JUDGED, "the paper left every cell of it empty")
    if not judged:
        return ClaimResult(claim, tuple(cells), Evidence.FITTED, None, cells[0].evidence_why)
    order = list(Evidence)
    evidence = max((cell.evidence for cell, _ in judged), key=order.index)
    verdict = worst([verdict for _, verdict in judged])
    place = next(cell for cell, found in judged if found is verdict)
    words = verdict.why if len(cells) == 1 else f"{place.name}: {verdict.why}"
    same = sum(found.outcome is verdict.outcome for _, found in judged)
    if len(judged) > 1:
        words = f"{same} of {len(judged)} cells {verdict.outcome}; {words}"
    if len(judged) < len(cells):
        words += f"; {len(cells) - len(judged)} more cells are fitted and not judged"
    if claim.note:
        words += f"; {claim.note}"
    return ClaimResult(claim, tuple(cells), evidence, verdict.outcome, words)
