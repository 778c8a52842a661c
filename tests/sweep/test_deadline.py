"""Deadlines: a time from now, or what is left of a Slurm job."""

from __future__ import annotations

import time

import pytest

from orch.errors import OrchError
from orch.sweep.deadline import END, until


def test_a_time_from_now() -> None:
    assert until(None) is None
    assert until("90min") == 5400


def test_the_end_of_the_job_less_what_is_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(END, str(int(time.time()) + 3600))
    assert until("walltime") == pytest.approx(3600, abs=5)
    assert until("walltime - 10min") == pytest.approx(3000, abs=5)


def test_no_job_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(END, raising=False)
    with pytest.raises(OrchError, match=r"this is no Slurm job: SLURM_JOB_END_TIME is not set; .*\[E638\]"):
        until("walltime - 10min")
