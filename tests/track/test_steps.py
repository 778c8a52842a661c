"""Step files: appended in whole batches, exact, and none the worse for a torn end."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.track import steps
from orch.track.steps import Appender, Step, Value

FLOATS = st.floats(width=64)
STEPS = st.builds(
    Step, st.integers(0, 10**9), st.none() | st.integers(0, 99), st.none() | FLOATS, st.none() | FLOATS, FLOATS
)


def write(path, batch):
    appender = Appender(path, steps.STEP_COLUMNS)
    appender.append(steps.step_lines(batch))
    appender.close()


@given(st.lists(STEPS, max_size=5, unique_by=lambda s: s.step))
def test_every_digit_comes_back(tmp_path_factory, batch):
    path = tmp_path_factory.mktemp("s") / "steps.csv"
    write(path, batch)
    assert repr(steps.read_steps(path)) == repr(sorted(batch, key=lambda s: s.step))


def test_the_last_of_two_equal_steps_counts(tmp_path):
    write(tmp_path / "s.csv", [Step(1, 0, 2.0, 0.1, 0.1), Step(2, 0, math.nan, 0.1, 0.2), Step(1, 1, 3.0, 0.1, 0.3)])
    assert [s.loss for s in steps.read_steps(tmp_path / "s.csv")][:1] == [3.0]


@pytest.mark.parametrize("torn", ["7,0,0.5", "7", "7,0,0.5,0.1,9", "\x00\x00"])
def test_a_torn_line_is_dropped_by_reader_and_by_the_next_writer(tmp_path, torn):
    path = tmp_path / "s.csv"
    write(path, [Step(1, 0, 2.0, 0.1, 0.1)])
    with path.open("a") as file:
        file.write(torn)
    assert [s.step for s in steps.read_steps(path)] == [1]
    write(path, [Step(2, 0, 1.0, 0.1, 0.2)])
    assert [s.step for s in steps.read_steps(path)] == [1, 2]
    assert path.read_text().count("step,block") == 1


def test_a_file_that_is_only_a_torn_header_starts_again(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("step,blo")
    write(path, [Step(1, 0, 2.0, 0.1, 0.1)])
    assert len(steps.read_steps(path)) == 1


def test_a_killed_writer_loses_nothing_it_handed_over(tmp_path):
    code = (
        "import os, pathlib, signal, sys\n"
        "from orch.track.steps import *\n"
        "a = Appender(pathlib.Path(sys.argv[1]), STEP_COLUMNS)\n"
        "a.append(step_lines(Step(i, 0, 1.0, 0.1, 0.1 * i) for i in range(1000)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "s.csv"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert [s.step for s in steps.read_steps(path)] == list(range(1000))


def test_values_keep_odd_names(tmp_path):
    path = tmp_path / "v.csv"
    appender = Appender(path, steps.METRIC_COLUMNS)
    appender.append(steps.value_lines([Value(3, 1.5, 'acc, "李"', 0.5), Value(3, 1.5, "f1", math.inf)]))
    appender.close()
    appender.close()
    assert steps.read_values(path) == [Value(3, 1.5, 'acc, "李"', 0.5), Value(3, 1.5, "f1", math.inf)]


def test_no_file_is_no_steps(tmp_path):
    assert steps.read_steps(tmp_path / "absent.csv") == []
    assert steps.read_values(tmp_path) == []
