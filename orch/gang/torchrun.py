"""Workers in the world that torchrun or srun made: for sites that allow no Ray. Same hosts, same failures, same words.

Every process of that world runs the same command. Rank 0 is the driver; the others serve it until it is done
(`serve_other_ranks`). Each of them, rank 0 included, keeps one host with one worker, and rank 0 talks to the hosts over
sockets whose port the kernel picks; it is passed on in the store that torchrun itself runs. Whoever connects must know a
secret: `ORCH_SECRET` if it is set, on one machine a file that only this user can read, otherwise what the store holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from orch.errors import OrchError, RunError
from orch.gang import interfaces, machine
from orch.gang.host import Address, Host, Reply
from orch.gang.remote_workers import ASK_S, HostLostError, RemoteWorkers
from orch.gang.worker import SPOOL, Spec
from orch.track import settings

_STORE_KEY = "orch/driver"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_JOIN_S = 120.0


def serve_other_ranks(environ: Mapping[str, str] = os.environ) -> bool:
    """Serve rank 0 until it is done and return True; return False at once on rank 0. OrchError: not under torchrun."""
    rank, _ = _world(environ)
    if rank == 0:
        return False
    driver = json.loads(_store(environ).get(_STORE_KEY))
    try:
        connection = Client((driver["host"], driver["port"]), authkey=_authkey(driver, environ))
    except (AuthenticationError, EOFError) as error:
        text = f"rank 0 does not let rank {rank} in: they do not share the same {settings.SECRET_VARIABLE}"
        raise OrchError(text, code="E725", hint="export it before torchrun or srun on every machine") from error
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
        host, store = (
            _own_host(environ),
            _store(environ),
        )  # held until all are here: it may be this process that serves it
        with (
            _invitation(environ) as invitation,
            Listener((host, 0), backlog=self.size, authkey=_authkey(invitation, environ)) as listener,
        ):
            # The listener's own time-out, so that a rank that never comes is an error and not a hang.
            listener._listener._socket.settimeout(_JOIN_S)  # type: ignore[attr-defined]
            store.set(_STORE_KEY, json.dumps(invitation | {"host": host, "port": listener.address[1]}))
            while len(self._connections) < self.size:
                try:
                    connection = listener.accept()
                except TimeoutError as error:
                    missing = sorted(set(range(self.size)) - set(self._connections))
                    text = f"ranks {', '.join(map(str, missing))} of {self.size} did not join within {_JOIN_S:.0f} s"
                    raise RunError(text, code="E725", hint="did every node start the same command?") from error
                except (AuthenticationError, EOFError, ConnectionError):
                    continue  # a stranger, or somebody who looks for open ports
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
    """Return `spec` with what only its own machine knows: its address for collectives, its GPU or its core."""
    cores = machine.core_of(int(environ.get("LOCAL_RANK", "0")), int(environ.get("LOCAL_WORLD_SIZE", "1")))
    spec = replace(spec, cores=cores if spec.device == "cpu" else ())
    if spec.device != "cpu":
        visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        index = int(environ.get("LOCAL_RANK", "0"))
        env = {**spec.env, "CUDA_VISIBLE_DEVICES": visible[index] if index < len(visible) else str(index)}
        spec = replace(spec, device="cuda:0", env=env)
    return replace(spec, host=_own_host(environ))


def _one_machine(environ: Mapping[str, str]) -> bool:
    return environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]


def _own_host(environ: Mapping[str, str]) -> str:
    """Return this machine's address for the other ranks: of the interface that was asked for, else towards rank 0."""
    if names := settings.interface(environ):
        return interfaces.address_of(names)
    return "127.0.0.1" if _one_machine(environ) else interfaces.own_address(environ["MASTER_ADDR"])


@contextlib.contextmanager
def _invitation(environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what the store tells the other ranks, who make the key from it and from what only they know."""
    told: dict[str, Any] = {"nonce": secrets.token_hex(32)}
    if settings.secret(environ) or not _one_machine(environ):
        yield told
        return
    descriptor, path = tempfile.mkstemp(prefix="orch-key-")  # readable by this user only
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        yield told | {"file": path}
    finally:
        os.unlink(path)


def _authkey(told: Mapping[str, Any], environ: Mapping[str, str]) -> bytes:
    known = settings.secret(environ)
    if "file" in told:
        with open(told["file"], encoding="ascii") as file:
            known = file.read()
    return hashlib.sha256(f"{told['nonce']} {known}".encode()).digest()


def _world(environ: Mapping[str, str]) -> tuple[int, int]:
    missing = [name for name in _NEEDED if name not in environ]
    if missing:
        text = f"--on torchrun joins a world that torchrun made; {', '.join(missing)} not set"
        raise OrchError(text, code="E725", hint="torchrun --nproc-per-node N -m orch run RECIPE --on torchrun")
    try:
        return int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except ValueError as error:
        raise OrchError(f"RANK and WORLD_SIZE must be numbers: {error}", code="E725") from error


def _store(environ: Mapping[str, str]) -> Any:
    """Return a client of the store that torchrun runs. Under plain srun there is none: rank 0 opens it, at its own address
    and not at all of them, as torch would.
    """
    from torch.distributed.rendezvous import rendezvous

    if environ["RANK"] != "0" or environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or environ["WORLD_SIZE"] == "1":
        store, _, _ = next(rendezvous("env://"))
        return store
    from orch.gang import groups

    host = environ["MASTER_ADDR"]
    return groups.open_store(host, int(environ["MASTER_PORT"]))[0]
