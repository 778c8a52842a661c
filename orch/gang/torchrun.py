"""Workers in the world that torchrun or srun made: for sites that allow no Ray. Same hosts, same failures, same words.

Every process of that world runs the same command. Rank 0 is the driver; the others serve it until it is done
(`serve_other_ranks`). Each of them, rank 0 included, keeps one host with one worker, and rank 0 talks to the hosts over
sockets whose port the kernel picks; it is passed on in the store that torchrun itself runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from orch.errors import OrchError, RunError
from orch.gang import machine
from orch.gang.host import Address, Host, Reply
from orch.gang.remote_workers import ASK_S, HostLostError, RemoteWorkers
from orch.gang.worker import SPOOL, Spec

_KEY = "orch/driver"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_JOIN_S = 120.0


def serve_other_ranks(environ: Mapping[str, str] = os.environ) -> bool:
    """Serve rank 0 until it is done and return True; return False at once on rank 0. OrchError: not under torchrun."""
    rank, _ = _world(environ)
    if rank == 0:
        return False
    driver = json.loads(_store().get(_KEY))
    connection = Client((driver["host"], driver["port"]), authkey=bytes.fromhex(driver["authkey"]))
    connection.send((rank, machine.identity()))
    _serve(connection, environ)
    return True


class TorchrunSession:
    """Rank 0's connections to the host of every rank, its own included. One for the life of the process.

    OrchError: this is not rank 0 of a world that torchrun made. RunError: not every rank came.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        rank, self.size = _world(environ)
        if rank != 0:
            raise OrchError(f"rank {rank} of {self.size} cannot drive a run; rank 0 does", code="E725")
        here, there = socket.socketpair()
        own = Connection(there.detach())
        threading.Thread(target=_serve, args=(own, environ), daemon=True).start()
        self._connections = {0: Connection(here.detach())}
        self._shares_disk = {0: True}
        if self.size > 1:
            self._gather(environ)

    def workers(self, specs: Sequence[Spec]) -> RemoteWorkers:
        """Return the workers of `specs`, one on every rank. OrchError: the world has another size."""
        if len(specs) != self.size:
            hint = f"start {len(specs)}, or set cluster.nodes and cluster.devices_per_node to what makes {self.size}"
            text = f"the run wants {len(specs)} workers; torchrun started {self.size}"
            raise OrchError(text, code="E712", hint=hint)
        links = [_SocketLink(spec, self._connections[spec.rank], self._shares_disk[spec.rank]) for spec in specs]
        return _SocketWorkers(links)

    def close(self) -> None:
        """Let the other ranks go: their hosts end, and `serve_other_ranks` returns there."""
        for connection in self._connections.values():
            connection.close()

    def _gather(self, environ: Mapping[str, str]) -> None:
        one_machine = environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]
        host = "127.0.0.1" if one_machine else environ["MASTER_ADDR"]
        key = secrets.token_bytes(32)
        with Listener(("127.0.0.1" if one_machine else "", 0), backlog=self.size, authkey=key) as listener:
            # The listener's own time-out, so that a rank that never comes is an error and not a hang.
            listener._listener._socket.settimeout(_JOIN_S)  # type: ignore[attr-defined]
            port = listener.address[1]
            _store().set(_KEY, json.dumps({"host": host, "port": port, "authkey": key.hex()}))
            while len(self._connections) < self.size:
                try:
                    connection = listener.accept()
                except TimeoutError as error:
                    missing = sorted(set(range(self.size)) - set(self._connections))
                    text = f"ranks {', '.join(map(str, missing))} of {self.size} did not join within {_JOIN_S:.0f} s"
                    raise RunError(text, code="E725", hint="did every node start the same command?") from error
                rank, where = connection.recv()
                self._connections[rank] = connection
                self._shares_disk[rank] = where == machine.identity()


class _SocketLink:
    """The driver's line to the host of one rank: orders go out, replies are pushed back."""

    def __init__(self, spec: Spec, connection: Connection, shares_disk: bool) -> None:
        self.ranks: Sequence[int] = [spec.rank]
        self.name = f"rank {spec.rank}"
        self.connection = connection
        self._shares_disk = shares_disk
        self._order("start", spec)

    def post(self, rank: int, log_path: str | None, store: Address, payload: bytes) -> None:
        """Hand a call to the rank: see Link."""
        log = log_path if self._shares_disk or log_path is None else SPOOL
        self._order("post", rank, log, store, payload)

    def answer(self) -> Reply | None:
        """Return the host's next reply: see Link."""
        try:
            reply: Reply | None = self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError) as error:
            raise HostLostError("its torchrun process is gone") from error
        return reply

    def end(self) -> bool:
        """End the worker; True once the host says so."""
        self._order("stop")
        with contextlib.suppress(EOFError, OSError):
            while self.connection.recv() is not None:
                pass  # what the worker still had to say
            return True
        return False

    def _order(self, method: str, *args: Any) -> None:
        with contextlib.suppress(OSError):  # its loss is reported by answer
            self.connection.send((method, args))


class _SocketWorkers(RemoteWorkers):
    def __init__(self, links: Sequence[_SocketLink]) -> None:
        super().__init__(links)
        self._connections = [link.connection for link in links]

    def pause(self, timeout_s: float) -> None:
        wait(self._connections, timeout_s)


def _serve(connection: Connection, environ: Mapping[str, str]) -> None:
    """Obey the driver's orders until its end of the connection closes. One crew at a time; `None` says it has ended."""
    host = Host()
    lock = threading.Lock()
    number = 0
    pusher: threading.Thread | None = None
    serving = threading.Event()
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, args = connection.recv()
            if method == "start":
                number += 1
                host.start(number, [_placed(args[0], environ)])
                serving.set()
                pusher = threading.Thread(target=_push, args=(host, number, connection, lock, serving), daemon=True)
                pusher.start()
            elif method == "post":
                host.post(number, *args)
            elif pusher is not None:
                serving.clear()
                pusher.join()
                host.stop(number)
                connection.send(None)
    serving.clear()
    host.end()


def _push(host: Host, crew: int, connection: Connection, lock: threading.Lock, serving: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while serving.is_set():
            reply = host.wait(crew, ASK_S)
            with lock:
                connection.send(reply)


def _placed(spec: Spec, environ: Mapping[str, str]) -> Spec:
    """Return `spec` with what only its own machine knows: its address for collectives, and its GPU."""
    if spec.device != "cpu":
        visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        index = int(environ.get("LOCAL_RANK", "0"))
        env = {**spec.env, "CUDA_VISIBLE_DEVICES": visible[index] if index < len(visible) else str(index)}
        spec = replace(spec, device="cuda:0", env=env)
    if environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]:
        return replace(spec, host="127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing: only asks which way it would go
        probe.connect((environ["MASTER_ADDR"], int(environ["MASTER_PORT"])))
        return replace(spec, host=probe.getsockname()[0])


def _world(environ: Mapping[str, str]) -> tuple[int, int]:
    missing = [name for name in _NEEDED if name not in environ]
    if missing:
        text = f"--on torchrun joins a world that torchrun made; {', '.join(missing)} not set"
        raise OrchError(text, code="E725", hint="torchrun --nproc-per-node N -m orch run RECIPE --on torchrun")
    try:
        return int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except ValueError as error:
        raise OrchError(f"RANK and WORLD_SIZE must be numbers: {error}", code="E725") from error


def _store() -> Any:
    """Return a client of the store that torchrun runs (or, under plain srun, rank 0's at the same address)."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://"))
    return store
