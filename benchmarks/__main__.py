"""Every figure of `benchmarks/RESULTS.md`, again: `python -m benchmarks [NAME ...]`, one after another.

Writes the figures' part of RESULTS.md when all were asked for; a benchmark that misses a bar is marked, not left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarks.results import fenced, record

NAMES = ("commands", "simulator", "grids", "gang", "engine", "tracking", "checkpoints", "sweep", "quickstart")


def main(names: Sequence[str]) -> int:
    """Run the named benchmarks (all of them) and return how many missed a bar or failed."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}")
    sections, missed = [], 0
    for name in names or NAMES:
        command = [sys.executable, "-m", f"benchmarks.bench_{name}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(f"== {name}\n{done.stdout}", flush=True)
        missed += done.returncode != 0
        verdict = "every bar met" if done.returncode == 0 else "a bar missed"
        sections.append(f"### `python -m benchmarks.bench_{name}`: {verdict}\n\n{fenced(done.stdout)}\n")
    if not names:
        record("figures", f"Recorded {datetime.now(UTC):%Y-%m-%d}.\n\n" + "\n".join(sections))
    return missed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
