"""The driver's end of the index: starts the process that keeps it, and asks it without ever being held up for long."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import orch
from orch.track.redact import redact_text
from orch.track.settings import STORE_VARIABLE, Store

LOG_LIMIT_BYTES = 2**20
_LEAVES_IN_S = 5.0
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "GIT_PYTHON_REFRESH": "quiet",
    "PYTHONUNBUFFERED": "1",
}


class IndexUnavailableError(Exception):
    """The store cannot be used, or did not answer in time; one line says why. Runs go on without it."""


def available() -> bool:
    """Return whether MLflow is installed; it is not imported."""
    return importlib.util.find_spec("mlflow") is not None


class Indexer:
    """One process that keeps the index of `root`. It starts at once and needs seconds to be ready; nobody waits for it.

    With `background` training has the processors first. `leaves_in_s`: how long `close` waits for it. Raises
    IndexUnavailableError where no process can be started.
    """

    def __init__(self, root: Path, store: Store, *, background: bool = False) -> None:
        self.leaves_in_s = _LEAVES_IN_S
        self._root = root
        self._store = store
        self._asked = 0
        self._buffer = b""
        self._niceness = 19 if background else 0
        self._process = _start(root, store, self._niceness)
        atexit.register(self.close)

    def watch(self, run: Path) -> None:
        """Have a run kept in the index from now on, and closed there should this process die. Does not wait."""
        self._send({"do": "watch", "run": str(run)})

    def sync(self, run: Path, timeout_s: float) -> str:
        """Bring a run up to date; return the id of its parent run."""
        return str(self._ask({"do": "sync", "run": str(run)}, timeout_s)["parent_run_id"])

    def forget(self, run_id: str, timeout_s: float) -> int:
        """Remove the entries of a run; return how many there were."""
        return int(cast("int", self._ask({"do": "forget", "id": run_id}, timeout_s)["removed"]))

    def rebuild(self, timeout_s: float) -> dict[str, object]:
        """Make the index from the directories; return counts `synced` and `removed`, and what was `set_aside` or None.

        A local store that is ruined, or was moved here with its directory, is set aside and a new one is made.
        """
        answer = self._ask({"do": "rebuild"}, timeout_s)
        aside = answer.get("set_aside")
        if aside is not None:
            self.close()
            self._buffer = b""
            self._process = _start(self._root, self._store, self._niceness)
            atexit.register(self.close)
            answer = self._ask({"do": "rebuild"}, timeout_s)
        return {"synced": answer["synced"], "removed": answer["removed"], "set_aside": aside}

    def close(self) -> None:
        """Let the process finish what it was asked and leave; one that takes longer goes on alone and then leaves."""
        atexit.unregister(self.close)
        with suppress(IndexUnavailableError):
            self._send({"do": "leave"})
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(self.leaves_in_s)
        except subprocess.TimeoutExpired:
            self._process.returncode = 0  # not ours to wait for any more

    def _ask(self, request: Mapping[str, object], timeout_s: float) -> dict[str, object]:
        number = self._send(request)
        until = time.monotonic() + timeout_s
        while True:
            answer = self._receive(until)
            if answer.pop("ask", None) == number:
                if "error" in answer:
                    raise IndexUnavailableError(str(answer["error"]))
                return answer

    def _send(self, request: Mapping[str, object]) -> int:
        self._asked += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({**request, "ask": self._asked}).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise IndexUnavailableError(self._why_it_ended()) from error
        return self._asked

    def _receive(self, until: float) -> dict[str, object]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise IndexUnavailableError("it did not answer in time")
                data = os.read(descriptor, 65536)
                if not data:
                    raise IndexUnavailableError(self._why_it_ended())
                self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return cast("dict[str, object]", json.loads(line))

    def _why_it_ended(self) -> str:
        try:
            lines = (self._store.index_dir / "index.log").read_text("utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return f"its process ended: {redact_text(lines[-1]) if lines else 'no reason given'}"


def _start(root: Path, store: Store, niceness: int) -> subprocess.Popen[bytes]:
    try:
        store.index_dir.mkdir(parents=True, exist_ok=True)
        log = store.index_dir / "index.log"
        mode = "ab" if not log.exists() or log.stat().st_size < LOG_LIMIT_BYTES else "wb"
        with log.open(mode) as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "orch.track.index_process", str(root.absolute()), str(niceness)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=store.index_dir,
                env=_environment(store),
                start_new_session=True,  # Ctrl-C in a terminal is for the driver
            )
    except OSError as error:
        raise IndexUnavailableError(error.strerror or str(error)) from error


def _environment(store: Store) -> dict[str, str]:
    # The interpreter finds the same orch, wherever that was imported from.
    home = str(Path(orch.__file__).parent.parent)
    path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH", "")) if part)
    chosen = {**os.environ, **QUIET, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    # Not as an argument: a URI may hold a password, and everybody may read command lines.
    chosen[STORE_VARIABLE] = "" if store.local else store.uri
    return chosen
