"""What the driver of a run calls: open a run, hand over batches of steps, finish with results; every end is recorded.

    with Tracker(root).run(facts, resolved, origins) as run:
        run.stack("ddp").log_steps(batch)
        run.finish(results)

Left by the user's own fault before it started (an OrchError of exit code 2) it leaves nothing. Left by another exception
the run ends `failed`, by Ctrl-C or SIGTERM `interrupted`; a killed driver is found dead later.
Nothing here may end a training: a disk that refuses steps, or an index that is gone, is said once and training goes on.
What a full disk must still take, steps, results and the end, has room kept back for it (`reserve`).
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, cast

from orch.errors import OrchError, RunError
from orch.track import directory as directories
from orch.track import encoding, environment, indexer, reserve, state, steps
from orch.track.directory import Facts, RunDirectory
from orch.track.indexer import IndexUnavailableError
from orch.track.mounts import mount_of
from orch.track.redact import redact_text
from orch.track.settings import STORE_VARIABLE, Store, store_of
from orch.track.signals import signals_raise
from orch.track.stack_log import Stack
from orch.track.untracked import Untracked

Warn = Callable[[str], None]
FINISH_TIMEOUT_S = 20.0
# Large, and drawn from what else is kept: no room is kept back for these.
_DRAWN = ("figures/", "trace.json")


class StackLog(Protocol):
    """Takes what one stack did, for one seed."""

    def log_steps(self, batch: Sequence[steps.Step]) -> None:
        """Keep a batch of steps."""

    def log_values(self, batch: Sequence[steps.Value]) -> None:
        """Keep named figures, such as accuracies."""


class RunLog(Protocol):
    """Takes what a run did. `path` is None when tracking is off."""

    @property
    def path(self) -> Path | None:
        """The run directory."""

    @property
    def parent_run_id(self) -> str | None:
        """MLflow's id of the run once it is finished; None when there is no index."""

    def start(self) -> None:
        """Say that the workers are there, with model and data, and the run is no longer queued."""

    def stack(self, name: str, seed: int = 0) -> StackLog:
        """Return the log of a stack and seed."""

    def write(self, name: str, value: object, stack: str | None = None) -> None:
        """Keep a file: text or bytes as they are, anything else as JSON."""

    def trial(self, record: Mapping[str, object]) -> None:
        """Keep what came of a trial of a sweep; `record` has its `number`, and the last of a number counts."""

    def environment(self, **facts: object) -> None:
        """Add facts that only the run could measure, such as links, threads or seeds."""

    def rank_log(self, rank: int) -> Path | None:
        """Return where the log of a rank goes."""

    def finish(self, results: Mapping[str, object]) -> None:
        """Keep the results; the run is done."""


class Tracker:
    """Makes runs under `root`, and keeps their index (in `uri`, or where `settings` says) if MLflow is installed.

    With `enabled` False nothing is written and every call does nothing; with `index` False only the index is left out.
    One tracker serves any number of runs, one after the other.
    """

    def __init__(
        self, root: Path, *, uri: str | None = None, enabled: bool = True, index: bool = True, warn: Warn | None = None
    ) -> None:
        self._root = root.resolve()
        self._store = store_of(root, uri)
        self._enabled = enabled
        self._index = _Index(self._root, self._store, warn or _to_stderr) if index and indexer.available() else None
        self._warn = warn or _to_stderr

    def close(self) -> None:
        """Let go of the index. Without this call it is let go of when the interpreter ends."""
        if self._index is not None:
            self._index.close()

    @contextmanager
    def run(
        self,
        facts: Facts,
        resolved: Mapping[str, object],
        origins: Mapping[str, object] | None = None,
        project: Path | None = None,
    ) -> Iterator[RunLog]:
        """Open a run for the length of a with block. Raises OrchError when the directory cannot be made."""
        if not self._enabled:
            yield Untracked()
            return
        made = None
        try:
            made = directories.create(self._root, facts)
            directories.write_recipe(made, resolved, origins or {})
        except OSError as error:
            if made is not None:
                shutil.rmtree(made.path, ignore_errors=True)
            raise OrchError(
                f"cannot make a run under {self._root}: {error.strerror or error}",
                code="E801",
                hint="choose another place with --runs DIR",
            ) from error
        with self._opened(made, project) as run:
            yield run

    @contextmanager
    def take_up(self, made: RunDirectory, project: Path | None = None) -> Iterator[RunLog]:
        """Open a run that ended before it was done, to go on. OrchError (E820): another driver was faster, or the
        directory refuses.
        """
        try:
            with made.taken():
                _reopen(made)
                with self._opened(made, project, again=True) as run:
                    yield run
        except BlockingIOError as error:
            raise OrchError(f"run {made.id} is being taken up by another driver", code="E820") from error

    @contextmanager
    def _opened(self, made: RunDirectory, project: Path | None, *, again: bool = False) -> Iterator[Run]:
        run = Run(made, project or Path.cwd(), self._warn, self._index)
        with signals_raise():
            try:
                yield run
            except BaseException as error:
                if run.is_queued and isinstance(error, OrchError) and error.exit_code == 2 and not again:
                    run.discard()
                else:
                    run.close(*_end_of(error))
                raise
            run.close("failed", "left without results")


