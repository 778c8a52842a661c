"""A Ray instance of our own on this machine: it joins nobody's, nobody finds it, and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

from orch.errors import RunError
from orch.gang import system
from orch.gang.janitor import JANITOR, sweep
from orch.gang.ray_lean import lean_start

# CPUs of our own instance only count bundles. What a machine cannot hold is refused by memory and GPUs, before.
LOGICAL_CPUS = 1024
_PREFIX = "orch-ray-"
_OBJECT_STORE_BYTES = 100 << 20
_LONGEST_TEMP = 15  # Ray's sockets below it get paths 92 longer (process ids of 7 digits), and 107 is the most


class LocalRay:
    """Starts on construction, ends with `close`; killed with the driver by the janitor if there is no time for that."""

    bundles = ("CPU",)  # one host, anywhere
    shaping = None
    note = ""

    def __init__(self, num_gpus: int = 0) -> None:
        _remove_stale()
        # Readable by this user only. Ray makes its own directory open to all, sockets included, so it gets one inside.
        self.directory = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_temp_root())
        self.tag = os.path.basename(self.directory)
        self._promise = JANITOR.guard(tag=self.tag, directory=self.directory)
        try:
            with system.deferred_interrupt(), born_with(self.tag, secrets.token_hex(32)):
                self.lean = self._start(num_gpus)
        except BaseException:
            self.close()
            raise

    def _start(self, num_gpus: int) -> bool:
        import ray

        options: dict[str, Any] = {
            "address": "local",
            "num_gpus": num_gpus,
            "include_dashboard": False,
            "log_to_driver": False,
            "configure_logging": False,
            "logging_level": logging.ERROR,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": os.path.join(self.directory, "r"),
        }
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            with _on_loopback(), lean_start():
                ray.init(num_cpus=LOGICAL_CPUS, _system_config={"enable_metrics_collection": False}, **options)
            return True
        except Exception:  # noqa: BLE001 - another version of Ray: start it as its authors meant it
            ray.shutdown()
            sweep(self.tag, "")
        try:
            with _on_loopback():
                ray.init(num_cpus=max(os.cpu_count() or 1, 16), **options)
        except Exception as error:
            text = str(error).strip().splitlines()
            raise RunError(
                f"a local Ray could not be started: {text[0] if text else type(error).__name__}",
                code="E721",
                hint="--on processes runs without Ray",
            ) from error
        return False

    def problem(self) -> str:
        """Return which process of the instance has died; nothing while all is well. Ray itself may need a minute."""
        worker: Any = importlib.import_module("ray._private.worker")
        with contextlib.suppress(AttributeError):
            dead = [kind for kind, _ in worker._global_node.dead_processes()]
            return f"{', '.join(dead)} of the local Ray died" if dead else ""
        return ""

    def close(self) -> None:
        """End the instance and remove its directory."""
        import ray

        with system.deferred_interrupt():
            try:
                ray.shutdown()
            finally:
                sweep(self.tag, self.directory)
                JANITOR.release(self._promise)
                read_environment_again()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Keep the address 127.0.0.1 for the time of a start: Ray replaces it by the machine's own, and then its servers
    listen on every interface.
    """
    with contextlib.ExitStack() as patches:
        with contextlib.suppress(AttributeError):  # another version of Ray: a token still keeps others out
            patches.enter_context(mock.patch("ray._private.services.resolve_ip_for_localhost", lambda host: host))
        yield


@contextlib.contextmanager
def born_with(tag: str, token: str) -> Iterator[None]:
    """Hold the environment that a Ray of ours is born with; the caller's own is back afterwards, RAY_AUTH_MODE included.

    `token`, handed on in the environment, keeps other users of the machine out; nothing is written to disk.
    """
    ours = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's own workers yield to everything else on the machine (niceness 15); what is measured here must not.
        "RAY_worker_niceness": "0",
        "ORCH_SESSION": tag,
    }
    with system.kept_environment():
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(ours)
        read_environment_again()
        yield


def read_environment_again() -> None:
    """Make Ray take its mode and token from the environment as it is now: it keeps those of its import otherwise."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _temp_root() -> str:
    root = tempfile.gettempdir()
    return root if len(root) <= _LONGEST_TEMP else "/tmp"


def stale_sessions() -> list[str]:
    """Return the directories of sessions of this user whose driver is gone; their names are the tags of their processes."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(_temp_root()):
            if not entry.name.startswith(_PREFIX) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            pid = entry.name[len(_PREFIX) :].partition("-")[0]
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                found.append(entry.path)
    return found


def remove_session(directory: str) -> None:
    """Kill what still runs of a session, and remove its directory."""
    sweep(os.path.basename(directory), directory)


def _remove_stale() -> None:
    """Remove what a driver left behind whose janitor was killed as well."""
    for directory in stale_sessions():
        remove_session(directory)
