"""Make gangs, and keep their workers warm for the next one of the same kind, size, threads, devices and environment.

Workers are ended when the process that made them ends, whatever ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orch.errors import OrchError
from orch.gang.fork_server import ForkServer
from orch.gang.gang import Gang, WorkersGang, await_ready
from orch.gang.inline import InlineGang
from orch.gang.local_workers import LocalWorkers, Workers
from orch.gang.worker import Spec

_lock = threading.RLock()
_idle: dict[tuple[Any, ...], list[Workers]] = {}
_server: ForkServer | None = None


def make_gang(
    on: str,
    size: int,
    *,
    threads: int = 1,
    devices: Sequence[str] | str = "cpu",
    log_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Gang:
    """Return `size` workers, all or none, made as `on` says: `inline`, `processes`.

    `threads`: of torch in each worker. `devices`: one name for all, or one for each rank. `log_dir`: gets `rank0.log`
    and so on (output is dropped if None). `env`: added to the workers' environment; part of what makes workers equal.
    OrchError: what was asked for does not exist or can never fit. RunError: a worker died on the way.
    """
    if size < 1:
        raise OrchError(f"a gang of {size}: must be at least 1", code="E710")
    names = (devices,) * size if isinstance(devices, str) else tuple(devices)
    if len(names) != size:
        raise OrchError(f"{len(names)} devices for {size} workers: must be one each", code="E710")
    if on == "inline":
        if size != 1:
            raise OrchError(
                f"--on inline runs 1 worker in this process; the cluster has {size}",
                code="E710",
                hint="use --on processes",
            )
        return InlineGang(threads, names[0])
    if on != "processes":
        raise OrchError(f"'{on}' is no way to reach workers", code="E710", hint="allowed: inline, processes")
    key = (on, size, threads, names, tuple(sorted((env or {}).items())))
    workers = _take(key) or _local_workers(size, threads, names, env or {})
    return WorkersGang(workers, "processes", log_dir, keep=lambda w: _give(key, w))


def end_all() -> None:
    """End every idle worker and the fork server now. Gangs that are open keep theirs until they are closed."""
    global _server
    with _lock:
        for workers in [w for ws in _idle.values() for w in ws]:
            workers.end()
        _idle.clear()
        server, _server = _server, None
    if server is not None:
        server.close()


def _take(key: tuple[Any, ...]) -> Workers | None:
    with _lock:
        idle = _idle.get(key, [])
        while idle:
            workers = idle.pop()
            if not workers.wait(0):  # nothing to say: alive and quiet
                return workers
            workers.end()
    return None


def _give(key: tuple[Any, ...], workers: Workers) -> None:
    with _lock:
        _idle.setdefault(key, []).append(workers)


def _local_workers(size: int, threads: int, devices: Sequence[str], env: Mapping[str, str]) -> Workers:
    specs = [Spec(rank, size, threads, devices[rank], env=dict(env)) for rank in range(size)]
    for attempt in range(2):
        try:
            workers = LocalWorkers(fork_server(), specs)
            break
        except EOFError:  # somebody ended the server since the last gang: a new one, once
            _drop_server()
            if attempt:
                raise
    try:
        await_ready(workers)
    except BaseException:
        workers.end()
        raise
    return workers


def fork_server() -> ForkServer:
    """Return this process's fork server, made when first asked for; it loads torch while the caller goes on."""
    global _server
    with _lock:
        if _server is None or _server.owner != os.getpid():
            _server = ForkServer()
        return _server


def _drop_server() -> None:
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        with contextlib.suppress(OSError):
            server.close()


atexit.register(end_all)
