"""RESULTS.md, whose parts between marks are written by the benchmarks themselves."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


def record(part: str, text: str) -> None:
    """Write `text` in place of what stands between `<!-- part -->` and `<!-- end of part -->`. ValueError: no such part."""
    begin, end = f"<!-- {part} -->", f"<!-- end of {part} -->"
    before, found, rest = RESULTS.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"{RESULTS.name} has no part {part!r}")
    RESULTS.write_text(f"{before}{begin}\n{text.rstrip()}\n{end}{after}", encoding="utf-8")


def fenced(text: str) -> str:
    """Return `text` as a block that is not prose."""
    return f"```text\n{text.rstrip()}\n```"