class Run:
    """A tracked run. Made by `Tracker.run`."""

    def __init__(self, directory: RunDirectory, project: Path, warn: Warn, index: _Index | None = None) -> None:
        self.directory = directory
        self.parent_run_id: str | None = None
        self._index = index
        self._announced = False
        self._warn = warn
        self._warned: set[str] = set()
        self._folders = directory.stack_folders()
        self._stacks: dict[tuple[str, int], Stack] = {}
        self._state = directory.state or state.new()
        self._began_s: float | None = None
        self._facts: dict[str, object] = {}
        self._collector = threading.Thread(target=self._collect, args=(project,), name="orch-environment", daemon=True)
        self._collector.start()

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def id(self) -> str:
        """The name of the run."""
        return self.directory.id

    def start(self) -> None:
        """Say that the workers are there, with model and data, and the run is no longer queued."""
        self._announce(training=True)
        self._began_s = self._began_s or time.monotonic()
        self._move("running")

    def stack(self, name: str, seed: int = 0) -> StackLog:
        """Return the log of a stack and seed. Raises KeyError for a stack the run was not opened with."""
        key = (name, seed)
        if key not in self._stacks:
            self._stacks[key] = Stack(self._folders[name], seed, self.insist)
        return self._stacks[key]

    def write(self, name: str, value: object, stack: str | None = None) -> None:
        """Keep a file: text and bytes as they are, else JSON. Raises ValueError for a name that leads out."""
        base = self.directory if stack is None else RunDirectory(self._folders[stack])
        path = base.inside(name)
        keep = self.attempt if name.startswith(_DRAWN) else self.insist
        if isinstance(value, bytes):
            keep(f"write {name}", lambda: encoding.write_bytes(path, value))
        elif isinstance(value, str):
            keep(f"write {name}", lambda: encoding.write_text(path, value))
        else:
            keep(f"write {name}", lambda: base.write_json(name, value))

    def trial(self, record: Mapping[str, object]) -> None:
        """Keep what came of a trial of a sweep: one line, one write."""
        self.attempt("keep trials", lambda: encoding.append_line(self.path / directories.TRIALS, record))

    def environment(self, **facts: object) -> None:
        """Add facts that only the run could measure, such as links, threads or seeds."""
        self._collector.join()
        self._facts |= facts
        self.attempt("write environment.json", lambda: self.directory.write_json("environment.json", self._facts))

    def rank_log(self, rank: int) -> Path:
        """Return where the log of a rank goes; its folder exists."""
        path = self.directory.log(rank)
        self.attempt("make the folder of logs", lambda: path.parent.mkdir(exist_ok=True))
        return path

    def finish(self, results: Mapping[str, object]) -> None:
        """Keep the results; the run is done. RunError (E812): the directory refuses them, so the run has failed."""
        refused = self.insist("write results.json", lambda: self.directory.write_json("results.json", results))
        if refused is not None:
            error = RunError(f"the results could not be kept: {refused.strerror or refused}", code="E812",
                             hint="make room; what was trained is kept, and orch run --resume goes on")  # fmt: skip
            self.close("failed", error.message)
            raise error
        self.close("done")
        if self._index is not None:
            self.parent_run_id = self._index.finish(self.path)

    def close(self, status: state.Status, reason: str = "") -> None:
        """End the run. The first end stands; later calls do nothing."""
        if not self._state.is_open:
            return
        self._collector.join(timeout=30)
        for stack in self._stacks.values():
            self.attempt("bring steps to the disk", stack.close)
        self._announce()
        self._move(status, reason)
        reserve.drop(self.path)
        if self._index is not None and status == "interrupted":
            self._index.hurry()

    @property
    def is_queued(self) -> bool:
        """Whether it has not started yet."""
        return self._state.status == "queued"

    def discard(self) -> None:
        """Leave nothing of a run that never started, such as one that its cluster can never hold."""
        self._collector.join()
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()  # the recipe's folder, if this was its only run

    def attempt(self, what: str, action: Callable[[], object]) -> OSError | None:
        """Do `action`; a disk that refuses is said once per kind of work, and training goes on."""
        try:
            action()
        except OSError as error:
            if what not in self._warned:
                self._warned.add(what)
                self._warn(f"tracking: cannot {what}: {error.strerror or error} ({self.path}); the run goes on")
            return error
        return None

    def insist(self, what: str, action: Callable[[], object]) -> OSError | None:
        """Do `action`, on a full disk with the room that was kept back for it; else as `attempt`."""

        def do() -> None:
            while True:
                try:
                    action()
                    return
                except OSError as error:
                    if not (reserve.is_full(error) and reserve.give(self.path)):
                        raise
                    if "reserve" not in self._warned:
                        self._warned.add("reserve")
                        self._warn(
                            f"tracking: {error.strerror} in {self.path}; what was kept back for its end is used now, and "
                            "the run goes on"
                        )

        return self.attempt(what, do)

    def _announce(self, *, training: bool = False) -> None:
        """Tell the index of this run, once. With `training` to come its process leaves the processors to that."""
        if self._index is not None and not self._announced:
            self._announced = True
            self._index.watch(self.path, background=training)

    def _move(self, status: state.Status, reason: str = "") -> None:
        ran_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        self._state = self._state.to(status, reason, ran_s)
        self.insist("write state.json", lambda: state.write(self.path, self._state))

    def _collect(self, project: Path) -> None:
        facts, diff = environment.collect(project)
        self._facts = facts | self._facts
        self.attempt("write environment.json", lambda: self.directory.write_json("environment.json", self._facts))
        self.attempt("write project.diff", lambda: directories.write_diff(self.directory, diff))


