"""A process that has torch loaded and forks workers from itself in milliseconds; it never outlives its owner.

The owner holds one end of a socket. When that end closes, however the owner died, the server kills every worker and
leaves; and when the server itself is killed, the kernel kills the workers. The server reaps them, so exit codes and
signals are exact, and a kill order cannot hit a reused process id.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from orch.gang import system

_BOOT = "import sys; sys.path[:] = {path!r}; from orch.gang.fork_server import serve; serve({fd}, {preload!r})"

# What every worker of a run needs, loaded once before the first fork. The first optimiser loads torch._dynamo (1.5 s).
PRELOAD = ("torch", "torch._dynamo", "hydra.utils", "orch.runtime.session")


class ForkServer:
    """The owner's side: start a worker, learn how workers ended, kill one."""

    def __init__(self, preload: Sequence[str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        boot = _BOOT.format(
            path=[p or os.getcwd() for p in sys.path],
            fd=theirs.fileno(),
            preload=list(PRELOAD if preload is None else preload),
        )
        with theirs:
            # Its own session: Ctrl-C in the terminal reaches the driver only, which then ends the workers in order.
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # standard output belongs to the driver's result
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())
        self.owner = os.getpid()
        self._lock = threading.RLock()
        self._exits: dict[int, int] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, main: Callable[..., None], spec: Any, descriptors: Sequence[int]) -> int:
        """Return the pid of a new process that runs `main(spec, *descriptors)` and leaves. EOFError: server dead."""
        with self._lock:
            try:
                self.connection.send(("fork", pickle.dumps((main, spec)), len(descriptors)))
                for descriptor in descriptors:
                    reduction.send_handle(self.connection, descriptor, self.pid)
                while True:
                    message = self.connection.recv()
                    if message[0] == "born":
                        return int(message[1])
                    self._note(message)
            except OSError as error:
                raise EOFError("the fork server is gone") from error

    def exit_of(self, pid: int) -> int | None:
        """Return how `pid` ended (negative: by that signal), None while it lives. Kernel's word, through the server.

        That the server is dead is read off its socket. `Popen.poll` would know too, but a Ctrl-C inside it can leave its
        lock taken, and the wait in `close` would never end.
        """
        with self._lock:
            try:
                while self.connection.poll():
                    self._note(self.connection.recv())
            except (EOFError, OSError):
                self._exits.setdefault(pid, -signal.SIGKILL)  # the kernel has killed all workers with their server
            return self._exits.get(pid)

    def kill(self, pid: int) -> None:
        """Kill `pid` and what it started; nothing happens if it has ended."""
        with self._lock, contextlib.suppress(OSError):
            self.connection.send(("kill", pid))

    def close(self) -> None:
        """End the server and every worker it made."""
        with self._lock:
            self.connection.close()
            self._process.wait()

    def _note(self, message: tuple[Any, ...]) -> None:
        if message[0] == "died":
            self._exits[message[1]] = message[2]


def serve(descriptor: int, preload: Sequence[str]) -> NoReturn:
    """Run the server until its owner's end of the socket closes."""
    system.set_title("orch fork server")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    connection = Connection(descriptor)
    for name in preload:
        with contextlib.suppress(Exception):  # a worker that needs it will say so itself, in its log
            importlib.import_module(name)
    # What is loaded stays: 300,000 objects that no worker's collector has to go through again (0.15 s before every block).
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    own = (connection.fileno(), wake_read, wake_write)
    try:
        while True:
            ready = wait([connection, wake_read])
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                _reap(children, connection)
            if connection in ready:
                _obey(connection.recv(), connection, children, own)
    except (EOFError, OSError):
        for child in children:
            _kill_group(child)
        os._exit(0)


def _obey(order: tuple[Any, ...], connection: Connection, children: set[int], own: Sequence[int]) -> None:
    if order[0] == "kill":
        if order[1] in children:
            _kill_group(order[1])
        return
    _, payload, count = order
    descriptors = [reduction.recv_handle(connection) for _ in range(count)]
    server = os.getpid()
    child = os.fork()
    if child == 0:
        _become_worker(payload, descriptors, own, server)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    for descriptor in descriptors:
        os.close(descriptor)
    children.add(child)
    connection.send(("born", child))


def _become_worker(payload: bytes, descriptors: Sequence[int], own: Sequence[int], server: int) -> NoReturn:
    status = 1
    try:
        system.die_with_parent(server)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)  # a group of its own, so that what the worker starts can be ended with it
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in own:
            os.close(descriptor)
        main, spec = pickle.loads(payload)
        main(spec, *descriptors)
        status = 0
    except BaseException:  # noqa: BLE001 - a forked child must not unwind into the server's frames
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _reap(children: set[int], connection: Connection) -> None:
    for child in list(children):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            _kill_group(child)  # whatever it had started and not ended; its id cannot be reused before it is reaped
            _, status = os.waitpid(child, 0)
            children.discard(child)
            connection.send(("died", child, os.waitstatus_to_exitcode(status)))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
