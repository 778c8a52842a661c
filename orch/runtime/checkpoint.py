"""What a checkpoint of one rank holds, and its form: tensors by path as safetensors, all else as JSON in its header.

Reading one executes nothing. The state is copied when a checkpoint is taken, which is all that training waits for;
a thread of this process writes the copy. An entry that all ranks hold alike (parameters, as a rule) is written once,
by rank 0; what a rank holds alone (residuals, running means) it writes itself.
"""

from __future__ import annotations

import json
import queue
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orch.errors import RunError
from orch.runtime.storage import Part, storage_of

FORMAT = 1
# safetensors' own names of the dtypes that a state may hold.
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ALIGNED = 8


@dataclass(frozen=True)
class Snapshot:
    """A state apart from the training it was taken of: tensors on the host, and plain values, both by path."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def without(self, names: frozenset[str]) -> Snapshot:
        """Return this snapshot without some of its tensors."""
        return Snapshot({name: value for name, value in self.tensors.items() if name not in names}, self.values)

    def over(self, shared: Snapshot) -> Snapshot:
        """Return this snapshot with `shared`'s tensors where it has none itself."""
        return Snapshot({**shared.tensors, **self.tensors}, self.values)

    def state(self) -> dict[str, Any]:
        """Return the nested state that was taken."""
        root: dict[Any, Any] = {}
        for name, value in [*self.values.items(), *self.tensors.items()]:
            *path, last = (tuple(key) if isinstance(key, list) else key for key in json.loads(name))
            inner = root
            for key in path:
                inner = inner.setdefault(key, {})
            inner[last] = dict(value) if isinstance(value, dict) else value
        return root


def take(state: Mapping[Any, Any]) -> Snapshot:
    """Copy a nested state of tensors and plain values. RunError (E661) names what is neither."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for path, value in _leaves(state, ()):
        name = json.dumps(path)
        if isinstance(value, Tensor) and value.dtype in _DTYPES:
            tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        elif value is None or value == {} or isinstance(value, bool | int | float | str):
            values[name] = value
        else:
            kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            raise RunError(f"the state {'/'.join(map(str, path))} is a {kind}, which no checkpoint can hold", code="E661",
                           hint="keep tensors and plain numbers in executor.state and in optimizers")  # fmt: skip
    return Snapshot(tensors, values)


def alike(group: Any, snapshot: Snapshot, within: tuple[str, ...] = ("model", "optimizer")) -> frozenset[str]:
    """Return the tensors under `within` that every rank of `group` holds bit for bit; every rank must ask."""
    names = sorted(name for name in snapshot.tensors if json.loads(name)[0] in within)
    if not _agreed(group, torch.tensor([len(names), zlib.crc32("\n".join(names).encode())])).all() or not names:
        return frozenset()
    same = _agreed(group, torch.stack([_checksum(snapshot.tensors[name]) for name in names]))
    return frozenset(name for name, equal in zip(names, same.tolist(), strict=True) if equal)


def _agreed(group: Any, mine: Tensor) -> Tensor:
    """Return, place by place, whether all ranks hold the same number."""
    from torch.distributed import ReduceOp

    both = torch.stack([mine, -mine])
    group.allreduce([both], ReduceOp.MAX).wait()
    return both[0] == -both[1]


def _checksum(tensor: Tensor) -> Tensor:
    flat = tensor.flatten().view(torch.uint8)
    wide = flat[: len(flat) // 4 * 4].view(torch.int32)
    return wide.sum(dtype=torch.int64) * 31 + flat[len(wide) * 4 :].sum(dtype=torch.int64)


def encode(snapshot: Snapshot) -> Iterator[Part]:
    """Yield the parts of a safetensors file; the tensors' own memory is handed on, not copied."""
    header: dict[str, Any] = {"__metadata__": {"format": str(FORMAT), "values": json.dumps(snapshot.values)}}
    start = 0
    # The widest dtypes first, so that every tensor lies aligned without gaps, which the format forbids.
    ordered = sorted(snapshot.tensors.items(), key=lambda item: -item[1].element_size())
    for name, tensor in ordered:
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, start + tensor.nbytes],
        }
        start += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNED)
    yield len(text).to_bytes(8, "little")
    yield text
    for _, tensor in ordered:
        if tensor.nbytes:
            yield tensor.flatten().view(torch.uint8).numpy().data


def decode(data: bytes) -> Snapshot:
    """Return the snapshot of a file. RunError (E662): damaged, or of another version."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        if metadata["format"] != str(FORMAT):
            raise RunError(f"a checkpoint of format {metadata['format']}; this orch reads {FORMAT}", code="E662")
        return Snapshot(load(data), json.loads(metadata["values"]))
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"a checkpoint is damaged: {error}", code="E662") from error


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[list[Any], Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield [list(key) if isinstance(key, tuple) else key for key in path], value


@dataclass(frozen=True)
class Saved:
    """An event for the driver: this rank has written its part of a checkpoint, or could not, and why."""

    stack: str
    seed: int
    step: int
    nbytes: int = 0
    error: str = ""


class Writer:
    """Writes checkpoints of this process one after the other, in a thread of its own; `tell` hears of each."""

    def __init__(self, tell: Callable[[Saved], None]) -> None:
        self._tell = tell
        self._orders: queue.Queue[tuple[str, str, Snapshot, Saved]] = queue.Queue()
        threading.Thread(target=self._work, name="orch-checkpoints", daemon=True).start()

    def write(self, root: str, name: str, snapshot: Snapshot, saved: Saved) -> None:
        """Have `snapshot` written as `name` below `root`; returns at once."""
        self._orders.put((root, name, snapshot, saved))

    def wait(self) -> None:
        """Return when nothing is left to write."""
        self._orders.join()

    def _work(self) -> None:
        while True:
            root, name, snapshot, saved = self._orders.get()
            try:
                nbytes = storage_of(root).write(name, encode(snapshot))
                told = Saved(saved.stack, saved.seed, saved.step, nbytes)
            except Exception as error:  # noqa: BLE001 - training goes on whatever a store does; the driver says it once
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                told = Saved(saved.stack, saved.seed, saved.step, error=reason.splitlines()[0])
            del snapshot
            self._tell(told)
            self._orders.task_done()
