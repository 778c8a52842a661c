"""Run a plan on all ranks at once in one process: every task in list order, rank after rank, collectives as sums in
rank order.

The arithmetic of collectives does not depend on buckets here, so two lossless plans end with equal bits. The model is
made up: the loss of a parameter is its squared distance to a target that each rank draws anew for each step, and it is
read when the forward of its module runs, so an update that comes too late shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from orch.models.profile import Profile
from orch.plan import (
    AllGather,
    AllGatherShards,
    AllReduce,
    Backward,
    Buffer,
    Collective,
    Forward,
    Plan,
    ReduceScatter,
    Segment,
    Step,
    Task,
)

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPES |= {"int64": torch.int64, "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8}


class Rank:
    """One rank: what an operation may ask (`orch.plan.Executor`), plain SGD, and its state."""

    def __init__(self, rank: int, world_size: int, parameters: Mapping[str, Tensor], lr: float) -> None:
        self.rank, self.world_size, self.lr = rank, world_size, lr
        self.parameters = {name: value.clone() for name, value in parameters.items()}
        self.gradients: dict[str, Tensor] = {}
        self.flats: dict[str, Tensor] = {}
        self.views: dict[str, dict[str, Tensor]] = {}
        self.segments: dict[str, Tensor] = {}
        self.parts: dict[str, list[Tensor]] = {}
        self.kept: dict[tuple[str, str], Any] = {}
        self.generators: dict[str, torch.Generator] = {}
        self.applied = {name: torch.zeros_like(value) for name, value in self.parameters.items()}

    def enter(self, step: Step) -> None:
        """Make the segments of the buffers that `step` uses the ones that operations see."""
        for task in step:
            if isinstance(task.op, Collective):
                buffer = task.op.buffer
                if buffer.name not in self.flats:
                    self.flats[buffer.name], self.views[buffer.name] = _allocated(buffer)
                self.segments |= self.views[buffer.name]

    def gradient(self, tensor: str) -> Tensor:
        """Return the gradient of `tensor`; KeyError before backward made it."""
        return self.gradients[tensor]

    def set_gradient(self, tensor: str, value: Tensor) -> None:
        """Make `value`, in any shape of the right size, the gradient that the update uses."""
        self.gradients[tensor] = value.reshape(self.parameters[tensor].shape).to(self.parameters[tensor].dtype)

    def segment(self, name: str) -> Tensor:
        """Return a segment as a flat view [numel]."""
        return self.segments[name]

    def gathered(self, name: str) -> list[Tensor]:
        """Return a segment as every rank sent it, in rank order."""
        return self.parts[name]

    def state(self, owner: str, name: str, make: Callable[[], Any]) -> Any:
        """Return what is kept under (owner, name)."""
        if (owner, name) not in self.kept:
            self.kept[owner, name] = make()
        return self.kept[owner, name]

    def generator(self, owner: str) -> torch.Generator:
        """Return a generator that is seeded alike on every rank."""
        return self.generators.setdefault(owner, torch.Generator().manual_seed(crc32(owner.encode())))

    def collective(self, op: Collective) -> None:
        """Refuse: the ranks meet in `Lockstep`, and an operation that sends by itself would not be in the plan."""
        raise TypeError("an operation may not launch a collective that is no task of the plan")

    def update(self, tensors: tuple[str, ...]) -> None:
        """Apply plain SGD; the gradient is then gone, as in the real runtime."""
        for name in tensors:
            gradient = self.gradients.pop(name)
            self.applied[name] += gradient
            self.parameters[name] -= self.lr * gradient


@dataclass
class Snapshot:
    """What a checkpoint holds, per rank, and the number of steps done."""

    step: int
    parameters: list[dict[str, Tensor]]
    kept: list[dict[tuple[str, str], Any]]
    generators: list[dict[str, Tensor]]


Differentiate = Callable[[int, int, str, Tensor], Tensor]


def distance(rank: int, step: int, name: str, value: Tensor) -> Tensor:
    """Return the gradient of half the squared distance of `value` to this rank's target of this step."""
    return value - drawn(value.shape, f"target {name} {rank} {step}")


