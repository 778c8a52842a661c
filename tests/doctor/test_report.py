"""The whole look at this machine."""

from __future__ import annotations

import time
from pathlib import Path

from orch.doctor import State, examine


def test_this_machine_can_run_what_its_tests_run(tmp_path: Path) -> None:
    before = time.monotonic()
    report = examine(tmp_path / "runs")
    assert time.monotonic() - before < 60  # 2.5 s where nobody else computes; here only: it ends
    names = [one.name for one in report.findings]
    assert names[:4] == ["python", "torch", "ray", "devices"]
    assert len(set(names)) == len(names) == 17
    works = {way.name for way in report.ways if way.works}
    assert {"inline", "processes", "local", "torchrun", "ADDRESS"} <= works
    assert all(one.fix and one.cost for one in report.findings if one.state is not State.OK)
    assert all("\n" not in one.text() for one in report.findings)
    assert list(tmp_path.iterdir()) == []
