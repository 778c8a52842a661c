"""How far predicted step times are from emulated ones: `python -m benchmarks.bench_accuracy` (`make bench-accuracy`).

Every model with every stack on every cluster, in one run a model and cluster. A prediction rests on links, layer times
and techniques' own work that the same run measures apart from its training steps (docs/accuracy.md). Bars: median and
95th percentile of the absolute error at 100 and 200 Mbit/s 5 % and 15 %, at 1 Gbit/s 10 % and 25 %. Needs root
(`--on emulate`); `--models`, `--clusters` and `--stacks` choose a part, and the table says how much that is.

`--calibration FILE` names a cluster file that `orch calibrate` wrote, of any of the clusters: beside the run's own
prediction then stands one from its links, carried to the rate of each cluster, with the layer times of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import yaml

from orch.experiment import inputs
from orch.experiment.predict import predict
from orch.recipe import load
from orch.recipe.clusters import load_cluster

# (model, data, batch a worker): many tiny tensors, few large ones, a small convolutional net, a small transformer.
MODELS = {
    "resnet-digits": ("digits8", 32),
    "tiny-tensors": ("digits8", 32),
    "mlp": ("digits8", 32),
    "char-transformer": ("pydoc_text", 4),
}
STACKS: dict[str, list[object]] = {
    "ddp": ["torch-ddp"],
    "wfbp": ["wfbp"],
    "bucketed": ["bucketed"],
    "single": ["single-bucket"],
    "mg-wfbp": ["mg-wfbp"],
    "dear": ["dear"],
    "acp-sgd": ["acp-sgd"],
    "power-sgd": ["power-sgd"],
}
CLUSTERS = ("emulated-4x100mbit", "emulated-4x200mbit", "emulated-4x1gbit")
BARS = {"emulated-4x100mbit": (0.05, 0.15), "emulated-4x200mbit": (0.05, 0.15), "emulated-4x1gbit": (0.10, 0.25)}
PARTS = {"compute": ("compute", "encode_decode"), "communication": ("exposed", "waiting"), "overhead": ("overhead",)}
COLOURS = {"compute": "#2f6fa7", "communication": "#e08214", "overhead": "#7d5ba6"}


@dataclass(frozen=True)
class Cell:
    """One stack of one model on one cluster: seconds a step, and of predicted less measured the seconds of each part."""

    cluster: str
    model: str
    stack: str
    predicted_s: float
    measured_s: float
    residual_s: dict[str, float]
    dominant: str
    carried_s: float | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1.0


def recipe(model: str, cluster: str, stacks: Iterable[str], blocks: int, steps: int) -> str:
    """Return the recipe of one model on one cluster."""
    data, batch = MODELS[model]
    return yaml.safe_dump(
        {
            "orch": 1,
            "name": "accuracy",
            "model": model,
            "data": data,
            "train": {"batch_per_worker": batch, "optimizer": {"sgd": {"lr": 0.01}}},
            "cluster": cluster,
            "stacks": {name: STACKS[name] for name in stacks},
            "baseline": next(iter(stacks)),
            "measure": {"blocks": blocks, "steps": steps, "warmup": 2},
        }
    )


def cells(model: str, cluster: str, options: argparse.Namespace) -> list[Cell]:
    """Run all stacks of one model on one cluster."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accuracy.yaml"
        path.write_text(recipe(model, cluster, options.stacks, options.blocks, options.steps), encoding="utf-8")
        keep = ["--no-track"] if options.calibration is None else ["--runs", f"{folder}/runs"]
        command = [sys.executable, "-m", "orch", "run", str(path), "--on", options.on, "--json", *keep]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{model} on {cluster}: {done.stderr.strip().splitlines()[-1]}")
        carried = {} if options.calibration is None else _carried(path, cluster, options.calibration)
    stacks = json.loads(done.stdout)["stacks"]
    return [_cell(cluster, model, name, stack, carried.get(name)) for name, stack in stacks.items()]


def _carried(path: Path, cluster: str, calibration: Path) -> dict[str, float]:
    """Return the step times that a calibrated cluster predicts, carried to the rate of `cluster`: of the run beside the
    recipe at `path` only the layer times are taken.
    """
    rate = load_cluster(cluster).node(0).rate_bytes_per_s
    chosen = load(path, [f"cluster={calibration.resolve()}", f"cluster.links.inter.shaped={rate:.6g}B/s"])
    (found,) = path.parent.glob(f"runs/**/{inputs.FILE}")
    seen = inputs.from_json(json.loads(found.read_text(encoding="utf-8")), chosen.cluster)
    forecast = predict(chosen, replace(seen, cluster=chosen.cluster))
    return {name: stack.step_time_s.median for name, stack in forecast.stacks.items()}


