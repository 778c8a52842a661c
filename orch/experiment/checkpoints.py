"""The driver's side of checkpoints: when one is due, when it is complete, which is the newest, and what may go.

Below a run's root, `<stack>/seed<n>/step-<s>/` holds a file of every rank. When all are written the driver adds
`complete.json`; without it a checkpoint does not exist. Checkpoints lie between blocks, so no timed step pays for one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.errors import OrchError
from orch.gang import Gang
from orch.recipe import Recipe
from orch.recipe.schema import Checkpoint
from orch.runtime import keep
from orch.runtime.checkpoint import FORMAT, Saved
from orch.runtime.storage import Storage, storage_of
from orch.track.directory import slug

EVERY_S = 60.0
_COMPLETE = "complete.json"
_PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint lies, and after how many steps it was taken."""

    root: str
    folder: str
    step: int


class Checkpoints:
    """The checkpoints of one run. `say` is told once what kept one from being written; training goes on."""

    def __init__(self, recipe: Recipe, run: Path | None, say: Callable[[str], None]) -> None:
        self._settings = {name: stack.train.checkpoint for name, stack in recipe.stacks.items()}
        self._world_size = recipe.cluster.world_size
        self._say = say
        self._said: set[str] = set()
        name = f"{slug(recipe.name)}-{secrets.token_hex(4) if run is None else run.name}"
        self._roots = {name_: _root(setting, run, name) for name_, setting in self._settings.items()}
        self._storages: dict[str, Storage] = {root: storage_of(root) for root in self._roots.values() if root}
        self._unseen: set[str] = set()
        self._pending: dict[tuple[str, int, int], dict[int, int]] = {}
        self._last: dict[tuple[str, int], tuple[int, float]] = {}

    def expect(self, world_size: int) -> None:
        """Take checkpoints of so many ranks from now on; those of more are found as well."""
        self._world_size = world_size

    def open(self, gang: Gang) -> None:
        """Find out whether every rank sees where checkpoints go; where one does not, none is taken, and that is said."""
        self._pending.clear()
        self._unseen.clear()
        for root, storage in self._storages.items():
            token = secrets.token_hex(8)
            try:
                storage.write(_PROBE, [token.encode()])
            except OSError as error:
                self._refused(root, str(error.strerror or error))
                self._unseen.add(root)
                continue
            blind = [rank for rank, found in enumerate(gang.call(keep.sees, root, _PROBE, token)) if not found]
            if blind:
                self._unseen.add(root)
                self._once(f"rank {blind[0]} does not see {root}, so no checkpoints are taken: a lost worker costs the "
                           "training so far; train.checkpoint.path names a place that all ranks see")  # fmt: skip

    def due(self, stack: str, seed: int, step: int, *, last: bool = False) -> Place | None:
        """Return where a checkpoint goes that is to be taken now, or None. `last`: the training is at its end."""
        setting, root = self._settings[stack], self._roots[stack]
        if root is None or root in self._unseen:
            return None
        before, when_s = self._last.setdefault((stack, seed), (0, time.monotonic()))
        if last:
            wanted = setting is not None and step > before
        elif any(key[:2] == (stack, seed) for key in self._pending):
            wanted = False  # the last one is still being written: memory holds one copy, not two
        elif setting is None or setting.every is None:
            wanted = time.monotonic() - when_s >= EVERY_S
        else:
            wanted = step - before >= setting.every
        if not wanted:
            return None
        self._last[stack, seed] = (step, time.monotonic())
        self._pending[stack, seed, step] = {}
        return Place(root, f"{_training(stack, seed)}/step-{step:010d}", step)

    def heard(self, rank: int, saved: Saved) -> None:
        """Take what a rank said of its part; the last part completes the checkpoint."""
        key = (saved.stack, saved.seed, saved.step)
        parts = self._pending.get(key)
        root = self._roots[saved.stack]
        if parts is None or root is None:
            return
        folder = f"{_training(saved.stack, saved.seed)}/step-{saved.step:010d}"
        try:
            if saved.error:
                raise OSError(saved.error)
            parts[rank] = saved.nbytes
            if len(parts) == self._world_size:
                del self._pending[key]
                facts = {"format": FORMAT, "step": saved.step, "bytes": [parts[rank] for rank in sorted(parts)]}
                self._storages[root].write(f"{folder}/{_COMPLETE}", [json.dumps(facts).encode()])
                self._thin(saved.stack, saved.seed)
        except OSError as error:
            self._pending.pop(key, None)
            self._refused(root, str(error.strerror or error))
            self._remove(root, folder)

    def found(self, stack: str, seed: int, steps: int) -> Iterator[Place]:
        """Yield the complete checkpoints of at most `steps` steps, the newest first."""
        root = self._roots[stack]
        if root is None or root in self._unseen:
            return
        training = _training(stack, seed)
        for name in reversed(self._names(root, training)):
            step = int(name.removeprefix("step-")) if name.startswith("step-") else steps + 1
            facts = self._facts(root, f"{training}/{name}")
            if step <= steps and facts.get("format") == FORMAT and len(facts.get("bytes", ())) >= self._world_size:
                self._last[stack, seed] = (step, time.monotonic())
                yield Place(root, f"{training}/{name}", step)

    def close(self, *, done: bool) -> None:
        """Tidy up. `done`: the run has its results, so what was kept only to recover it goes."""
        for root in self._storages:
            self._remove(root, _PROBE) if not done else None
            if done and all(self._settings[name] is None for name, its in self._roots.items() if its == root):
                self._remove(root, "")

    def _thin(self, stack: str, seed: int) -> None:
        setting, root = self._settings[stack], self._roots[stack]
        assert root is not None
        training = _training(stack, seed)
        names = self._names(root, training)
        whole = [name for name in names if self._facts(root, f"{training}/{name}")]
        kept = set(whole[-(1 if setting is None else setting.keep) :])
        for name in names:
            if name not in kept and name < max(kept):
                self._remove(root, f"{training}/{name}")

    def _names(self, root: str, folder: str) -> Sequence[str]:
        try:
            return self._storages[root].names(folder)
        except OSError as error:
            self._refused(root, str(error.strerror or error))
            return []

    def _facts(self, root: str, folder: str) -> dict[str, Any]:
        try:
            found = json.loads(self._storages[root].read(f"{folder}/{_COMPLETE}"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _remove(self, root: str, folder: str) -> None:
        try:
            self._storages[root].remove(folder)
        except OSError as error:
            self._refused(root, str(error.strerror or error))

    def _refused(self, root: str, reason: str) -> None:
        self._once(
            f"a checkpoint could not be kept in {root}: {reason}; training goes on, the last complete one stands"
        )

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def refuse(recipe: Recipe) -> None:
    """Raise OrchError (E660) for a place of checkpoints that cannot exist, before anything is started."""
    for stack in recipe.stacks.values():
        setting = stack.train.checkpoint
        if setting is not None and setting.path is not None:
            try:
                storage_of(setting.path)
            except OrchError as error:
                raise error.at(recipe.origin("train.checkpoint.path").where) from error


def _root(setting: Checkpoint | None, run: Path | None, name: str) -> str | None:
    if setting is not None and setting.path is not None:
        return f"{setting.path.rstrip('/')}/{name}"
    return None if run is None else str(run / "checkpoints")


def _training(stack: str, seed: int) -> str:
    return f"{slug(stack)}/seed{seed}"
