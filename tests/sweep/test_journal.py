"""The journal: Optuna's format, whole lines only, and no lock that outlives its holder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from orch.sweep.journal import Journal, locked

optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_optuna_reads_it_as_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a" / "study.journal"
    study = optuna.create_study(study_name="s", storage=JournalStorage(Journal(path)))
    for _ in range(3):
        trial = study.ask()
        study.tell(trial, trial.suggest_float("x", 0, 1))
    theirs = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(path))))
    assert [trial.value for trial in theirs.trials] == [trial.value for trial in study.trials]


def test_half_a_line_is_not_there_and_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.append_logs([{"a": 1}, {"a": 2}])
    with path.open("ab") as file:
        file.write(b'{"a": 3, "b')
    assert list(journal.read_logs(0)) == [{"a": 1}, {"a": 2}]
    journal.append_logs([{"a": 4}])
    assert list(journal.read_logs(1)) == [{"a": 2}, {"a": 4}]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": 1}, {"a": 2}, {"a": 4}]


def test_what_another_process_appends_is_read(tmp_path: Path) -> None:
    one, other = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    one.append_logs([{"a": 1}])
    assert list(other.read_logs(0)) == [{"a": 1}]
    one.append_logs([{"a": 2}])
    assert list(other.read_logs(1)) == [{"a": 2}]
    assert list(other.read_logs(2)) == []


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    journal.append_logs([{"a": 1}])
    real = os.write

    def half(handle: int, data: bytes) -> int:
        if len(data) < 12:
            raise OSError(28, "No space left on device")
        return real(handle, data[: len(data) - 5])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        journal.append_logs([{"a": 2, "long": "x" * 20}])
    monkeypatch.undo()
    assert (tmp_path / "j").read_text() == '{"a":1}\n'
    journal.append_logs([{"a": 3}])
    assert list(journal.read_logs(0)) == [{"a": 1}, {"a": 3}]


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from orch.sweep.journal import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "j")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(tmp_path / "j") as handle:
        assert os.fstat(handle).st_size == 0
