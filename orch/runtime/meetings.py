"""Where ranks that share samples meet, as one rank runs it: around attention whose heads are split, and around a mixture that
each enters with a part of the tokens.

Each meeting is an autograd function: what it does to a tensor on the way there, and to its gradient on the way back. Within
a step both hand over to the engine, which walks the plan's tasks; outside one (evaluation) the collective is launched here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from orch.errors import RunError
from orch.models.zoo.mixture import MixtureLayer
from orch.models.zoo.shards import First, Last
from orch.plan import Attend, GatherRows, Plan, Project, Rows, SumRows
from orch.runtime import collectives
from orch.runtime.base import Groups, backend_of
from orch.runtime.buffers import DTYPES
from orch.runtime.legs import Gathered, Parcel, Summed
from orch.workload.layout import TENSOR

Way = Callable[[Tensor], Tensor]
# What a mixture is called where ranks meet around it.
AROUND = ".whole"


class MeetingRun:
    """One meeting in one step: a tensor goes in, and what the ranks make of it together comes out."""

    def __init__(self, name: str, value: Tensor, ranks: int, weight: Tensor | None = None) -> None:
        self.name = name
        self._value = value
        self._ranks = ranks
        # Where the rows [T, I] that go in are multiplied on the way, part by part: by this [I, O].
        self._weight = weight
        self._made: dict[tuple[int, int], Tensor] = {}
        self._parcels: list[Parcel] = []
        self.result: Tensor

    def project(self, begin: int, end: int) -> None:
        """Multiply some of the rows."""
        assert self._weight is not None
        self._made[begin, end] = self._value[begin:end] @ self._weight

    def parcel(self, op: Rows) -> Parcel:
        """Return what the collective of `op` hands over and fills."""
        value = self._made.pop((op.begin, op.end), self._value)
        parcel = Summed.of(value) if isinstance(op, SumRows) else Gathered.of(value, self._ranks)
        self._parcels.append(parcel)
        return parcel

    def join(self) -> None:
        """Take the result."""
        came = [parcel.received for parcel in self._parcels]
        self.result = came[0] if len(came) == 1 else torch.cat(came)


class Driver(Protocol):
    """Who walks the tasks of a meeting."""

    def cross(self, name: str, *, backward: bool) -> None: ...

    @property
    def active(self) -> bool: ...


class Met(torch.autograd.Function):
    """What a meeting does to a tensor, and to its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Way, back: Way) -> Tensor:
        """Return `there(x)`."""
        ctx.back = back
        return there(x.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return `back(gradient)`."""
        return ctx.back(gradient), None, None


class Projected(torch.autograd.Function):
    """A product whose output is added up over the ranks, part by part: rows [T, I] and a weight [I, O] to the sums [T, O]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, together: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return `together(rows, weight)`."""
        ctx.save_for_backward(rows, weight)
        return together(rows.detach(), weight.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of this rank's rows and weight: every rank has that of the sum."""
        rows, weight = ctx.saved_tensors
        return gradient @ weight.T, rows.T @ gradient, None


class Meetings:
    """Gives a path to all that meets in `plan`; `close` takes it away again."""

    def __init__(self, plan: Plan, model: nn.Module, rank: int, groups: Groups, engine: Driver) -> None:
        self._engine = engine
        self.running: dict[str, MeetingRun] = {}
        self._given: list[Any] = []
        self._hooks: list[Any] = []
        self._ranks, self._place = 1, 0
        if TENSOR not in plan.groups:
            return
        block = list(plan.groups[TENSOR].block_of(rank))
        self._ranks, self._place, self._group = len(block), block.index(rank), groups[TENSOR]
        self._ops = {
            task.op.module: task.op
            for task in plan.steps[0]
            if task.group == TENSOR and isinstance(task.op, SumRows | GatherRows)
        }
        parted = {task.op.module for task in plan.steps[0] if isinstance(task.op, Project)}
        # In a step of a chain its own tasks meet.
        self._chained = bool(plan.steps[0].of(Attend))
        modules = dict(model.named_modules())
        for name, op in self._ops.items():
            found = modules.get(name.removesuffix(AROUND))
            if isinstance(op, SumRows) and isinstance(found, First | Last):
                found.path = partial(self._attended, name, first=isinstance(found, First))
                if isinstance(found, Last) and name in parted:
                    found.parted = partial(self._projected, name, found)
            elif name.endswith(AROUND) and isinstance(found, MixtureLayer):
                self._divide(name, found)
            elif not isinstance(found, MixtureLayer):
                raise RunError(f"the plan has ranks meet at {name!r}, which the model does not share", code="E622")
            self._given.append(found)

    def _divide(self, name: str, layer: MixtureLayer) -> None:
        """Let each rank take a part of the layer's tokens, and gather what comes out."""
        layer.around = (partial(self._taken, name), partial(self._whole, name))
        parameters = [parameter for parameter in layer.gate.parameters() if parameter.requires_grad]
        # Each rank's gate sees other tokens, so its gradients belong in a sum over these ranks, and are in a mean over all.
        self._hooks += [parameter.register_hook(self._counted) for parameter in parameters]  # type: ignore[no-untyped-call]
        layer.gate.parts = self._ranks  # type: ignore[assignment]

    def close(self) -> None:
        """Take the paths away."""
        for hook in self._hooks:
            hook.remove()
        for found in self._given:
            if isinstance(found, MixtureLayer):
                found.around, found.gate.parts = None, 1  # type: ignore[assignment]
            else:
                found.path = None
                if isinstance(found, Last):
                    found.parted = None
        self._hooks.clear()
        self._given.clear()
        self.running.clear()

    def _counted(self, gradient: Tensor) -> Tensor:
        return gradient * self._ranks

    def _attended(self, name: str, x: Tensor, *, first: bool) -> Tensor:
        if self._chained and self._engine.active:
            return x
        if first:
            back = partial(self._together, name, backward=True)
            return Met.apply(x, _same, back)  # type: ignore[no-untyped-call, no-any-return]
        return Met.apply(x, partial(self._together, name), _same)  # type: ignore[no-untyped-call, no-any-return]

    def _projected(self, name: str, last: Last, x: Tensor) -> Tensor:
        if not self._engine.active:
            return last.met(last.product(x, None))
        dtype = DTYPES[self._ops[name].buffer.segments[0].dtype]
        with torch.autocast(x.device.type, enabled=False):
            weight = (last.weight if last.across else last.weight.T).to(dtype)
            rows = x.reshape(-1, x.shape[-1]).to(dtype)
            y: Tensor = Projected.apply(rows, weight, partial(self._multiplied, name))  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], -1)

    def _multiplied(self, name: str, rows: Tensor, weight: Tensor) -> Tensor:
        run = self.running[name] = MeetingRun(name, rows, self._ranks, weight)
        self._engine.cross(name, backward=False)
        return run.result

    def _taken(self, name: str, tokens: Tensor) -> Tensor:
        """Return this rank's part of `tokens` [T, M]."""
        back = partial(self._together, name, backward=True)
        return Met.apply(tokens, self._part, back)  # type: ignore[no-untyped-call, no-any-return]

    def _whole(self, name: str, outputs: Tensor) -> Tensor:
        """Return the outputs of all tokens from those of every rank's part."""
        return Met.apply(outputs, partial(self._together, name), self._part)  # type: ignore[no-untyped-call, no-any-return]

    def _part(self, rows: Tensor) -> Tensor:
        size = rows.shape[0] // self._ranks
        return rows.narrow(0, self._place * size, size)

    def _together(self, name: str, value: Tensor, *, backward: bool = False) -> Tensor:
        """Return what the ranks make of their `value`s: the sum, or all of them."""
        op = self._ops[name]
        run = MeetingRun(name, value.to(DTYPES[op.buffer.segments[0].dtype]), self._ranks)
        if self._engine.active:
            self.running[name] = run
            self._engine.cross(name, backward=backward)
        else:
            parcel = run.parcel(op)
            collectives.hand_over(backend_of(self._group, value.device), parcel, self._place).wait()
            run.join()
        return run.result.to(value.dtype)


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)
