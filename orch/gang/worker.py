"""What runs in a worker process: the loop that takes calls, and `Worker`, what a called function is given."""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import linecache
import os
import pickle
import queue
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from orch.errors import OrchError
from orch.gang import system
from orch.gang.progress import Progress

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]


class Spool(enum.Enum):
    """Where output goes when the driver's log directory is out of a worker's reach: its host ships it to the driver."""

    SPOOL = "spool"


SPOOL = Spool.SPOOL


@dataclass(frozen=True, slots=True)
class Spec:
    """What a worker is from birth to death. `host`: its address for collectives, `interface`: the one that
    was asked for by name. `device`: `cpu` or `cuda:0`. `cores`: those it is bound to; none: the kernel places it.
    """

    rank: int
    world_size: int
    threads: int
    device: str = "cpu"
    host: str = "127.0.0.1"
    interface: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a worker, as the driver needs it. `place` is `file:line` of the frame to look at."""

    kind: str
    text: str
    place: str
    lost_peer: bool
    error: OrchError | None = None


class Worker:
    """One rank of a gang: what every called function receives first.

    `rank`, `world_size`, `threads` (of torch in this process), `device` (`cpu`, `cuda:0`), `log_path` (this rank's log,
    None where output is not captured), `cache` (a dict that survives calls, for warm models and the like), `progress`
    (where this rank is; say it before waiting for others).
    """

    def __init__(self, spec: Spec, progress: Progress, emit: Callable[[Any], None]) -> None:
        self.rank = spec.rank
        self.world_size = spec.world_size
        self.threads = spec.threads
        self.device = spec.device
        self.log_path: str | None = None
        self.cache: dict[Any, Any] = {}
        self.progress = progress
        self.store_address: tuple[str, int] | None = None
        self._host = spec.host
        self._emit = emit
        self._store: Store | None = None

    def emit(self, event: Any) -> None:
        """Hand a small picklable record to the driver's `on_event(rank, event)`; returns at once, order is kept."""
        self._emit(event)

    def process_group(self, name: str, ranks: Sequence[int] | None = None, threads: int = 1) -> ProcessGroup:
        """Return the group of that name over `ranks` (all, in order, if None), made once and kept with the worker.

        Every rank of the group must ask for it. gloo on CPU, NCCL as well where the device is a GPU. `threads`: gloo's
        own (1 keeps completions in launch order; torch's DDP runs on 2). OrchError: this rank is not one of `ranks`.
        """
        members = list(range(self.world_size)) if ranks is None else list(ranks)
        key = ("process group", name, tuple(members), threads)
        if key not in self.cache:
            from orch.gang import groups

            if self.rank not in members:
                raise OrchError(f"rank {self.rank} asks for group '{name}' of ranks {members}", code="E711")
            prefix = f"{name}/{','.join(map(str, members))}/{threads}"
            self.cache[key] = groups.make_group(
                groups.PrefixStore(prefix, self._shared_store()),
                members.index(self.rank),
                len(members),
                host=self._host,
                device=self.device,
                threads=threads,
            )
        group: ProcessGroup = self.cache[key]
        return group

    def open_store(self) -> tuple[str, int]:
        """Open the store in which all ranks meet, on a port the kernel picks; for rank 0. Returns its address."""
        from orch.gang import groups

        self._store, port = groups.open_store(self._host)
        return self._host, port

    def _shared_store(self) -> Store:
        if self._store is None:
            from orch.gang import groups

            if self.store_address is None:
                self._store = groups.HashStore()  # a world of one meets nobody
            else:
                self._store = groups.join_store(*self.store_address)
        return self._store


def limit_threads(threads: int) -> None:
    """Hold torch and the libraries below it to `threads` threads in this process and what it starts."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def serve(spec: Spec, connection_descriptor: int, progress_descriptor: int, spool_descriptor: int) -> None:
    """Take calls until the driver closes the connection. Runs in a process of its own."""
    system.set_title(f"orch rank {spec.rank} of {spec.world_size}")
    connection = Connection(connection_descriptor)
    os.environ.update(spec.env)
    if spec.interface:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", spec.interface)
    limit_threads(spec.threads)
    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    faulthandler.enable()
    outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_send_all, args=(outbox, connection), daemon=True).start()
    progress = Progress(progress_descriptor)
    worker = Worker(spec, progress, lambda event: outbox.put(pickle.dumps(("event", event))))
    store = worker.open_store() if spec.rank == 0 and spec.world_size > 1 else None
    outbox.put(pickle.dumps(("ready", store)))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # threads of libraries and other ranks' groups are not worth an orderly end
        outbox.put(_answer(worker, message, spool_descriptor))


def _send_all(outbox: queue.SimpleQueue[bytes], connection: Connection) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection.send_bytes(outbox.get())


def _answer(worker: Worker, message: bytes, spool_descriptor: int) -> bytes:
    worker.progress.clear()
    try:
        log, worker.store_address, payload = pickle.loads(message)
        worker.log_path = log if isinstance(log, str) else None
        redirect(spool_descriptor if log is SPOOL else log)
        function, arguments = pickle.loads(payload)
        result = function(worker, *arguments)
        return pickle.dumps(("result", result))
    except BaseException as error:  # noqa: BLE001 - the driver decides what a worker's exception means
        with contextlib.suppress(OSError):  # a disk too full for a log is not the failure that counts
            traceback.print_exc()
        failure = ("failure", describe(error))
        try:
            return pickle.dumps(failure)
        except Exception:  # noqa: BLE001 - an OrchError that cannot travel still has its text
            return pickle.dumps(("failure", Failure(type(error).__name__, str(error), place_of(error), False)))
    finally:
        _flush()


def redirect(log: str | int | None) -> None:
    """Send what this process prints, C++ libraries included, to a path, to an open descriptor, or nowhere (None, or where
    the path refuses).
    """
    _flush()
    try:
        target = (
            log if isinstance(log, int) else os.open(log or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        )
    except OSError:  # no room for a log, or no way to it, ends no training
        target = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    if target != log:
        os.close(target)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def describe(error: BaseException) -> Failure:
    """Return what the driver says about `error`: its type, first line, and the frame nearest to it in project code."""
    lines = str(error).strip().splitlines()
    return Failure(
        kind=type(error).__name__,
        text=lines[0] if lines else "",
        place=place_of(error),
        lost_peer=_lost_peer(error),
        error=error if isinstance(error, OrchError) else None,
    )


def place_of(error: BaseException) -> str:
    """Return `file:line` of the innermost frame outside installed packages and the standard library."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*installed, "<")) and linecache.getline(f.filename, 1)]
    own = [f for f in own if f.filename != __file__] or own
    frame = own[-1] if own else (frames[-1] if frames else None)
    return f"{frame.filename}:{frame.lineno}" if frame is not None else ""


def _lost_peer(error: BaseException) -> bool:
    """Tell whether `error` is how a collective reports that another rank went away: a consequence, not a cause."""
    if isinstance(error, OrchError) and isinstance(error.__cause__, RuntimeError):
        error = error.__cause__
    if type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return True
    text = str(error)
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "gloo")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)
