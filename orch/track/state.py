"""How a run stands, and whether the process that owns it still lives.

A driver that is killed cannot write its end. So a state names its process (host, boot, pid, start of the process), and
whoever looks next finds it gone and writes the end it could not write: `killed`.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, cast, get_args

from orch.track import encoding, reserve

Status = Literal["queued", "running", "done", "failed", "killed", "interrupted"]
STATUSES: tuple[Status, ...] = get_args(Status)
FILE = "state.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from a later one that got the same pid."""

    host: str
    boot: str
    pid: int
    born: str

    @staticmethod
    def here(pid: int | None = None) -> Owner:
        """Return the owner that stands for this process, or for another one of this host."""
        number = os.getpid() if pid is None else pid
        return Owner(socket.gethostname(), _boot(), number, _born(number))

    @property
    def is_local(self) -> bool:
        """Whether its life can be judged from here: the same host, or the same kernel under another name."""
        return self.host == socket.gethostname() or (bool(self.boot) and self.boot == _boot())

    @property
    def alive(self) -> bool | None:
        """True, False, or None when it runs on another host and cannot be seen from here."""
        if not self.is_local:
            return None
        if self.boot != _boot():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.born == _born(self.pid)


@dataclass(frozen=True, slots=True)
class State:
    """The status of a run with its owner and its times, in seconds since 1970 (UTC).

    `ran_s`: how long drivers worked on it, by a clock that nobody sets; None while one does, and where one was killed.
    """

    status: Status
    owner: Owner
    created_s: float
    started_s: float | None = None
    ended_s: float | None = None
    reason: str = ""
    ran_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the run may still change."""
        return self.status in ("queued", "running")

    @property
    def is_orphan(self) -> bool:
        """Whether the run is open although its driver is gone."""
        return self.is_open and self.owner.alive is False

    @property
    def duration_s(self) -> float | None:
        """How long the run ran, or has run so far; None before it started. Where only a clock that was set can tell, and
        it was set back, at least 0.
        """
        if self.started_s is None:
            return None
        if self.ran_s is not None and not self.is_open:
            return self.ran_s
        return max(0.0, (self.ended_s or time.time()) - self.started_s)

    def to(self, status: Status, reason: str = "", ran_s: float | None = None) -> State:
        """Return the state that follows, with its time. The first end stands: a closed state is returned unchanged.

        `ran_s`: how long this driver has worked on it.
        """
        if not self.is_open:
            return self
        now = time.time()
        if status == "queued":
            return self
        if status == "running":
            return replace(self, status=status, started_s=self.started_s or now)
        whole_s = None if ran_s is None else ran_s + (self.ran_s or 0.0)
        return replace(self, status=status, ended_s=now, reason=reason, ran_s=whole_s)


def reopened(state: State) -> State:
    """Return the state of a run that this process takes up where it ended; its times go on from the first start."""
    return State("queued", Owner.here(), state.created_s, state.started_s, ran_s=state.ran_s)


def new(status: Status = "queued") -> State:
    """Return the state of a run that this process has just made."""
    now = time.time()
    return State(status, Owner.here(), now, now if status == "running" else None)


def write(directory: Path, state: State) -> None:
    """Replace the state of the run in `directory`."""
    encoding.write_json(directory / FILE, asdict(state))


def read(directory: Path) -> State | None:
    """Return the state of the run in `directory`, or None when the file is absent or cannot be read."""
    data = encoding.read_json(directory / FILE)
    owner = data.get("owner")
    if data.get("status") not in STATUSES or not isinstance(owner, dict):
        return None
    try:
        return State(
            status=cast("Status", data["status"]),
            owner=Owner(str(owner["host"]), str(owner["boot"]), int(owner["pid"]), str(owner["born"])),
            created_s=float(cast("float", data["created_s"])),
            started_s=cast("float | None", data.get("started_s")),
            ended_s=cast("float | None", data.get("ended_s")),
            reason=str(data.get("reason", "")),
            ran_s=cast("float | None", data.get("ran_s")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def settle(directory: Path) -> State | None:
    """Write `killed` for a run whose driver is gone; return the true state. The end is when its last file changed."""
    state = read(directory)
    if state is None or not state.is_orphan:
        return state
    closed = replace(
        state.to("killed", f"the driver (pid {state.owner.pid}) ended without a word"),
        ended_s=_last_change_s(directory),
    )
    with suppress(OSError):  # the run of a colleague: its owner's next look writes it
        reserve.drop(directory)
        write(directory, closed)
    return closed


def _last_change_s(directory: Path) -> float:
    times = [path.stat().st_mtime for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return max(times, default=time.time())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _born(pid: int) -> str:
    """Clock ticks from boot to the start of `pid`; empty where there is no /proc, and then the pid alone must do."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return "" if fields[0] in ("Z", "X") else fields[19]
