"""What a worker does about checkpoints when it is called: take one, go on from one, train again what was lost."""

from __future__ import annotations

from typing import Any

from orch.errors import RunError
from orch.runtime.checkpoint import Saved, Writer, alike, decode, take
from orch.runtime.session import Place, training_of
from orch.runtime.storage import storage_of

_WRITER = "checkpoint writer"


def sees(worker: Place, root: str, name: str, token: str) -> bool:
    """Return whether this rank finds the driver's file `name` at `root`, which holds `token`."""
    try:
        return storage_of(root).read(name) == token.encode()
    except (OSError, ValueError):
        return False


def save(worker: Place, stack: str, seed: int, root: str, folder: str) -> int:
    """Take a checkpoint of a stack as this rank holds it; return its step. Every rank must be called.

    Copies the state and returns; a thread writes `rank<n>.safetensors` into `folder` and emits `Saved`.
    """
    training = training_of(worker, stack, seed)
    snapshot = take(training.state_dict())
    if worker.world_size > 1:
        worker.progress.set(task="comparing states", waiting=True)
        shared = alike(worker.process_group("meet"), snapshot)
        worker.progress.set(task=None, waiting=False)
        if worker.rank:
            snapshot = snapshot.without(shared)
    step = training.engine.step
    _writer(worker).write(root, f"{folder}/rank{worker.rank}.safetensors", snapshot, Saved(stack, seed, step))
    return step


def written(worker: Place) -> None:
    """Return when every checkpoint taken so far is written; what became of each has been emitted."""
    _writer(worker).wait()


def restore(worker: Place, stack: str, seed: int, root: str, folder: str) -> str | None:
    """Put a loaded stack where its checkpoint in `folder` left it; return what is wrong with the checkpoint, or None."""
    storage = storage_of(root)
    training = training_of(worker, stack, seed)
    try:
        found = decode(storage.read(f"{folder}/rank{worker.rank}.safetensors"))
        if worker.rank:
            found = found.over(decode(storage.read(f"{folder}/rank0.safetensors")))
        training.load_state_dict(found.state())
    except (OSError, RunError, KeyError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return f"the checkpoint {folder} cannot be used on rank {worker.rank}: {reason}"
    return None


def _writer(worker: Place) -> Writer:
    if _WRITER not in worker.cache:
        worker.cache[_WRITER] = Writer(worker.emit)
    writer: Any = worker.cache[_WRITER]
    return writer  # type: ignore[no-any-return]
