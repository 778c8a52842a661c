"""How well the quickstart's predictions hold, and how long it takes: `python -m benchmarks.bench_quickstart`.

Bars: median error of the predicted step time over its stacks at most 15 %, predicted from links and layer times
measured in the same run's warm-up; at most 100 s from the command to its end. Whole runs in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

ERROR_BAR, SECONDS_BAR = 0.15, 100.0


def run(arguments: Sequence[str]) -> tuple[float, dict[str, Any]]:
    """Run the quickstart once; return its wall clock [s] and its document."""
    with tempfile.TemporaryDirectory() as runs:
        begin = perf_counter()
        command = [sys.executable, "-m", "orch", "run", "quickstart", "--json", "--runs", runs, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return perf_counter() - begin, json.loads(done.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the quickstart some times; exit 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args(arguments)
    taken, documents = [], []
    for _ in range(options.rounds):
        seconds, document = run(options.overrides)
        taken.append(seconds)
        documents.append(document)
    errors = {
        name: [document["stacks"][name]["prediction_error"] for document in documents]
        for name in documents[0]["stacks"]
    }
    middle = median(abs(error) for found in errors.values() for error in found)
    if options.json:
        print(json.dumps({"seconds": taken, "errors": errors, "median_error": middle}))
    else:
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}; 4 workers, measured")
        for name, found in errors.items():
            shown = ", ".join(f"{100 * error:+.0f} %" for error in found)
            times = [document["stacks"][name]["step_time_s"]["median"] for document in documents]
            print(f"{name:<18} measured {1e3 * median(times):6.1f} ms a step; predicted/measured - 1: {shown}")
        print(f"median error {100 * middle:.0f} %  bar {100 * ERROR_BAR:.0f} %")
        print(
            f"whole run {median(taken):.0f} s [{min(taken):.0f}, {max(taken):.0f}]  bar {SECONDS_BAR:.0f} s, n={len(taken)}"
        )
    return int(middle > ERROR_BAR or median(taken) > SECONDS_BAR)


if __name__ == "__main__":
    raise SystemExit(main())
