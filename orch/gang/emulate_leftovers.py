"""What emulated clusters are made of, by name: find what nobody owns any more, and remove it.

Everything of one emulated cluster carries its name, `orch-` and six hexadecimal digits: the directory with its state,
the bridge, the network namespaces, the interfaces between them, the CPU groups, and every process by its environment. A
cluster is alive while the process in its state lives: the driver of a run, or the head of a cluster that
`orch up` keeps. Whatever is left of any other is a leftover.

This file also is the program that the janitor of a killed driver runs: nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

ROOT = "/tmp"  # not $TMPDIR: whoever looks for leftovers must look where they are
STATE = "state.json"
NAMESPACES = "/run/netns"
_INTERFACES = "/sys/class/net"
_CLUSTER = re.compile(r"orch-[0-9a-f]{6}")
_PART = re.compile(r"(orch-[0-9a-f]{6})(?:-\d+)?")
TAG = "ORCH_SESSION"  # the environment variable by which a process is known to belong to a cluster
_KILL_FOR_S = 10.0

Kind = Literal["process", "namespace", "interface", "cpu group", "directory"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that an emulated cluster left behind: `cluster` is its name, `name` that of the thing (a pid, a path)."""

    cluster: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of emulated cluster {self.cluster}"


def leftovers() -> list[Leftover]:
    """Return what is left of clusters whose owner is gone, in the order in which it can be removed. Needs no rights."""
    everything = _everything()
    dead = {cluster for cluster in {thing.cluster for thing in everything} if not is_alive(cluster)}
    return [thing for thing in everything if thing.cluster in dead]


def parts(cluster: str) -> list[Leftover]:
    """Return all that exists of one cluster, alive or not."""
    return [thing for thing in _everything() if thing.cluster == cluster]


def remove(found: Iterable[Leftover]) -> list[Leftover]:
    """Remove what `leftovers` or `parts` found; return what could not be removed (all but processes needs root)."""
    found = list(found)
    _kill_all({thing.cluster for thing in found if thing.kind == "process"})
    for thing in found:
        with contextlib.suppress(OSError):
            _remove(thing)
    return [thing for thing in found if _exists(thing)]


def claim(state: dict[str, Any]) -> str:
    """Return the name of a new cluster, whose directory exists with `state` in it from the first moment on."""
    while True:
        cluster = f"orch-{secrets.token_hex(3)}"
        draft = tempfile.mkdtemp(prefix=f".{cluster}-", dir=ROOT)
        _write(draft, state)
        try:
            os.rename(draft, directory_of(cluster))
            return cluster
        except OSError:  # the name is taken
            shutil.rmtree(draft, ignore_errors=True)
            if not os.path.exists(directory_of(cluster)):
                raise


def directory_of(cluster: str) -> str:
    """Return where the state of a cluster is, and the directories of its nodes."""
    return os.path.join(ROOT, cluster)


def read_state(cluster: str) -> dict[str, Any]:
    """Return the state of a cluster; empty where there is none, or another user has made it up."""
    path = os.path.join(directory_of(cluster), STATE)
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid not in (0, os.getuid()):
                return {}
            state = json.load(file)
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(cluster: str, state: dict[str, Any]) -> None:
    """Replace the state of a cluster in one step; only its owner may read it, for it holds the token of its Ray."""
    _write(directory_of(cluster), state)


def clusters() -> list[str]:
    """Return the names of all emulated clusters on this machine that have a state, alive or not."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(ROOT) if _CLUSTER.fullmatch(name) and read_state(name))
    return []


def is_alive(cluster: str) -> bool:
    """Tell whether the process that owns a cluster lives; a process id that was given out again does not count."""
    owner = read_state(cluster).get("owner")
    return isinstance(owner, list) and len(owner) == 2 and identity_of(owner[0]) == owner


def identity_of(pid: int) -> list[int] | None:
    """Return `[pid, when it started in clock ticks]`, which no other process of this boot shares; None if gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else [int(pid), int(fields[19])]


