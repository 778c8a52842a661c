"""The data behind the figures of a report, as tables: read from a run's directory, or simulated from what it kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from orch.cluster import Cluster
from orch.errors import OrchError
from orch.experiment import inputs as kept
from orch.experiment.breakdown import ordered
from orch.experiment.figures import csv_text
from orch.experiment.predict import Inputs, described
from orch.experiment.quality import smoothed
from orch.experiment.what_if import Cell, bit_per_s, explore
from orch.recipe import Recipe, load
from orch.report.compare import Comparison, Pair, comparison
from orch.report.stored import StoredRun, StoredStack
from orch.simulate import simulate
from orch.track import directory, encoding
from orch.track.steps import read_steps, read_values

FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0)
LARGEST = 512  # workers of the regime map, where a cluster has several nodes; one node is not made that large
LARGEST_NODE = 64


@dataclass(frozen=True)
class Table:
    """Rows under columns; `csv` is what is kept of it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    @property
    def csv(self) -> str:
        """The rows as CSV text."""
        return csv_text(self.columns, self.rows)

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Subject:
    """The run that a report is about. `siblings` are measured runs of the same experiment at other sizes."""

    run: StoredRun
    siblings: tuple[StoredRun, ...] = ()
    lacks: list[str] = field(default_factory=list)

    @cached_property
    def comparison(self) -> Comparison | None:
        """Every stack that finished a block against the baseline; None where there are not two."""
        try:
            base = self.run.stack(self.run.baseline)
            return (
                comparison([base, *filter(has_time, self.run.stacks.values())], anyway=True) if has_time(base) else None
            )
        except OrchError as error:
            self.lacks.append(error.message)
            return None

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe, loaded again; None where something it names is not installed here."""
        try:
            return load(self.run.directory.path / "recipe.yaml")
        except OrchError as error:
            self.lacks.append(f"its recipe cannot be loaded here, so nothing is simulated from it: {error.message}")
            return None

    @cached_property
    def inputs(self) -> Inputs | None:
        """What its predictions computed with; None where that was not kept and cannot be described again."""
        data = encoding.read_json(self.run.directory.path / kept.FILE)
        try:
            if data:
                return kept.from_json(data, self.run.cluster)
            if self.recipe is None:
                return None
            if not self.run.simulated:
                self.lacks.append("the run did not keep its inputs: other clusters are simulated from the cluster file")
            return described(self.recipe)
        except (OrchError, AttributeError, KeyError, TypeError, ValueError):
            self.lacks.append("its inputs cannot be read by this version, so nothing is simulated from them")
            return None

    @property
    def cluster(self) -> Cluster:
        """The cluster with its links as measured, where they were."""
        return self.run.cluster if self.inputs is None else self.inputs.cluster

    @cached_property
    def cells(self) -> list[Cell]:
        """Every stack on other sizes and links, simulated."""
        if self.recipe is None or self.inputs is None:
            return []
        most = LARGEST if self.cluster.nodes > 1 else LARGEST_NODE
        sizes = sorted({2**power for power in range(10)} | {self.run.workers})
        return explore(
            self.recipe, self.inputs, [size for size in sizes if size <= max(most, self.run.workers)], FACTORS
        )

    @cached_property
    def star(self) -> StoredStack:
        """The stack that is shown beside the baseline: the fastest other one."""
        others = [stack for stack in self.run.stacks.values() if stack.name != self.run.baseline and has_time(stack)]
        return min(others, key=lambda stack: stack.step_time_s, default=self.run.stack(self.run.baseline))

    def pairs(self) -> Iterator[Pair]:
        """Yield every stack against the baseline."""
        yield from self.comparison.pairs if self.comparison is not None else ()


def subject(root: Path, run: StoredRun) -> Subject:
    """Return the subject of a report on `run`, with measured runs under `root` that differ from it only in workers."""
    found = []
    for other in directory.find_all(root):
        one = StoredRun(other)
        alike = one.facts.get("recipe") == run.facts.get("recipe") and one.recipe.get("model") == run.recipe.get(
            "model"
        )
        if alike and not one.simulated and one.results.get("stacks") and one.workers != run.workers:
            found.append(one)
    return Subject(run, tuple(found))


def speedup(about: Subject) -> Table:
    """Gain of every stack over the baseline, with its interval or range, and what it could at most be."""
    free = about.cluster.communication_free()
    base = about.run.stack(about.run.baseline)
    times = {stack.name: stack for stack in about.run.stacks.values() if has_time(stack)}
    rows: list[tuple[object, ...]] = []
    predicted = simulate(base.plan, about.cluster).step_time_s  # of the plans as kept: both ends by the same figures
    by_name = {pair.own.name: pair for pair in about.pairs()}
    for name, stack in times.items():
        ceiling = simulate(stack.plan, free).step_time_s
        limit = predicted / ceiling if ceiling > 0 else None
        if name == base.name:
            rows.append((name, about.run.mode, 1.0, None, None, None, len(stack.block_times_s), limit, stack.lossless))
            continue
        pair = by_name.get(name)
        if pair is None:
            continue  # the baseline finished no block
        found = pair.speedup or pair.range
        low, high = (found.lo, found.hi) if found is not None else (None, None)
        told = pair.speedup.distinguishable if pair.speedup is not None else None
        middle = found.median if found is not None else base.step_time_s / stack.step_time_s
        rows.append((name, about.run.mode, middle, low, high, told, len(stack.block_times_s), limit, stack.lossless))
    columns = ("stack", "mode", "gain", "lo", "hi", "distinguishable", "n", "ceiling_gain", "lossless")
    return Table(columns, tuple(rows))


def breakdowns(about: Subject) -> Table:
    """Seconds a step of every class of time, by stack."""
    stacks = [stack for stack in about.run.stacks.values() if stack.breakdown_s]
    names = ordered(name for stack in stacks for name in stack.breakdown_s)
    rows = tuple(
        (stack.name, about.run.mode, name, stack.breakdown_s.get(name, 0.0)) for stack in stacks for name in names
    )
    return Table(("stack", "mode", "class", "seconds_a_step"), rows)


def timelines(about: Subject) -> Table:
    """What runs when, in the baseline and beside it; predicted with the critical path, and as recorded."""
    shown = list(dict.fromkeys([about.run.baseline, about.star.name]))
    rows: list[tuple[object, ...]] = []
    predicted = _csv_rows(about.run.directory.path / "figures" / "timelines.csv")
    for name in shown:
        mine = [row for row in predicted if row["stack"] == name]
        for row in mine:
            figures = (float(row["start_s"]), float(row["end_s"]), int(row.get("critical") or 0))
            rows.append((name, row["mode"], row["stream"], row["task"], row["kind"], *figures))
        length = max((float(row["end_s"]) for row in mine), default=math.inf)
        rows += _recorded(about.run.stacks[name], length)
    return Table(("stack", "mode", "stream", "task", "kind", "start_s", "end_s", "critical"), tuple(rows))


def _recorded(stack: StoredStack, length_s: float) -> Iterator[tuple[object, ...]]:
    """Yield the bars that rank 0 recorded, from its first forward pass on; nothing where it recorded no collective."""
    try:
        events = json.loads((stack.folder / "trace.json").read_text("utf-8"))["traceEvents"]
    except (OSError, ValueError, KeyError):
        return
    processes = {e["pid"]: str(e["args"]["name"]) for e in events if e["name"] == "process_name"}
    lanes = {(e["pid"], e["tid"]): str(e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    recorded = {number for number, name in processes.items() if name.endswith(("(measured)", "(emulated)"))}
    mine = [e for e in events if e["ph"] == "X" and e["pid"] in recorded and isinstance(e["ts"], int | float)]
    if not any(lanes[e["pid"], e["tid"]].startswith("net.") for e in mine):
        return
    begin = min((e["ts"] for e in mine if e["cat"] == "forward"), default=0.0)
    for event in sorted(mine, key=lambda e: (lanes[e["pid"], e["tid"]], e["ts"])):
        start, end = (event["ts"] - begin) / 1e6, (event["ts"] - begin + event["dur"]) / 1e6
        if end > 0 and start < length_s:
            lane = lanes[event["pid"], event["tid"]]
            yield (
                stack.name, stack.run.mode, lane, event["name"], event["cat"], max(0.0, start), min(end, length_s), 0,
            )  # fmt: skip


def scaling(about: Subject) -> Table:
    """Throughput of all workers by their number: simulated, and as measured in this run and its siblings."""
    rows: list[tuple[object, ...]] = []
    # A measured step is held against a measured one: over a simulated one it would show the prediction's error.
    alone = {
        (cell.stack, "simulated"): cell.step_time_s for cell in about.cells if cell.workers == 1 and cell.factor == 1.0
    }
    for run in (about.run, *about.siblings):
        if run.workers == 1 and not run.simulated:
            alone |= {(name, run.mode): one.step_time_s for name, one in run.stacks.items() if has_time(one)}

    def row(stack: str, mode: str, workers: int, seconds: float) -> tuple[object, ...]:
        batch, one = about.run.batch_per_worker(stack), alone.get((stack, mode))
        samples = workers // about.run.sharers * batch
        return stack, mode, workers, seconds, samples / seconds, None if one is None else one / seconds

    for cell in about.cells:
        if cell.factor == 1.0:
            rows.append(row(cell.stack, "simulated", cell.workers, cell.step_time_s))
    for run in sorted((about.run, *about.siblings), key=lambda one: one.workers):
        for stack in run.stacks.values() if not run.simulated else ():
            if has_time(stack) and stack.name in about.run.stacks:
                rows.append(row(stack.name, run.mode, run.workers, stack.step_time_s))
    if len({found[2] for found in rows}) < 2:
        rows.clear()  # one size is no curve
    return Table(("stack", "mode", "workers", "step_time_s", "samples_per_s", "efficiency"), tuple(rows))


def regime(about: Subject) -> Table:
    """Every stack's step time over workers and bandwidth; `own` marks the cluster of the run."""
    base = bit_per_s(about.cluster)
    rows = tuple(
        (
            cell.workers,
            cell.factor,
            None if base is None else base * cell.factor,
            cell.stack,
            cell.step_time_s,
            int(cell.workers == about.run.workers and cell.factor == 1.0),
        )
        for cell in about.cells
        if cell.workers > 1
    )
    return Table(("workers", "factor", "bit_per_s", "stack", "step_time_s", "own"), rows)


