"""What a run tells while it runs, on a terminal and in a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
from collections.abc import Callable, Iterator

import pytest

from orch.experiment import show
from orch.experiment.show import Quiet, Terminal


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(show, "time", found)
    return found


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[io.TextIOWrapper, Callable[[], str]]]:
    """Return the writer of a pseudo terminal of 120 columns, and what closes it and returns all that a user saw."""
    reader, writer = pty.openpty()
    monkeypatch.setenv("COLUMNS", "120")

    def seen() -> str:
        stream.close()
        shown = b""
        with contextlib.suppress(OSError):  # the end of a pseudo terminal is an input/output error
            while more := os.read(reader, 4096):  # one read returns what has passed the terminal by then, not all
                shown += more
        return shown.decode()

    with open(writer, "w", encoding="utf-8") as stream:
        yield stream, seen
    os.close(reader)


def test_a_terminal_shows_one_line_that_is_rewritten(clock: Clock, terminal) -> None:
    stream, seen = terminal
    told = Terminal(stream)
    told.stage("4 workers ready")
    told.begin(200)
    clock.now = 10.0
    told.progress("dear, block 1 of 8", 50, 1.234, 812.4)
    clock.now = 11.0
    told.progress("dear, block 1 of 8", 55, 1.2, 800.0)
    told.stage("done")
    shown = seen()
    assert shown.count("\n") == 2
    line = "step 50 of 200 | dear, block 1 of 8 | loss 1.234 | 812 samples/s | 30 s left"
    assert f"\r\x1b[2K[######------------------]  25 % {line}\r" in shown
    assert shown.endswith("\r\x1b[2K 11.0 s  done\r\n")


def test_the_bar_takes_the_room_there_is(clock: Clock, terminal, monkeypatch) -> None:
    stream, seen = terminal
    monkeypatch.setenv("COLUMNS", "89")
    told = Terminal(stream)
    told.begin(10)
    told.progress("ddp, block 1 of 8", 5, 0.5, 10.0)
    (line,) = re.findall(r"\x1b\[2K(.*)", seen())
    assert line.startswith("[####----]  50 % step 5 of 10")
    assert len(line) == 88


def test_a_narrow_terminal_gets_a_line_that_does_not_wrap(clock: Clock, terminal, monkeypatch) -> None:
    stream, seen = terminal
    monkeypatch.setenv("COLUMNS", "40")
    told = Terminal(stream)
    told.begin(10)
    told.progress("a-stack-with-a-long-name, block 1 of 8", 5, 0.5, 10.0)
    (line,) = re.findall(r"\x1b\[2K(.*)", seen())
    assert len(line) == 39
    assert line.startswith("step 5 of 10 | a-stack")


def test_a_pipe_gets_whole_lines_now_and_then_and_no_control_characters(clock: Clock) -> None:
    stream = io.StringIO()
    told = Terminal(stream)
    told.begin(1000)
    for second in range(12):
        clock.now = float(second)
        told.progress("ddp, block 1 of 2", 10 * second, 2.0, 100.0)
    told.end()
    lines = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["step 50 of 1000", "step 100 of 1000"]
    assert lines[0].endswith("| loss 2.000 | 100 samples/s | 95 s left")
    assert stream.getvalue().isprintable() is False  # newlines only:
    assert all(line.isprintable() for line in lines)


def test_long_times_are_minutes(clock: Clock) -> None:
    stream = io.StringIO()
    told = Terminal(stream)
    told.begin(100)
    clock.now = 10.0
    told.progress("ddp", 1, 2.0, 100.0)
    assert stream.getvalue().endswith("| 16 min 30 s left\n")


def test_a_reader_who_has_gone_ends_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8", buffering=1) as stream:
        told = Terminal(stream)
        told.stage("nobody reads this")
        assert told._stream is stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_quiet_says_nothing(capfd) -> None:
    quiet = Quiet()
    quiet.stage("x")
    quiet.begin(1)
    quiet.progress("x", 1, 1.0, 1.0)
    quiet.end()
    assert capfd.readouterr() == ("", "")
