"""The data of a run's figures, as CSV: what `pictures` draws, and what anybody may draw again."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from orch.experiment import expert_load
from orch.experiment.critical import Place, critical_path
from orch.experiment.outcome import Outcome
from orch.experiment.predict import Forecast
from orch.experiment.quality import smoothed
from orch.plan import Collective
from orch.plan.timeline import Span, Timeline
from orch.simulate import simulate

STEP_TIME = ("stack", "mode", "median_s", "lo_s", "hi_s", "predicted_s", "gain", "gain_lo", "gain_hi", "ceiling_s")
LOSS = ("stack", "seed", "step", "clock_s", "loss", "mean_of_last")
JUDGED = ("stack", "seed", "clock_s", "val_loss", "val_accuracy")
TIMELINES = ("stack", "mode", "stream", "task", "kind", "start_s", "end_s", "critical")
STEPS_SHOWN = 2.0  # of the slowest stack
MOST_ITERATIONS = 64
NO_GAP_S = 1e-9


def figures(document: Mapping[str, Any], forecast: Forecast, outcome: Outcome | None) -> dict[str, str]:
    """Return CSV texts by the name of their figure; a simulated run (no outcome) has no curves of training."""
    found = {
        "step_time": csv_text(STEP_TIME, _step_times(document)),
        "timelines": csv_text(TIMELINES, _timelines(forecast)),
    }
    if outcome is not None:
        found["loss"] = csv_text(LOSS, _losses(outcome))
        found["accuracy"] = csv_text(JUDGED, _judged(outcome))
        if any(run.loads for run in outcome.trained):
            loads = (row for run in outcome.trained for row in expert_load.rows_of(run.stack, run.seed, run.loads))
            found["expert_load"] = csv_text(expert_load.COLUMNS, loads)
    return found


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a CSV text; None is written as nothing, floats in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _step_times(document: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    for name, stack in document["stacks"].items():
        time, gain = stack["step_time_s"], stack["speedup"]
        ratio = (gain["median"], gain["lo"], gain["hi"])
        ceiling = document["ceiling"]["step_time_s"]
        yield (
            name, document["mode"], time["median"], time["lo"], time["hi"], stack["predicted_step_time_s"], *ratio, ceiling,
        )  # fmt: skip


def _losses(outcome: Outcome) -> Iterator[Sequence[object]]:
    for run in outcome.trained:
        for step, row in enumerate(zip(run.clock_s, run.losses, smoothed(run.losses), strict=True)):
            yield (run.stack, run.seed, step, *row)


def _judged(outcome: Outcome) -> Iterator[Sequence[object]]:
    for run in outcome.trained:
        for point in run.judged:
            yield (run.stack, run.seed, *point)


def _timelines(forecast: Forecast) -> Iterator[Sequence[object]]:
    """Yield what runs in a window of each stack, which begins with a forward pass in steady state and is as long for
    all, and what of it is critical.
    """
    longest = STEPS_SHOWN * max(stack.step_time_s.median for stack in forecast.stacks.values())
    for name, stack in forecast.stacks.items():
        settled = 2 * stack.plan.period
        shown = math.ceil(longest / stack.step_time_s.median) + 1
        if shown > MOST_ITERATIONS:
            continue  # a stack so much faster is a grey blur beside the others
        timeline = simulate(stack.plan, forecast.cluster, iterations=settled + shown)
        begin = _forward(timeline, settled)
        critical = critical_path(timeline, begin)
        for stream in sorted({task.stream for step in stack.plan.steps for task in step}):  # compute comes first
            lane = sorted((span for span in timeline.spans() if span.task.stream == stream), key=lambda s: s.start_s)
            for first, last, end_s in _bars(lane, critical):
                start, end, kind = first.start_s - begin, end_s - begin, first.task.op.kind
                if end > max(start, 0.0) and start < longest:
                    task = first.task.name if first is last else f"{first.task.name} .. {last.task.name}"
                    decides = int((first.iteration, first.task.name) in critical)
                    yield name, timeline.mode, stream, task, kind, max(0.0, start), min(longest, end), decides


def _bars(lane: Sequence[Span], critical: Set[Place]) -> Iterator[tuple[Span, Span, float]]:
    """Yield first and last task of each bar, and its end: computing of one kind without a gap is one bar, cut
    where the critical path leaves it; each collective is its own.
    """
    first = last = None
    for span in lane:
        if first is not None and last is not None:
            joins = span.task.op.kind == first.task.op.kind and not isinstance(span.task.op, Collective)
            alike = ((span.iteration, span.task.name) in critical) == ((last.iteration, last.task.name) in critical)
            if joins and alike and span.start_s - last.end_s <= NO_GAP_S:
                last = span
                continue
            yield first, last, last.end_s
        first = last = span
    if first is not None and last is not None:
        yield first, last, last.end_s


def _forward(timeline: Timeline, iteration: int) -> float:
    """Return when the forward pass of `iteration` begins."""
    starts = [span.start_s for span in timeline.spans(iteration) if span.task.op.kind == "forward"]
    return min(starts, default=float(timeline.boundaries[iteration - 1]))