def target(about: Subject) -> Table:
    """The curve that quality is judged by, over the stack's own clock and over the bytes that a worker has sent."""
    asked = about.run.recipe.get("target") or {}
    metric = str(asked.get("metric") or "loss")
    rows: list[tuple[object, ...]] = []
    for stack in about.run.stacks.values() if not about.run.simulated else ():
        sent = float(stack.result.get("wire_bytes_per_worker") or 0.0)
        for seed in about.run.seeds:
            for step, clock, value in _curve(stack, seed, metric):
                rows.append((stack.name, seed, metric, step, clock, sent * step, value, asked.get("reach")))
    return Table(("stack", "seed", "metric", "steps", "clock_s", "sent_bytes", "value", "reach"), tuple(rows))


def _curve(stack: StoredStack, seed: int, metric: str) -> Iterator[tuple[int, float, float]]:
    if metric == "loss":
        steps = [step for step in read_steps(stack.folder / f"steps.seed{seed}.csv") if step.loss is not None]
        means = smoothed([float(step.loss or 0.0) for step in steps])
        yield from ((step.step + 1, step.clock_s, mean) for step, mean in zip(steps, means, strict=True))
    else:
        for value in read_values(stack.folder / f"values.seed{seed}.csv"):
            if value.name == metric:
                yield value.step, value.clock_s, value.value


