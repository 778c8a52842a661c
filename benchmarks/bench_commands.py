"""How long the commands that start nothing take: `python -m benchmarks.bench_commands`.

Bars, wall clock of the whole process: `orch --help` and `orch check quickstart` at most 0.3 s, `orch plan quickstart`
at most 1.0 s. The commands run by turns; medians and ranges.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter

COMMANDS = {
    "orch --help": (("--help",), 0.3),
    "orch check quickstart": (("check", "quickstart"), 0.3),
    "orch plan quickstart": (("plan", "quickstart"), 1.0),
}


def seconds(arguments: Sequence[str]) -> float:
    """Return the wall clock of one `orch` process; raises CalledProcessError when it fails."""
    begin = perf_counter()
    subprocess.run([sys.executable, "-m", "orch", *arguments], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Time every command; exit 1 when one misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for round_number in range(options.rounds + 1):
        for name, (command, _) in COMMANDS.items():
            taken = seconds(command)
            if round_number:  # the first round warms the file cache and writes bytecode
                found[name].append(taken)
    rows = [
        {"what": name, "median_s": median(times), "lo_s": min(times), "hi_s": max(times), "bar_s": COMMANDS[name][1]}
        for name, times in found.items()
    ]
    if options.json:
        print(json.dumps(rows))
    else:
        print(
            f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}; wall clock (measured)"
        )
        for row in rows:
            spread = f"[{row['lo_s']:.2f}, {row['hi_s']:.2f}]"
            print(f"{row['what']:<24} {row['median_s']:.2f} s {spread}  bar {row['bar_s']} s, n={options.rounds}")
    return int(any(times > bar for times, bar in ((median(found[name]), COMMANDS[name][1]) for name in COMMANDS)))


if __name__ == "__main__":
    raise SystemExit(main())
