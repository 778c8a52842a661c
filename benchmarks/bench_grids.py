"""What the papers' grids of layers cost: `python -m benchmarks.bench_grids`, every stack of each grid's recipe.

Bar: a whole grid in at most 5 s on 2 cores, by the clock, so on a machine that does nothing else; the CPU seconds of this
process and of those it forks stand beside it, which other work stretches less. Medians of the repeats. Beside them
how much faster each paper's schedule is than its baseline, over the grid's layers: simulated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from orch.recipe import load as load_recipe
from orch.reproduce.evaluate import CellDraws
from orch.reproduce.grid import evaluate_grid
from orch.reproduce.paper import find, load, recipe_path

BAR_S = 5.0
# Of each paper the experiment that is its grid, the schedule that is its own, and what it is compared with.
GRIDS = (
    ("fsmoe", "a", "fsmoe", "tutel"),
    ("fsmoe", "b", "fsmoe", "tutel"),
    ("parm", "layers", "parm", "deepspeed"),
    ("schemoe", "layers", "schemoe", "naive"),
    ("mast", "layers", "mast", "pipemoe"),
    ("pipemoe", "layers", "pipemoe", "whole"),
    ("sp-moe", "layers", "sp-moe", "pipemoe"),
)


@dataclass(frozen=True)
class Figure:
    """One grid: its layers and stacks, seconds, and the speed-up over its layers (least, quartiles, most)."""

    name: str
    layers: int
    stacks: tuple[str, ...]
    clock_s: float
    cpu_s: float
    compared: str
    speedup: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether the bar is met."""
        return self.clock_s <= BAR_S


def measured(paper: str, experiment: str, ours: str, base: str, repeats: int) -> Figure:
    """Run a grid, and time it."""
    loaded = load(find(paper))
    stacks = tuple(load_recipe(recipe_path(loaded, experiment), []).stacks)
    taken: list[tuple[float, float]] = []
    found: list[CellDraws] = []
    for _ in range(repeats):
        begin = _spent()
        found = evaluate_grid(loaded, experiment, stacks)
        end = _spent()
        taken.append((end[0] - begin[0], end[1] - begin[1]))
    ratios = [np.median(one.stacks[base].step_s / one.stacks[ours].step_s) for one in found]
    spread = tuple(float(value) for value in np.percentile(ratios, (0, 25, 50, 75, 100)))
    clock_s, cpu_s = (median(times) for times in zip(*taken, strict=True))
    return Figure(f"{paper} {experiment}", len(found), stacks, clock_s, cpu_s, f"{ours} over {base}", spread)


def _spent() -> tuple[float, float]:
    """Return the clock, and the CPU seconds of this process and its children so far."""
    times = os.times()
    return time.perf_counter(), times.user + times.system + times.children_user + times.children_system


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a grid, or JSON with --json. Returns 1 when the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="papers whose grids are run; default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = [measured(*grid, options.repeats) for grid in GRIDS if not options.names or grid[0] in options.names]
    if options.json:
        print(json.dumps({"figures": [asdict(figure) for figure in found], "machine": platform.platform()}))
    else:
        for figure in found:
            low, lower, middle, upper, high = figure.speedup
            verdict = "" if figure.holds else "  MISSED"
            print(
                f"{figure.name}: {figure.layers} layers, {len(figure.stacks)} stacks: {figure.clock_s:.1f} s "
                f"(CPU {figure.cpu_s:.1f} s), bar {BAR_S:.0f} s{verdict}; {figure.compared}: {low:.3g} to {high:.3g}, "
                f"half of them {lower:.3g} to {upper:.3g}, median {middle:.3g} (simulated)"
            )
    return 0 if all(figure.holds for figure in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
