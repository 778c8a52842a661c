"""`orch plan`: predict one step of every stack; nothing is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.commands import Panel
from orch.commands._options import Json, Overrides, RecipeName

if TYPE_CHECKING:
    from orch.experiment.predict import Forecast, StackForecast
    from orch.recipe import Recipe

PANEL = Panel.EXPERIMENT
COLUMNS = """range: what the figures it rests on leave open; exposed: time beyond the same plan with communication free
payload: what a worker hands to collectives, on the wire: what it sends, both a step; memory: the most a worker holds"""


def command(
    recipe: RecipeName,
    overrides: Overrides = None,
    scale: Annotated[
        str | None, typer.Option(metavar="WORKERS,..", help="Predict at these world sizes too: --scale 32,64.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the timelines as a trace for ui.perfetto.dev.")
    ] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Show how the plans of two stacks differ.")
    ] = None,
    as_json: Json = False,
) -> object:
    """Predict one step of every stack: time, gain, exposed communication, bytes, memory. Starts nothing."""
    from orch.experiment import trace as traces
    from orch.experiment.predict import predict, predict_scales
    from orch.recipe import load

    found = load(recipe, overrides or [])
    forecast = predict(found)
    differences = _differences(forecast, *diff) if diff is not None else None
    scales = predict_scales(recipe, overrides or [], scale) if scale is not None else {}
    if trace is not None:
        traces.write_trace(trace, traces.trace({name: stack.timeline for name, stack in forecast.stacks.items()}))
    if as_json:
        document = _document(forecast)
        if kept := _measured_cells(found):
            document["cached"] = kept
        if found.faults:
            from orch.experiment.fault_costs import costs

            document["faults"] = costs(found, forecast)
        if scales:
            document["scales"] = {str(workers): _document(other) for workers, other in scales.items()}
        return document if differences is None else document | {"diff": differences}
    if differences is not None:
        _say_lines(differences)
    else:
        _say_forecast(forecast)
        _say_faults(found, forecast)
        _say_cells(_measured_cells(found))
    if found.spec.uncertain:
        _say_uncertain(list(found.spec.uncertain))
    if scales:
        _say_scales(scales)
    if trace is not None:
        from orch.commands._output import say

        say(f"\ntrace: {trace} (open it at ui.perfetto.dev)")
    return None


def _measured_cells(recipe: Recipe) -> dict[str, Mapping[str, Any]]:
    """Return the stacks that a sweep has measured exactly as they are, which it would not run again."""
    from orch.track.settings import runs_root

    root = runs_root()
    if not (root / ".cells").is_dir():
        return {}
    from orch.experiment.outcome import mode_of
    from orch.sweep.cells import cached

    on = recipe.on or "local"
    return cached(recipe, root, on, mode_of(on))


def _say_cells(cells: Mapping[str, Mapping[str, Any]]) -> None:
    from orch.commands._output import say
    from orch.sweep.metrics import key, shown

    if cells:
        say("\nmeasured by a sweep, and not run again by one:")
    for name, cell in cells.items():
        told = ", ".join(f"{metric} {shown(key(metric), value)}" for metric, value in cell["values"].items())
        say(f"  {name}: {told}")


def _differences(forecast: Forecast, old: str, new: str) -> list[str]:
    from orch.errors import OrchError, did_you_mean
    from orch.plan import diff

    for name in (old, new):
        if name not in forecast.stacks:
            hint = did_you_mean(name, forecast.stacks) or f"stacks: {', '.join(forecast.stacks)}"
            raise OrchError(f"--diff: {name!r} is no stack of {forecast.recipe}", code="E233", hint=hint)
    return diff(forecast.stacks[old].plan, forecast.stacks[new].plan) or [f"the plans of {old} and {new} are equal"]


def _document(forecast: Forecast) -> dict[str, object]:
    return {
        "recipe": forecast.recipe,
        "cluster": forecast.cluster.name,
        "workers": forecast.cluster.world_size,
        "mode": "simulated",
        "baseline": forecast.baseline,
        "ceiling": {"step_time_s": forecast.ceiling_s, "speedup": forecast.ceiling_speedup},
        "stacks": {name: _stack_document(forecast, stack) for name, stack in forecast.stacks.items()},
    }


def _stack_document(forecast: Forecast, stack: StackForecast) -> dict[str, object]:
    band = stack.step_time_s
    return {
        "step_time_s": {"median": band.median, "lo": band.lo, "hi": band.hi},
        "speedup": forecast.speedup(stack.name),
        "compute_s": stack.compute_s,
        "exposed_communication_s": stack.exposed_communication_s,
        "payload_bytes_per_worker": stack.footprint.payload,
        "wire_bytes_per_worker": stack.footprint.wire,
        "peak_memory_bytes": stack.footprint.peak_memory,
        "lossless": stack.lossless,
        "basis": stack.basis,
        "passes": stack.passes,
        "buckets": [
            {"tensors": bucket.tensors, "bytes": bucket.nbytes, "collective": bucket.collective, "step": bucket.step}
            for bucket in stack.buckets
        ],
        "tasks": sum(len(step) for step in stack.plan.steps),
    }


def _say_faults(recipe: Recipe, forecast: Forecast) -> None:
    from orch.commands._output import say, table
    from orch.experiment.fault_costs import costs
    from orch.experiment.tables import faults_of

    if recipe.faults:
        say("\nwhat its faults cost (simulated), beside the time to make new workers:\n")
        say(table(*faults_of(costs(recipe, forecast))))


def _say_uncertain(paths: Sequence[str]) -> None:
    from orch.commands._output import say

    say(f"\ntaken as the recipe states them, though it calls them uncertain: {', '.join(paths)}")


def _say_lines(lines: Sequence[str]) -> None:
    from orch.commands._output import say

    for line in lines:
        say(line)


def _say_forecast(forecast: Forecast) -> None:
    from orch.commands._output import say, table
    from orch.experiment.draw import draw, legend
    from orch.units import format_bytes, format_count, format_seconds

    say(
        f"{forecast.recipe} on {forecast.cluster.name}, {format_count(forecast.cluster.world_size, 'worker')} (simulated)"
    )
    say(
        f"if communication were free: {format_seconds(forecast.ceiling_s)} a step, "
        f"{forecast.ceiling_speedup:.2f}x over {forecast.baseline}; no exact schedule can beat that here\n"
    )
    headers = ["stack", "step time", "range", "gain", "exposed", "payload", "on the wire", "memory", "", "buckets"]
    rows = [
        [
            name,
            format_seconds(stack.step_time_s.median),
            f"{format_seconds(stack.step_time_s.lo)} - {format_seconds(stack.step_time_s.hi)}",
            "baseline" if name == forecast.baseline else f"{forecast.speedup(name):.2f}x",
            format_seconds(stack.exposed_communication_s),
            format_bytes(stack.footprint.payload),
            format_bytes(stack.footprint.wire),
            format_bytes(stack.footprint.peak_memory),
            "exact" if stack.lossless else "lossy",
            len(stack.buckets),
        ]
        for name, stack in forecast.stacks.items()
    ]
    say(table(headers, rows))
    say(f"\n{COLUMNS}")
    say()
    for line in _bases(forecast):
        say(line)
    drawn: list[str] = []
    for name, stack in forecast.stacks.items():
        timeline = draw(stack.timeline)
        drawn += timeline
        say(f"\n{name}")
        for line in (*stack.passes, *_bucket_lines(stack), *timeline):
            say(f"  {line}")
    say(f"\n{legend(drawn)}")


def _bases(forecast: Forecast) -> list[str]:
    """Return what the predictions rest on, a line each basis, with the stacks where they differ."""
    stacks: dict[str, list[str]] = {}
    for name, stack in forecast.stacks.items():
        stacks.setdefault(stack.basis, []).append(name)
    if len(stacks) == 1:
        return [f"rests on: {basis}" for basis in stacks]
    return [f"{', '.join(names)} rest{'s' * (len(names) == 1)} on: {basis}" for basis, names in stacks.items()]


def _bucket_lines(stack: StackForecast, most: int = 6) -> list[str]:
    """Name the first buckets; the JSON document has all of them."""
    from orch.units import format_bytes

    lines = []
    for number, bucket in enumerate(stack.buckets[:most]):
        first, last = (_end_of(bucket.tensors[place]) for place in (0, -1))
        names = first if len(bucket.tensors) == 1 else f"{first} .. {last} ({len(bucket.tensors)})"
        lines.append(f"bucket {number}: {bucket.collective} of {format_bytes(bucket.nbytes)}, {names}")
    if len(stack.buckets) > most:
        lines.append(f"... and {len(stack.buckets) - most} more (--json has all)")
    return lines


def _end_of(name: str, most: int = 36) -> str:
    """Return a long name without its beginning, which neighbours share."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _say_scales(scales: Mapping[int, Forecast]) -> None:
    from orch.commands._output import say, table
    from orch.units import format_seconds

    names = list(next(iter(scales.values())).stacks)
    rows = []
    for workers, forecast in scales.items():
        cells = [
            f"{format_seconds(forecast.stacks[name].step_time_s.median)} ({forecast.speedup(name):.2f}x)"
            for name in names
        ]
        rows.append([workers, f"{forecast.ceiling_speedup:.2f}x", *cells])
    say("\nat other sizes (simulated):\n")
    say(table(["workers", "ceiling", *names], rows))