def _cell(cluster: str, model: str, name: str, stack: dict[str, object], carried_s: float | None) -> Cell:
    predicted, measured = _parts(stack["predicted_breakdown_s"]), _parts(stack["breakdown_s"])
    return Cell(
        cluster,
        model,
        name,
        float(stack["predicted_step_time_s"]),
        float(stack["step_time_s"]["median"]),
        {part: predicted[part] - measured[part] for part in PARTS},
        max(measured, key=measured.__getitem__),
        carried_s,
    )


def _parts(found: dict[str, float] | None) -> dict[str, float]:
    classes = found or {}
    return {
        part: sum(seconds for name, seconds in classes.items() if name.split(":")[0] in names)
        for part, names in PARTS.items()
    }


def percentile_95(values: Sequence[float]) -> float:
    """Return the smallest value that 95 % do not exceed."""
    return sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]


def say(found: Sequence[Cell]) -> bool:
    """Print every cell and the figures of each cluster; tell whether every bar is met."""
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}; measured on emulated links"
    )
    print(f"{'cluster':<20} {'model':<17} {'stack':<10} {'measured':>10} {'predicted':>10} {'error':>7}   "
          "of it compute, communication, overhead [ms]; from the calibration")  # fmt: skip
    for cell in found:
        parts = ", ".join(f"{1e3 * cell.residual_s[part]:+.1f}" for part in PARTS)
        carried = "" if cell.carried_s is None else f"; {100 * (cell.carried_s / cell.measured_s - 1.0):+.1f} %"
        print(f"{cell.cluster:<20} {cell.model:<17} {cell.stack:<10} {1e3 * cell.measured_s:7.1f} ms "
              f"{1e3 * cell.predicted_s:7.1f} ms {100 * cell.error:+6.1f} %   {parts}{carried}")  # fmt: skip
    met = True
    for cluster in dict.fromkeys(cell.cluster for cell in found):
        here = [cell for cell in found if cell.cluster == cluster]
        bars = BARS.get(cluster, (0.10, 0.25))
        middle, high = _figures([cell.error for cell in here])
        met &= middle <= bars[0] and high <= bars[1]
        verdict = "" if middle <= bars[0] and high <= bars[1] else "  MISSED"
        print(f"{cluster}: median {100 * middle:.1f} % (bar {100 * bars[0]:.0f} %), p95 {100 * high:.1f} % "
              f"(bar {100 * bars[1]:.0f} %), {len(here)} cells{verdict}")  # fmt: skip
        carried = [cell.carried_s / cell.measured_s - 1.0 for cell in here if cell.carried_s is not None]
        if carried:
            middle, high = _figures(carried)
            print(f"  from the calibration: median {100 * middle:.1f} %, p95 {100 * high:.1f} %")
        shares = {part: median(abs(cell.residual_s[part]) / cell.measured_s for cell in here) for part in PARTS}
        print(
            "  of the step, the median residual in " + ", ".join(f"{part} {100 * shares[part]:.1f} %" for part in PARTS)
        )
    whole = len(MODELS) * len(STACKS) * len(CLUSTERS)
    print(f"{len(found)} cells of {whole}")
    return met


def _figures(errors: Sequence[float]) -> tuple[float, float]:
    """Return median and 95th percentile of the absolute errors."""
    absolute = [abs(error) for error in errors]
    return median(absolute), percentile_95(absolute)


def draw(found: Sequence[Cell], path: Path) -> None:
    """Draw predicted over measured, logarithmic, coloured by what dominates the measured step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    for part, colour in COLOURS.items():
        mine = [cell for cell in found if cell.dominant == part]
        axes.scatter(
            [cell.measured_s for cell in mine], [cell.predicted_s for cell in mine], s=14, c=colour, label=part
        )
    ends = [min(cell.measured_s for cell in found), max(cell.measured_s for cell in found)]
    axes.plot(ends, ends, color="#333333", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured step time, s", ylabel="predicted step time, s")
    axes.legend(title="most of a step is")
    figure.savefig(path, dpi=160)


def _kept(path: Path | None) -> list[Cell]:
    if path is None or not path.exists():
        return []
    return [Cell(**cell) for cell in json.loads(path.read_text(encoding="utf-8"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid, or a part of it; exit 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="emulate")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument("--stacks", nargs="+", default=list(STACKS), choices=list(STACKS))
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--figure", type=Path, help="draw the scatter into this file")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="a cluster file written by orch calibrate")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="add to the cells in this file, and run none of them again"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = _kept(options.keep)
    for cluster in options.clusters:
        for model in options.models:
            if {(cell.model, cell.stack) for cell in found if cell.cluster == cluster} >= {
                (model, stack) for stack in options.stacks
            }:
                continue
            found += cells(model, cluster, options)
            if options.keep is not None:
                options.keep.write_text(json.dumps([asdict(cell) for cell in found], indent=1), encoding="utf-8")
    if options.figure is not None:
        draw(found, options.figure)
    if options.json:
        print(json.dumps({"cells": [asdict(cell) for cell in found]}))
        return 0
    return 0 if say(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