@dataclass
class Lockstep:
    """All ranks of a plan over `model`. `gradients` sums, by parameter, every local gradient of every rank: [shape]."""

    plan: Plan
    model: Profile
    lr: float = 0.1
    differentiate: Differentiate = distance
    step: int = 0
    ranks: list[Rank] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    pending: bool = False

    def __post_init__(self) -> None:
        parameters = {t.name: drawn(t.shape, f"parameter {t.name}") for t in self.model.tensors}
        self.ranks = [Rank(rank, self.plan.world_size, parameters, self.lr) for rank in range(self.plan.world_size)]
        self.gradients = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self._reads = {m.name: [t.name for t in self.model.tensors if m.name in t.modules] for m in self.model.modules}
        self._read: list[dict[str, Tensor]] = [{} for _ in self.ranks]

    def run(self, steps: int) -> Lockstep:
        """Run `steps` steps and flush what the last one left; return self."""
        threads = torch.get_num_threads()
        # Tensors are tiny here, and threads that meet for each of them cost ten times what they compute.
        torch.set_num_threads(1)
        try:
            for _ in range(steps):
                self._one()
            self.flush()
        finally:
            torch.set_num_threads(threads)
        return self

    def _one(self) -> None:
        self.order = []
        self._enter()
        for task in self._tasks():
            if not task.lag or self.pending:
                self._do(task)
        self.step += 1
        self.pending = any(task.lag for task in self._tasks())

    def flush(self) -> None:
        """Finish the last step now; the next one then leaves that out."""
        if self.pending:
            self._enter()
            for task in self._tasks():
                if task.lag:
                    self._do(task)
            self.pending = False

    def snapshot(self) -> Snapshot:
        """Return a checkpoint. Only whole steps can be kept: raises ValueError while one is to be finished."""
        if self.pending:
            raise ValueError("flush() first")
        copies = [{key: value.clone() for key, value in rank.kept.items()} for rank in self.ranks]
        generators = [{name: g.get_state() for name, g in rank.generators.items()} for rank in self.ranks]
        parameters = [{name: value.clone() for name, value in rank.parameters.items()} for rank in self.ranks]
        return Snapshot(self.step, parameters, copies, generators)

    def resume(self, snapshot: Snapshot) -> Lockstep:
        """Take everything from a checkpoint; return self."""
        self.step = snapshot.step
        for number, rank in enumerate(self.ranks):
            rank.parameters = {name: value.clone() for name, value in snapshot.parameters[number].items()}
            rank.kept = {key: value.clone() for key, value in snapshot.kept[number].items()}
            for name, state in snapshot.generators[number].items():
                rank.generator(name).set_state(state)
        return self

    def residuals(self, tensor: str) -> Iterator[Tensor]:
        """Yield what ranks hold back of `tensor`: state kept under a parameter's name, in its shape, is a residual."""
        shape = self.ranks[0].parameters[tensor].shape
        for rank in self.ranks:
            for (_, name), value in rank.kept.items():
                if name == tensor and value.shape == shape:
                    yield value

    def _enter(self) -> None:
        for rank in self.ranks:
            rank.enter(self._tasks())

    def _tasks(self) -> Step:
        return self.plan.steps[self.step % self.plan.period]

    def _do(self, task: Task) -> None:
        self.order.append(task.name)
        ranks = [self.ranks[number] for number in self.plan.roles[task.role]]
        if isinstance(task.op, Collective):
            for block in self.plan.groups[task.group].blocks:
                _meet(task.op, [self.ranks[number] for number in block])
        elif isinstance(task.op, Forward):
            for rank in ranks:
                self._read[rank.rank].update(
                    {name: rank.parameters[name].clone() for name in self._reads[task.op.module]}
                )
        elif isinstance(task.op, Backward):
            for rank in ranks:
                self._backward(rank, task.op.ready)
        else:
            for rank in ranks:
                task.op.run(rank)

    def _backward(self, rank: Rank, tensors: tuple[str, ...]) -> None:
        for name in tensors:
            gradient = self.differentiate(rank.rank, self.step, name, self._read[rank.rank][name])
            rank.gradients[name] = gradient.clone()
            self.gradients[name] += gradient


def drawn(shape: tuple[int, ...] | torch.Size, seed: str) -> Tensor:
    """Return normal values [shape] that depend on `seed` alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(crc32(seed.encode())))


def _meet(op: Collective, ranks: list[Rank]) -> None:
    """Do one collective over `ranks`, on the flat buffers of all of them."""
    if not isinstance(op, AllGatherShards):
        for rank in ranks:
            _pack(op.buffer, rank)
    if isinstance(op, AllGather):
        for rank in ranks:
            rank.parts |= {s.name: [r.views[op.buffer.name][s.name].clone() for r in ranks] for s in op.buffer.segments}
        return
    values = [rank.flats[op.buffer.name] for rank in ranks]
    if isinstance(op, AllGatherShards):
        mean = torch.cat([value.chunk(len(ranks))[index] for index, value in enumerate(values)])
    elif isinstance(op, AllReduce | ReduceScatter):
        mean = sum(values[1:], values[0].clone()) / len(ranks)
    else:
        raise TypeError(f"lockstep ranks cannot do {type(op).__name__}")
    for index, value in enumerate(values):
        value.copy_(mean)
        if isinstance(op, ReduceScatter):
            # A rank owns its shard only: whoever reads the rest before the all-gather must not get away with it.
            for other, chunk in enumerate(value.chunk(len(ranks))):
                if other != index:
                    chunk.fill_(torch.nan)
    if not isinstance(op, ReduceScatter):
        for rank in ranks:
            for segment in op.buffer.segments:
                if segment.is_gradient:
                    _hand_back(segment, rank.views[op.buffer.name][segment.name], rank)


def _allocated(buffer: Buffer) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a flat buffer, its padding NaN, and its segments as views of it."""
    # Where dtypes differ nothing is reduced, so segments may as well live apart.
    mixed = len({segment.dtype for segment in buffer.segments}) > 1
    dtype = torch.float32 if mixed else DTYPES[buffer.segments[0].dtype]
    flat = torch.full((buffer.nbytes // dtype.itemsize,), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
    views, begin = {}, 0
    for segment in buffer.segments:
        own = torch.zeros(segment.numel, dtype=DTYPES[segment.dtype])
        views[segment.name] = own if mixed else flat[begin : begin + segment.numel]
        begin += segment.numel
    return flat, views


def _pack(buffer: Buffer, rank: Rank) -> None:
    for segment in buffer.segments:
        if segment.is_gradient:
            rank.views[buffer.name][segment.name].copy_(_part(segment, rank.gradients[segment.tensor].flatten()))


def _hand_back(segment: Segment, value: Tensor, rank: Rank) -> None:
    """Make `value` [numel] the gradient that a segment is, or the part of it."""
    whole = value.clone()
    if segment.begin is not None:
        whole = rank.gradients[segment.tensor].clone().flatten()
        _part(segment, whole).copy_(value)
    rank.set_gradient(segment.tensor, whole)


def _part(segment: Segment, whole: Tensor) -> Tensor:
    """Return the part of a flat gradient [all] that a segment is, as a view [numel]."""
    begin = segment.begin or 0
    return whole[begin : begin + segment.numel]