def pareto(about: Subject) -> Table:
    """Step time against what it costs: the loss after equally many steps, or for a simulated run the bytes sent."""
    simulated = about.run.simulated
    cost = "wire_bytes_per_worker" if simulated else "loss"
    points: list[tuple[str, float, float]] = []
    for stack in about.run.stacks.values():
        value = stack.result.get("wire_bytes_per_worker") if simulated else (stack.result.get("loss") or {}).get("last")
        if value is not None and has_time(stack):
            points.append((stack.name, stack.step_time_s, float(value)))
    rows = tuple((name, about.run.mode, x, cost, y, int(_undominated(x, y, points))) for name, x, y in points)
    return Table(("stack", "mode", "step_time_s", "cost", "value", "front"), rows)


def _undominated(x: float, y: float, points: Iterable[tuple[str, float, float]]) -> bool:
    if math.isnan(y):
        return False
    return not any(a <= x and b <= y and (a < x or b < y) for _, a, b in points)


def prediction(about: Subject) -> Table:
    """Predicted against measured: each stack's step, and each class of time in it. Empty for a simulated run."""
    rows: list[tuple[object, ...]] = []
    for stack in about.run.stacks.values() if not about.run.simulated else ():
        predicted = stack.result.get("predicted_step_time_s")
        if predicted is None or not has_time(stack):
            continue
        rows.append((stack.name, "step", stack.step_time_s, float(predicted)))
        parts: Mapping[str, float] = stack.result.get("predicted_breakdown_s") or {}
        for name in ordered([*parts, *stack.breakdown_s]) if stack.breakdown_s else ():
            rows.append((stack.name, name, stack.breakdown_s.get(name, 0.0), parts.get(name, 0.0)))
    return Table(("stack", "what", "measured_s", "predicted_s"), tuple(rows))


def has_time(stack: StoredStack) -> bool:
    """Return whether there is a step time to show: a finished block, or a prediction."""
    return bool(stack.block_times_s) or (stack.run.simulated and bool(stack.result))


def _csv_rows(path: Path) -> Sequence[dict[str, str]]:
    import csv

    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []
