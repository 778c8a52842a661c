"""What checkpoints cost a training: `python -m benchmarks.bench_checkpoints`. Bar: step time at most 1.02 of that without.

One gang trains the same stack twice, in shuffled blocks: once with a checkpoint after every block, once without. Timed
steps wait for none, for a checkpoint lies between two blocks; what they may feel is the thread that writes it meanwhile.
Beside the ratio: how long training stands still for one (the copy of the state, and what ranks hold alike), and its bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from orch.experiment.execute import Execution
from orch.experiment.show import Quiet
from orch.experiment.statistics import compare
from orch.gang import end_all, make_gang
from orch.recipe import load
from orch.runtime import keep
from orch.track.directory import Facts
from orch.track.tracker import Tracker

BAR = 1.02
RECIPE = """\
orch: 1
name: checkpoints
model: {model}
data: {data}
train: {{batch_per_worker: {batch}, optimizer: {{sgd: {{lr: 0.01, momentum: 0.9}}}}}}
cluster: {{use: local-4, devices_per_node: {workers}}}
stacks: {{none: [bucketed], kept: [bucketed]}}
baseline: none
when: {{kept: {{train: {{checkpoint: {{every: {steps}}}}}}}}}
measure: {{blocks: {blocks}, steps: {steps}, warmup: {steps}}}
"""


class Timed:
    """A gang that remembers how long each call took that took a checkpoint."""

    def __init__(self, gang: Any) -> None:
        self._gang = gang
        self.saves_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gang, name)

    def call(self, function: Callable[..., Any], *args: Any, **named: Any) -> list[Any]:
        """Do as the gang does."""
        begin = perf_counter()
        found: list[Any] = self._gang.call(function, *args, **named)
        if function is keep.save:
            self.saves_s.append(perf_counter() - begin)
        return found


def measured(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Run the two stacks and return the figures."""
    file = root / "checkpoints.yaml"
    file.write_text(RECIPE.format(**vars(options)), encoding="utf-8")
    recipe = load(str(file), [])
    facts = Facts(recipe.name, "measured", tuple(recipe.stacks), seeds=recipe.seeds)
    with (
        make_gang("processes", options.workers, threads=1) as gang,
        Tracker(root / "runs", index=False).run(facts, recipe.resolved(), recipe.origins()) as run,
    ):
        run.start()
        timed = Timed(gang)
        outcome = Execution(recipe, timed, run, Quiet()).all()  # type: ignore[arg-type]
        run.finish({})
        assert run.path is not None
        (marker,) = (run.path / "checkpoints" / "kept").glob("seed0/step-*/complete.json")
        nbytes = sum(json.loads(marker.read_text(encoding="utf-8"))["bytes"])
    times = {name: outcome.of(name)[0].block_times_s for name in recipe.stacks}
    ratio = compare(times["kept"], times["none"])
    return {
        "step_s": {name: median(values) for name, values in times.items()},
        "ratio": {"median": ratio.median, "lo": ratio.lo, "hi": ratio.hi, "n": ratio.n},
        "stands_still_s": median(timed.saves_s),
        "checkpoints": len(timed.saves_s),
        "bytes": nbytes,
        "bar": BAR,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the blocks; print a line, or JSON with --json. Returns 1 when the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet-digits")
    parser.add_argument("--data", default="digits8")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options, Path(folder))
    end_all()
    if options.json:
        print(json.dumps(found))
    else:
        step, ratio = found["step_s"], found["ratio"]
        print(
            f"{options.model}, {options.workers} workers, a checkpoint of {found['bytes'] / 1e6:.2f} MB every {options.steps} "
            f"steps ({found['checkpoints']} in all); {found['machine']}"
        )
        print(
            f"with {1e3 * step['kept']:.2f} ms  without {1e3 * step['none']:.2f} ms  ratio {ratio['median']:.3f} "
            f"[{ratio['lo']:.3f}, {ratio['hi']:.3f}], n={ratio['n']}, bar {BAR}  "
            f"training stands still for {1e3 * found['stands_still_s']:.1f} ms a checkpoint"
        )
    return 0 if found["ratio"]["median"] <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
