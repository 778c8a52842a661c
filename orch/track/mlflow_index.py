"""MLflow as an index over run directories. The only module that imports mlflow, and it runs in a process of its own.

An experiment per recipe name; a parent run per invocation; a child per stack, which carries the stack's results and,
for a single seed, its steps; with several seeds a grandchild per seed carries them. `sync` makes the entries of a
directory say what it says, as often as it is called: while the run goes on, after it was killed, or in a new store.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlparse

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException

from orch.track import describe, directory, encoding
from orch.track.describe import Part
from orch.track.directory import RunDirectory
from orch.track.redact import redact_text
from orch.track.settings import Store
from orch.track.state import State
from orch.track.steps import Follower

_STATUS = {
    "queued": "SCHEDULED",
    "running": "RUNNING",
    "done": "FINISHED",
    "failed": "FAILED",
    "killed": "KILLED",
    "interrupted": "KILLED",
}
_METRICS_A_BATCH = 1000
_PARAMS_A_BATCH = 100
_COPY_LIMIT_BYTES = 2**20
_COPIED = ("recipe.yaml", "origins.json", "environment.json", "project.diff", "results.json", "plan.json", "figures/*")


class _Entry:
    """One MLflow run: which part of a directory it stands for, and how much of it has been sent."""

    def __init__(self, run_id: str, artifact_uri: str) -> None:
        self.run_id = run_id
        self.artifact_uri = artifact_uri
        self.status = "RUNNING"
        self.tags: dict[str, str] = {}
        self.follower = Follower()


class Index:
    """The entries of one store. Every method may raise whatever MLflow, its database or the network raises."""

    def __init__(self, store: Store) -> None:
        for name in ("mlflow", "alembic", "sqlalchemy"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._store = store
        self._entries: dict[Path, dict[str, _Entry]] = {}
        self._experiments: dict[str, str] = {}
        with _opening(store):
            self._client = MlflowClient(store.uri)
            self._client.search_experiments(max_results=1)
        self._inode = _inode(store)

    def sync(self, run: RunDirectory) -> str:
        """Bring the entries of a run up to date with its directory; return the id of the parent run."""
        if _inode(self._store) != self._inode:
            raise OSError(f"{self._store.file} was moved, deleted or replaced meanwhile")
        state = run.state
        if state is None:
            raise ValueError(f"{run.path} has no readable state.json")
        with _alone(run.path):
            try:
                return self._sync(run, state)
            except Exception:
                # What was sent is unknown, or somebody removed an entry meanwhile: look, and make anew what is not whole.
                if self._entries.pop(run.path, None) is None:
                    raise
            return self._sync(run, state)

    def forget(self, run_id: str) -> int:
        """Remove the entries of a run; return how many there were."""
        found = self._search(f"tags.`orch.id` = {_quoted(run_id)}")
        for entry in found:
            self._drop(entry.info.run_id, entry.info.artifact_uri)
        return len(found)

    def rebuild(self, root: Path) -> tuple[int, int]:
        """Sync every run under `root` that is over, and remove entries whose directory is gone; return (synced, removed)."""
        there = {run.id: (run, found) for run in directory.find_all(root) if (found := run.state) is not None}
        # A run that goes on is kept in the index by the process of its own driver.
        ended = [run for run, found in there.values() if not found.is_open or found.is_orphan]
        for run in ended:
            self.sync(run)
        removed = 0
        for entry in self._search("tags.`orch.part` = 'run'"):
            path = Path(entry.data.tags.get("orch.run_dir", ""))
            if path.is_relative_to(root) and entry.data.tags.get("orch.id") not in there and not path.exists():
                self.forget(entry.data.tags["orch.id"])
                removed += 1
        return len(ended), removed

    def is_stale(self) -> bool:
        """Whether a local store was moved here with its directory, so that its absolute locations lead elsewhere."""
        places = [
            self._local_path(e.artifact_location) for e in self._client.search_experiments() if e.name != "Default"
        ]
        return self._store.local and any(place is None for place in places)

    def _sync(self, run: RunDirectory, state: State) -> str:
        parts = describe.parts(run, state)
        entries = self._entries.get(run.path)
        if entries is None:
            entries = self._find(run, parts)
        for part in parts:
            parent = entries[part.parent].run_id if part.parent else None
            if part.key not in entries:
                entries[part.key] = self._create(run, part, state, parent)
            self._update(entries[part.key], part, state)
        if not state.is_open:
            for part in reversed(parts):
                entries[part.key] = self._close(run, part, state, entries)
            self._entries.pop(run.path, None)
        else:
            self._entries[run.path] = entries
        return entries[parts[0].key].run_id

    def _find(self, run: RunDirectory, parts: list[Part]) -> dict[str, _Entry]:
        """Return the entries that can be kept; drop those that were left half written or whose links lead elsewhere."""
        known = {part.key: part for part in parts}
        kept: dict[str, _Entry] = {}
        for found in self._search(f"tags.`orch.id` = {_quoted(run.id)}", run.recipe_name):
            key = found.data.tags.get("orch.part", "")
            part = known.get(key)
            complete = part is not None and found.data.tags.get("orch.content") == part.content
            if key in kept or not (complete or key == describe.RUN):
                self._drop(found.info.run_id, found.info.artifact_uri)
                continue
            entry = kept[key] = _Entry(found.info.run_id, found.info.artifact_uri)
            entry.status = found.info.status
            entry.tags = dict(found.data.tags)
            if part is not None and complete:
                entry.follower.skip(part.steps, part.values)
        return kept

    def _create(self, run: RunDirectory, part: Part, state: State, parent: str | None) -> _Entry:
        tags = {**part.tags, "mlflow.parentRunId": parent} if parent else dict(part.tags)
        start_ms = int(state.created_s * 1000)
        made = self._client.create_run(self._experiment(run.recipe_name), start_ms, tags, part.name)
        entry = _Entry(made.info.run_id, made.info.artifact_uri)
        entry.tags = tags
        for start in range(0, len(part.params), _PARAMS_A_BATCH):
            some = list(part.params.items())[start : start + _PARAMS_A_BATCH]
            self._client.log_batch(entry.run_id, params=[Param(key, value) for key, value in some])
        self._link(entry, part.folder)
        if part.key == describe.RUN:
            encoding.write_json(
                run.path / "index.json", {"store": redact_text(self._store.uri), "parent_run_id": entry.run_id}
            )
        return entry

    def _update(self, entry: _Entry, part: Part, state: State) -> None:
        changed = {key: value for key, value in part.tags.items() if entry.tags.get(key) != value}
        if changed:
            self._client.log_batch(entry.run_id, tags=[RunTag(key, value) for key, value in changed.items()])
            entry.tags |= changed
        status = _STATUS[part.status or state.status]
        if state.is_open and entry.status != status:
            self._client.update_run(entry.run_id, status=status)
            entry.status = status
        self._send(entry, part, state)

    def _send(self, entry: _Entry, part: Part, state: State) -> None:
        steps, values = entry.follower.new(part.steps, part.values)
        self._log(entry, describe.step_metrics(steps, values, state.created_s))

    def _log(self, entry: _Entry, metrics: list[describe.Point]) -> None:
        for start in range(0, len(metrics), _METRICS_A_BATCH):
            some = metrics[start : start + _METRICS_A_BATCH]
            self._client.log_batch(entry.run_id, metrics=[Metric(p.key, p.value, p.time_ms, p.step) for p in some])

    def _close(self, run: RunDirectory, part: Part, state: State, entries: dict[str, _Entry]) -> _Entry:
        entry, status = entries[part.key], _STATUS[part.status or state.status]
        if entry.tags.get("orch.content") == part.content and entry.status == status:
            return entry
        if entry.follower.repeated and part.parent:
            # MLflow keeps both of two values for one step; the last counts, so the entry is made anew, from the end.
            self._drop(entry.run_id, entry.artifact_uri)
            entry = self._create(run, part, state, entries[part.parent].run_id)
            steps, values = part.read()
            self._log(entry, describe.step_metrics(steps, values, state.created_s))
        ended_ms = int((state.ended_s or time.time()) * 1000)
        self._log(entry, describe.result_metrics(part.results, ended_ms))
        self._copy(entry, part.folder)
        tags = describe.result_tags(part) | {"orch.content": part.content}
        self._client.log_batch(entry.run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        self._client.set_terminated(entry.run_id, status, ended_ms)
        entry.status = status
        return entry

    def _experiment(self, recipe: str) -> str:
        name = describe.experiment_name(recipe)
        if name not in self._experiments:
            self._experiments[name] = self._open_experiment(name)
        return self._experiments[name]

    def _open_experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            place = (self._store.artifacts / directory.slug(name)).as_uri() if self._store.links else None
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:
                found = self._client.get_experiment_by_name(name)  # another driver was first
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _search(self, query: str, recipe: str | None = None) -> list[Run]:
        experiments = (
            [self._experiment(recipe)]
            if recipe is not None
            else [found.experiment_id for found in self._client.search_experiments(max_results=5000)]
        )
        runs: list[Run] = []
        token = None
        while True:
            page = self._client.search_runs(experiments, query, ViewType.ACTIVE_ONLY, 1000, page_token=token)
            runs.extend(page)
            token = page.token
            if not token:
                return runs

    def _drop(self, run_id: str, artifact_uri: str) -> None:
        place = self._local_path(artifact_uri)
        if place is not None and place.is_symlink():
            shutil.rmtree(place.parent)
        self._client.delete_run(run_id)

    def _local_path(self, uri: str) -> Path | None:
        """Return the path of an artifact location inside our index, or None for any other."""
        parsed = urlparse(uri)
        path = Path(unquote(parsed.path))
        ours = parsed.scheme in ("", "file") and path.is_relative_to(self._store.artifacts)
        return path if ours else None

    def _link(self, entry: _Entry, folder: Path) -> None:
        """Show the directory itself as the artifacts of its entry: nothing is copied, nothing can differ."""
        place = self._local_path(entry.artifact_uri)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(os.path.relpath(folder, place.parent), target_is_directory=True)

    def _copy(self, entry: _Entry, folder: Path) -> None:
        """Send small files to a store that cannot see this disk, or keeps its artifacts elsewhere."""
        if self._local_path(entry.artifact_uri) is not None:
            return
        for path in [found for pattern in _COPIED for found in sorted(folder.glob(pattern))]:
            if path.is_file() and path.stat().st_size <= _COPY_LIMIT_BYTES:
                parent = path.parent.relative_to(folder)
                self._client.log_artifact(entry.run_id, str(path), None if parent == Path() else parent.as_posix())


@contextmanager
def _opening(store: Store) -> Iterator[None]:
    """Let one process at a time create or migrate a database: several at once ruin a fresh sqlite file."""
    if store.file is None:
        yield
        return
    store.file.parent.mkdir(parents=True, exist_ok=True)
    with store.file.with_name(store.file.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Let one process at a time write the entries of a run: its driver's, or one that mends after its death."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _inode(store: Store) -> int | None:
    try:
        return store.file.stat().st_ino if store.file is not None else None
    except OSError:
        return None


def _quoted(text: str) -> str:
    # Ids hold no quotes; a forged one must not end the string.
    return "'" + text.replace("'", "") + "'"
