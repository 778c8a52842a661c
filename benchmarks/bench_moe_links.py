"""Schedules of mixture-of-experts layers on shaped links, beside the naive layer: `python -m benchmarks.bench_moe_links`.

Four workers on emulated nodes of 200 Mbit/s train a small mixture-of-experts model, where rows travel about as long as
experts compute: step time, peak memory and prediction of every schedule, in shuffled blocks of one run (`make bench-moe-links`;
root). Bars: the fastest schedule, of exact ones and of all, at least 1.25 times as fast as `naive`, and its prediction, which
rests on links and layer times that the run measures apart from its steps, within 10 % of what was measured. With codecs rows
are rounded: lossy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.results import fenced, record
from orch.units import format_bytes

Cell = dict[str, Any]

STACKS: dict[str, list[object]] = {
    "naive": ["naive-moe"],
    "tutel": ["tutel"],
    "pipemoe": ["pipemoe"],
    "two-chunks": [{"pipemoe": {"degree": 2, "degree_backward": 2}}],
    "schemoe": ["schemoe"],
    "fsmoe": ["fsmoe"],
    "fastermoe": ["fastermoe"],
    "mast": ["mast"],
    "fsmoe+bf16": ["fsmoe", "bf16-rows"],
    "fsmoe+int8": ["fsmoe", "int8-rows"],
}
FASTER, ERROR = 1.25, 0.10


def recipe(options: argparse.Namespace) -> str:
    """Return the recipe: one layer whose rows travel about as long as its experts compute, experts with equally many slots.
    Sequences are short, so that judging held-out ones between blocks takes little of the run.
    """
    return yaml.safe_dump(
        {
            "orch": 1,
            "name": "moe-links",
            "model": {"use": "char-moe", "experts": 8, "top_k": 2, "hidden": options.hidden, "num_layers": options.layers,
                      "every": 1, "seq_len": 16, "capacity": options.capacity},
            "data": "pydoc_text",
            "train": {"batch_per_worker": options.batch, "optimizer": {"adamw": {"lr": 1e-3}}},
            "cluster": options.cluster,
            "stacks": {name: _members(STACKS[name]) for name in ("naive", *options.stacks)},
            "baseline": "naive",
            "measure": {"blocks": options.blocks, "steps": options.steps, "warmup": 1},
        },
        sort_keys=False,
    )  # fmt: skip


def _members(members: Iterable[object]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member in members:
        found.update(member if isinstance(member, dict) else {member: {}})
    return found


def run(options: argparse.Namespace) -> Cell:
    """Run all stacks in one gang, and return their figures."""
    about = {"cluster": options.cluster, "load": os.getloadavg()[0]}
    about["began"] = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "moe-links.yaml"
        path.write_text(recipe(options), encoding="utf-8")
        keep = ["--no-track"] if options.keep is None else ["--runs", str(options.keep)]
        command = [sys.executable, "-m", "orch", "run", str(path), "--on", options.on, "--json", *keep]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = json.loads(done.stdout)
    if done.returncode:
        raise SystemExit(found["error"]["message"])
    return about | {"stacks": found["stacks"]}


def lines(cell: Cell) -> Iterator[str]:
    """Yield the table: each stack's step beside the naive one's and its own prediction, and what a worker held and sent."""
    yield f"{cell['cluster']}: began {cell['began']} UTC at load {cell['load']:.1f}"
    yield f"  {'stack':<12} {'step':>9} {'over naive':>20} {'predicted':>18} {'peak memory':>12} {'sent':>9}  result"
    for name, stack in cell["stacks"].items():
        gain = stack["speedup"]
        ratio = "" if name == "naive" else f"{gain['median']:.2f} [{gain['lo']:.2f}, {gain['hi']:.2f}]"
        predicted = f"{1e3 * stack['predicted_step_time_s']:.0f} ms ({100 * stack['prediction_error']:+.0f} %)"
        held, sent = (format_bytes(stack[key]) for key in ("peak_memory_bytes", "payload_bytes_per_worker"))
        yield (
            f"  {name:<12} {1e3 * stack['step_time_s']['median']:6.0f} ms {ratio:>20} {predicted:>18} {held:>12} {sent:>9}  "
            + ("exact" if stack["lossless"] else "lossy")
        )


def bars(cell: Cell) -> Iterator[tuple[bool, str]]:
    """Yield whether each bar is met, and a line that says so with its figures."""
    found = {name: one for name, one in cell["stacks"].items() if name != "naive"}
    for which, stacks in (("exact ", {name: one for name, one in found.items() if one["lossless"]}), ("", found)):
        best = max(stacks, key=lambda name: stacks[name]["speedup"]["median"])  # called at once
        gain, error = stacks[best]["speedup"], stacks[best]["prediction_error"]
        yield (
            gain["median"] >= FASTER,
            f"best {which}schedule, {best}: {gain['median']:.2f} times as fast as naive "
            f"[{gain['lo']:.2f}, {gain['hi']:.2f}], bar {FASTER:g}",
        )
        yield abs(error) <= ERROR, f"its prediction is {100 * error:+.1f} % off, bar {100 * ERROR:.0f} %"


def told(cell: Cell) -> tuple[str, bool]:
    """Return the table and the bars as text, and whether all bars are met."""
    found = list(bars(cell))
    text = [
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}; emulated links, measured",
        *lines(cell),
        *(f"{'met   ' if met else 'MISSED'} {line}" for met, line in found),
    ]
    return "\n".join(text), all(met for met, _ in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stacks; exit 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = [name for name in STACKS if name != "naive"]
    parser.add_argument("--on", default="emulate")
    parser.add_argument("--cluster", default="emulated-4x200mbit")
    parser.add_argument("--stacks", nargs="+", default=others, choices=others)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument(
        "--capacity", type=float, default=1.0, help="slots of an expert over its even share; none: ragged, as loads are"
    )
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="write what is shown into RESULTS.md")
    parser.add_argument("--keep", type=Path, help="keep the run's directory here")
    options = parser.parse_args(arguments)
    text, met = told(run(options))
    print(text)
    if options.record:
        record("mixtures on links", fenced(text))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