def cpu_roots() -> list[str]:
    """Return where CPU groups can be made: the mount of the cpu controller (version 1), or that of version 2."""
    found = {}
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            where = before.split()[4]
            if kind == "cgroup" and "cpu" in options.split(","):
                found["1"] = where
            elif kind == "cgroup2" and "cpu" in _text(f"{where}/cgroup.controllers").split():
                found["2"] = where
    return [found[version] for version in sorted(found)]


def _everything() -> list[Leftover]:
    found: list[Leftover] = [Leftover(cluster, "process", str(pid)) for cluster, pid in _processes()]
    places: list[tuple[Kind, str]] = [("namespace", NAMESPACES), ("interface", _INTERFACES)]
    places += [("cpu group", root) for root in cpu_roots()]
    for kind, place in places:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(place), reverse=True):  # the nodes of a cluster before what holds them
                if match := _PART.fullmatch(name):
                    found.append(Leftover(match[1], kind, os.path.join(place, name) if kind == "cpu group" else name))
    with contextlib.suppress(OSError):
        found += [
            Leftover(name, "directory", directory_of(name)) for name in sorted(os.listdir(ROOT)) if _is_ours(name)
        ]
    return found


def _is_ours(name: str) -> bool:
    path = directory_of(name)
    known = _CLUSTER.fullmatch(name) and os.path.lexists(os.path.join(path, STATE))
    return bool(known) and os.lstat(path).st_uid in (0, os.getuid())


def _processes() -> list[tuple[str, int]]:
    found = []
    prefix = f"{TAG}=".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid() or identity_of(int(name)) is None:
            continue
        with contextlib.suppress(OSError):
            for variable in _bytes(f"/proc/{name}/environ").split(b"\0"):
                if variable.startswith(prefix) and _CLUSTER.fullmatch(tag := os.fsdecode(variable[len(prefix) :])):
                    found.append((tag, int(name)))
    return found


def _kill_all(of: set[str]) -> None:
    """Kill the processes of these clusters until there are none: some may start others while they are looked for."""
    deadline = time.monotonic() + _KILL_FOR_S
    while of and time.monotonic() < deadline:
        found = [pid for cluster, pid in _processes() if cluster in of]
        if not found:
            return
        _kill(found)


def _kill(pids: Iterable[int]) -> None:
    left = {pid: identity_of(pid) for pid in pids}
    deadline = time.monotonic() + _KILL_FOR_S
    while left and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        left = {pid: who for pid, who in left.items() if who is not None and identity_of(pid) == who}


def _remove(thing: Leftover) -> None:
    match thing.kind:
        case "namespace":
            _run("ip", "netns", "delete", thing.name)
        case "interface" if os.path.exists(f"{_INTERFACES}/{thing.name}"):
            _run("ip", "link", "delete", thing.name)
        case "cpu group":
            _remove_group(thing.name)
        case "directory":
            shutil.rmtree(thing.name, ignore_errors=True)


def _remove_group(path: str) -> None:
    """Remove a CPU group; what was killed in it may take a moment to leave it."""
    deadline = time.monotonic() + _KILL_FOR_S
    while os.path.isdir(path):
        _kill(int(pid) for pid in _text(f"{path}/cgroup.procs").split())
        try:
            os.rmdir(path)
        except OSError:
            if time.monotonic() > deadline or not os.access(os.path.dirname(path), os.W_OK):
                return
            time.sleep(0.02)


def _exists(thing: Leftover) -> bool:
    match thing.kind:
        case "process":
            return identity_of(int(thing.name)) is not None
        case "namespace":
            return os.path.exists(os.path.join(NAMESPACES, thing.name))
        case "interface":
            return os.path.exists(os.path.join(_INTERFACES, thing.name))
    return os.path.exists(thing.name)


def _run(*command: str) -> None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    with contextlib.suppress(subprocess.SubprocessError):
        subprocess.run(
            command, env={"PATH": path}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False
        )


def _write(directory: str, state: dict[str, Any]) -> None:
    path = os.path.join(directory, STATE)
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(state, file)
    os.replace(f"{path}.new", path)


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _text(path: str) -> str:
    try:
        return _bytes(path).decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    remove(parts(sys.argv[1]))
