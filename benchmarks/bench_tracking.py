"""What tracking costs a training: `python -m benchmarks.bench_tracking`. Bar: step time at most 1.02 of that without.

One gang trains one stack again and again, with and without tracking by turns; every tracked run starts its own index
process, so MLflow's import and the making of its store fall into the measured blocks. The figure is the median over
blocks of the ratio of step times, with a t interval; beside it the driver's own time a step to hand steps over.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from orch.experiment.execute import Execution
from orch.experiment.show import Quiet
from orch.experiment.statistics import compare
from orch.gang import Gang, end_all, make_gang
from orch.recipe import Recipe, load
from orch.track.directory import Facts
from orch.track.steps import Step
from orch.track.tracker import Tracker

BAR = 1.02
RECIPE = """\
orch: 1
name: tracking
model: resnet-digits
data: digits8
train: {{batch_per_worker: 32, optimizer: {{sgd: {{lr: 0.05}}}}}}
cluster: {{use: local-4, nodes: 1, devices_per_node: {workers}}}
stacks: {{ddp: [torch-ddp]}}
baseline: ddp
measure: {{blocks: {blocks}, steps: {steps}, warmup: 5}}
on: local
"""


def block_times_s(recipe: Recipe, gang: Gang, root: Path, *, tracked: bool) -> list[float]:
    """Train once and return the step time [s] of each block."""
    tracker = Tracker(root, enabled=tracked)
    facts = Facts(recipe.name, "measured", tuple(recipe.stacks), seeds=recipe.seeds)
    try:
        with tracker.run(facts, recipe.resolved(), recipe.origins()) as run:
            run.start()
            outcome = Execution(recipe, gang, run, Quiet()).all()
            run.finish({})
    finally:
        tracker.close()
    return outcome.trained[0].block_times_s


def handing_over_s(root: Path, batch: int = 20, batches: int = 500) -> float:
    """Return the driver's time [s] a step to hand steps over in batches: what a tracked step costs before the disk."""
    steps = [Step(number, 0, 1.0 / (1 + number), 0.1123, 0.1123 * number) for number in range(batch)]
    times = []
    with Tracker(root, index=False).run(Facts("cost", "measured", ("a",)), {}) as run:
        log = run.stack("a")
        for _ in range(batches):
            begin = perf_counter()
            log.log_steps(steps)
            times.append((perf_counter() - begin) / batch)
        run.finish({})
    return median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pairs; print a line, or JSON with --json. Returns 1 when the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        root, file = Path(folder) / "runs", Path(folder) / "tracking.yaml"
        file.write_text(RECIPE.format(**vars(options)), encoding="utf-8")
        recipe = load(str(file), [])
        with make_gang("processes", options.workers, threads=1) as gang:
            block_times_s(recipe, gang, root, tracked=False)  # loads everything once
            for pair in range(options.pairs):
                for tracked in (True, False) if pair % 2 == 0 else (False, True):
                    found[tracked] += block_times_s(recipe, gang, root, tracked=tracked)
        cost_s = handing_over_s(root)
    end_all()
    ratio = compare(found[True], found[False])
    result = {
        "step_s": {"tracked": median(found[True]), "untracked": median(found[False])},
        "ratio": {"median": ratio.median, "lo": ratio.lo, "hi": ratio.hi, "n": ratio.n},
        "handing_over_s": cost_s,
        "bar": BAR,
        "machine": platform.platform(),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"tracked {1e3 * median(found[True]):.2f} ms  untracked {1e3 * median(found[False]):.2f} ms  "
            f"ratio {ratio.median:.3f} [{ratio.lo:.3f}, {ratio.hi:.3f}], n={ratio.n}, bar {BAR}  "
            f"handing over {1e6 * cost_s:.1f} us a step"
        )
    return 0 if ratio.median <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
