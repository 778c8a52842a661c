"""Make gangs, and keep their workers warm for the next one of the same kind, size, threads, device and environment.

Workers are ended when the process that made them ends, whatever ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orch.cluster.node import Node
from orch.errors import OrchError, did_you_mean, quoted
from orch.gang import emulate_net, machine
from orch.gang.fork_server import ForkServer
from orch.gang.gang import Gang, WorkersGang, await_ready
from orch.gang.inline import InlineGang
from orch.gang.local_workers import LocalWorkers, Workers
from orch.gang.ray_session import RaySession
from orch.gang.torchrun import TorchrunSession
from orch.gang.worker import Spec
from orch.track import settings

MAKERS = ("inline", "processes", "local", "emulate", "torchrun")
_ADDRESS = re.compile(r"(?:ray://)?(?:\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})|ray://[\w.-]+")


@dataclass(frozen=True, slots=True)
class _Key:
    """What two gangs must have in common to share workers."""

    on: str
    size: int
    threads: int
    device: str
    env: tuple[tuple[str, str], ...]
    per_node: int | None
    interface: str
    nodes: tuple[Node, ...] = ()
    labels: tuple[tuple[tuple[str, str], ...], ...] = ()

    def specs(self) -> list[Spec]:
        env = dict(self.env)
        # Emulated nodes are one machine, which none of them can see.
        cores = [machine.core_of(rank, self.size) if self.nodes else () for rank in range(self.size)]
        return [
            Spec(rank, self.size, self.threads, self.device, interface=self.interface, env=env, cores=cores[rank])
            for rank in range(self.size)
        ]


def make_gang(
    on: str,
    size: int,
    *,
    threads: int = 1,
    device: str = "cpu",
    log_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    per_node: int | None = None,
    nodes: Sequence[Node] = (),
    labels: Sequence[Mapping[str, str]] = (),
) -> Gang:
    """Return `size` workers, all or none, made as `on` says.

    `on`: `inline` (1 worker, in this process), `processes`, `local` (a Ray of our own), `emulate` (a Ray of our own on
    emulated `nodes`, which share the workers equally), the address of a Ray cluster (`HOST:PORT`, `ray://HOST:PORT`), or
    `torchrun` (the world this process was started in). `threads`: of torch in each worker. `device`: `cpu` or `cuda` (a
    GPU for each worker). `log_dir`: gets `rank0.log` and so on (output is dropped if None). `env`: added to the workers'
    environment. `per_node`: on a cluster, exactly so many workers on a node; `labels`: what each of these nodes must carry.
    Workers of several machines meet on the interface that `ORCH_INTERFACE` names.

    OrchError: what was asked for does not exist or can never fit; said before anything starts. RunError: a worker died
    on the way, or the cluster's resources stayed taken.
    """
    notes = refuse_or_note(on, size, device, nodes)
    if on == "inline":
        return InlineGang(threads, "cuda:0" if device == "cuda" else "cpu")
    made = tuple(nodes) if on == "emulate" else ()
    per_node = per_node if on not in MAKERS else None
    interface = "" if on in ("processes", "local", "emulate") else settings.interface()
    carried = tuple(tuple(sorted(each.items())) for each in labels) if per_node else ()
    key = _Key(on, size, threads, device, tuple(sorted((env or {}).items())), per_node, interface, made, carried)
    return _POOL.gang(key, log_dir, notes)


def refuse_or_note(on: str, size: int, device: str = "cpu", nodes: Sequence[Node] = ()) -> tuple[str, ...]:
    """Return what the user may want to know of such a gang; starts nothing.

    OrchError: there is no such way to reach workers, or this machine can never hold them. What only a cluster or a
    world that torchrun made can tell, `make_gang` says.
    """
    if size < 1:
        raise OrchError(f"a gang of {size}: must be at least 1", code="E710")
    if device not in ("cpu", "cuda"):
        raise OrchError(f"a gang on device '{device}'", code="E710", hint="allowed: cpu, cuda")
    if on == "inline" and size != 1:
        text = f"--on inline runs 1 worker in this process; the cluster has {size}"
        raise OrchError(text, code="E710", hint="use --on processes")
    if on not in MAKERS and not _is_address(on):
        allowed = f"allowed: {', '.join(MAKERS)}, HOST:PORT, ray://HOST:PORT"
        hint = "; ".join(filter(None, [did_you_mean(on, MAKERS), allowed]))
        raise OrchError(f"{quoted(on)} is no way to reach workers", code="E710", hint=hint)
    if on == "emulate":
        emulate_net.refuse(nodes, size, device)
    return machine.refuse_or_note(size, device) if on in ("processes", "local", "emulate") else ()


def alike(on: str, other: str) -> bool:
    """Whether two values of `--on` reach workers in the same way: a Ray cluster that a job makes anew has another
    address."""
    return on == other or (_is_address(on) and _is_address(other))


def _is_address(on: str) -> bool:
    match = _ADDRESS.fullmatch(on)
    return match is not None and (match[1] is None or 1 <= int(match[1]) <= 65_535)


class Pool:
    """The warm workers of this process, and what they stand on: a fork server, a Ray session."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle: dict[_Key, list[Workers]] = {}
        self._server: ForkServer | None = None
        self._ray: RaySession | None = None
        self._torchrun: TorchrunSession | None = None
        self._owner = os.getpid()

    def gang(self, key: _Key, log_dir: Path | None, notes: tuple[str, ...]) -> WorkersGang:
        """Return a gang of warm workers if there are any, of new ones otherwise."""
        if self._owner != os.getpid():  # a fork of the driver: what the parent holds is not ours to use
            self.__init__()  # type: ignore[misc]
        with self._lock:
            workers = self._take(key) or self._make(key)
            ray = None if self._ray is None or self._ray.address != key.on else self._ray
        kind = key.on if key.on in ("processes", "torchrun", "emulate") else "ray"
        gang = WorkersGang(workers, kind, log_dir, keep=lambda done: self._give(key, done), notes=notes)
        if ray is not None:
            gang.shaping = ray.shaping
            gang.notes = (*filter(None, [ray.note]), *notes)
        return gang

    def end(self) -> None:
        """End every idle worker and what they stand on. Open gangs on Ray or the fork server end with them."""
        if self._owner != os.getpid():
            return
        with self._lock:
            self._end_idle()
            server, self._server = self._server, None
            session, self._ray = self._ray, None
            torchrun, self._torchrun = self._torchrun, None
        if torchrun is not None:
            torchrun.close()
        if server is not None:
            server.close()
        if session is not None:
            session.close()

    def _take(self, key: _Key) -> Workers | None:
        idle = self._idle.get(key, [])
        while idle:
            workers = idle.pop()
            if not workers.wait(0):  # nothing to say: alive and quiet
                return workers
            workers.end()
        return None

    def _give(self, key: _Key, workers: Workers) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(workers)

    def _end_idle(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().end()

    def _make(self, key: _Key) -> Workers:
        if key.on == "processes":
            workers = self._local_workers(key)
        elif key.on == "torchrun":
            self._torchrun = self._torchrun or TorchrunSession()
            self._end_idle()  # a rank holds one worker at a time
            workers = self._torchrun.workers(key.specs())
        else:
            workers = self._ray_workers(key)
        try:
            await_ready(workers)
        except BaseException:
            workers.end()
            raise
        return workers

    def _local_workers(self, key: _Key) -> Workers:
        specs = machine.share_out(key.specs(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        try:
            return LocalWorkers(self._fork_server(), specs)
        except EOFError:  # somebody ended the server since the last gang: a new one, once
            server, self._server = self._server, None
            if server is not None:
                with contextlib.suppress(OSError):
                    server.close()
            return LocalWorkers(self._fork_server(), specs)

    def _fork_server(self) -> ForkServer:
        if self._server is None:
            self._server = ForkServer()
        return self._server

    def _ray_workers(self, key: _Key) -> Workers:
        if self._ray is not None and not (self._ray.serves(key.on, key.nodes) and self._ray.alive()):
            self._end_idle()
            session, self._ray = self._ray, None
            session.close()
        if self._ray is None:
            self._ray = RaySession(key.on, machine.num_gpus() if key.device == "cuda" else 0, key.nodes)
            # Exit functions run last in, first out: ours must come before the one Ray has just registered.
            atexit.unregister(end_all)
            atexit.register(end_all)
        return self._ray.workers(key.specs(), key.per_node, key.labels, make_room=self._end_idle)


_POOL = Pool()


def end_all() -> None:
    """End all warm workers of this process, its fork server and its Ray, now. The next gang starts afresh."""
    _POOL.end()


atexit.register(end_all)