class _Index:
    """The index as a run sees it: asked, never waited for but at the end, and complained about once."""

    def __init__(self, root: Path, store: Store, warn: Warn) -> None:
        self._root = root
        self._store = store
        self._warn = warn
        self._warned = False
        self._indexer: indexer.Indexer | None = None

    def watch(self, run: Path, *, background: bool) -> None:
        """Start its process, which needs seconds to be ready, and have a run kept in it; in the `background` it gets what
        others leave. A store whose locks are not sure is said once.
        """
        mount = None if self._store.file is None else mount_of(self._store.file)
        if mount is not None and mount.network and self._indexer is None:
            self._warn(
                f"tracking: the index {redact_text(self._store.uri)} lies on {mount.kind}, where sqlite's locks are not sure; "
                f"{STORE_VARIABLE}=sqlite:////a/local/disk/mlflow.db names another place; runs are whole in their directories"
            )
        try:
            if self._indexer is None:
                self._indexer = indexer.Indexer(self._root, self._store, background=background)
            self._indexer.watch(run)
        except IndexUnavailableError as error:
            self._complain(error)

    def finish(self, run: Path) -> str | None:
        if self._indexer is None:
            return None
        try:
            return self._indexer.sync(run, FINISH_TIMEOUT_S)
        except IndexUnavailableError as error:
            self._complain(error)
            return cast("str | None", encoding.read_json(run / "index.json").get("parent_run_id"))

    def close(self) -> None:
        if self._indexer is not None:
            self._indexer.close()
            self._indexer = None

    def hurry(self) -> None:
        """Have nobody wait for it when the driver ends: it does what it was asked alone."""
        if self._indexer is not None:
            self._indexer.leaves_in_s = 0.0

    def _complain(self, error: IndexUnavailableError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"tracking: the index {redact_text(self._store.uri)} cannot be used ({error}); "
                "the run is complete in its directory, and `orch runs fix` makes the index anew"
            )


def _reopen(made: RunDirectory) -> None:
    try:
        directories.reopen(made)
    except OSError as error:
        text = f"run {made.id} cannot go on: its directory refuses: {error.strerror or error}"
        raise OrchError(text, code="E820", hint="make room, or let its owner go on with it") from error


def _end_of(error: BaseException) -> tuple[state.Status, str]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", str(error) or "Ctrl-C"
    if isinstance(error, SystemExit) and error.code in (130, 143):
        return "interrupted", f"exit {error.code}"
    return "failed", str(error) or type(error).__name__


def _to_stderr(message: str) -> None:
    sys.stderr.write(message + "\n")
