"""Every figure of `benchmarks/RESULTS.md`, again: `python -m benchmarks [NAME ...]`, one after another.

Writes the figures' part of RESULTS.md when all were asked for; a benchmark that misses a bar is marked, not left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

NAMES = ("commands", "simulator", "gang", "engine", "tracking", "checkpoints", "sweep", "quickstart")
RESULTS = Path(__file__).with_name("RESULTS.md")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


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
        sections.append(f"### `python -m benchmarks.bench_{name}`: {verdict}\n\n```text\n{done.stdout.rstrip()}\n```\n")
    if not names:
        _record(sections)
    return missed


def _record(sections: Sequence[str]) -> None:
    text = RESULTS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    stamp = f"Recorded {datetime.now(UTC):%Y-%m-%d}.\n\n"
    RESULTS.write_text(f"{before}{BEGIN}\n{stamp}{chr(10).join(sections)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
