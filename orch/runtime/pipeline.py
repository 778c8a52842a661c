"""One stage of a pipeline, as one rank runs it: what the tasks of a step read and leave.

One autograd function stands in place of the model's forward. Its forward and its backward hand over to the engine, which walks the
plan's tasks: micro-batch after micro-batch through the parts of this rank. Each runs under autograd from a leaf of its own;
gradients of parameters are added up by hand, so that they exist when the plan says so. On all stages but the last the model's
answer is zeros, and what is made of them reaches nobody: the loss is told by the last.

Shapes: B samples, b of a micro-batch; activations [b, ...] as the parts leave them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from orch.errors import RunError
from orch.plan import Plan, Update
from orch.plan.stages import ACTIVATIONS, GRADIENTS, LOSS, PIPELINE, HandOver, StageForward
from orch.runtime import collectives
from orch.runtime.base import Groups, Setup, backend_of
from orch.runtime.buffers import DTYPES
from orch.runtime.engine import PlanEngine
from orch.runtime.legs import Parcel
from orch.workload.layout import STAGES, link_of

Shape = tuple[int, ...]


class Walked(torch.autograd.Function):
    """From a batch to the model's answer: forward and backward are what the plan says."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, pipeline: Pipeline) -> Tensor:
        """Walk all micro-batches forward. `anchor` asks for a gradient where the batch does not."""
        ctx.pipeline = pipeline
        pipeline.driver.cross(PIPELINE, backward=False)
        return pipeline.answer()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        """Walk them back."""
        pipeline: Pipeline = ctx.pipeline
        pipeline.of_answer = list(torch.split(gradient, pipeline.sizes))
        pipeline.driver.cross(PIPELINE, backward=True)
        return None, None


class Pipeline:
    """The stage of this rank. Made before the engine reads the model: it keeps of it the parameters of its own parts, and of
    the rest the shapes. `close` gives the model its own forward back.
    """

    def __init__(self, plan: Plan, model: nn.Module, rank: int, groups: Groups, engine: PipelineEngine) -> None:
        tasks = [task for task in plan.steps[0].of(StageForward) if rank in plan.roles[task.role]]
        op = tasks[0].op
        assert isinstance(op, StageForward)
        block = plan.groups[STAGES].block_of(rank)
        self.driver, self._groups = engine, groups
        self.stage, self._stages, self._micro = list(block).index(rank), len(block), op.micro_batches
        self._dtype = DTYPES[op.dtype]
        self._model = model
        # What tells shapes without computing: as large as the model, and of no memory.
        self._shadow = copy.deepcopy(model).to("meta")
        self._ends = sorted({task.op.last for task in plan.steps[0].of(StageForward)})  # type: ignore[attr-defined]
        mine = [task for task in plan.steps[0].of(Update) if rank in plan.roles[task.role]]
        _keep(model, {name for task in mine for name in task.op.tensors})
        self._own = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self._shapes: dict[tuple[Shape, torch.dtype], list[tuple[Shape, torch.dtype]]] = {}
        self._parts = model.parts()[op.first : op.last]  # type: ignore[operator]
        self._plain = model.forward
        model.forward = self._enter
        self._chunks: list[Tensor] = []
        self._leaves: list[Tensor] = []
        self._made: list[Tensor] = []
        # What came from a neighbour, or is to come.
        self._came: dict[tuple[str, int], Tensor] = {}
        self._found: dict[str, Tensor] = {}
        self.of_answer: list[Tensor] = []
        self.loss: Tensor = torch.zeros(())

    def close(self) -> None:
        """Give the model its forward back."""
        self._model.forward = self._plain

    @property
    def sizes(self) -> list[int]:
        """Samples of each micro-batch."""
        return [len(chunk) for chunk in self._chunks]

    @property
    def _last(self) -> bool:
        return self.stage == self._stages - 1

    def _enter(self, x: Tensor) -> Tensor:
        """What the model does: a step's part of it, or outside a step all of it, with the other stages."""
        if not torch.is_grad_enabled():
            return self._evaluated(x)
        if x.shape[0] % self._micro:
            raise RunError(f"{x.shape[0]} samples make no {self._micro} micro-batches of one size", code="E624",
                           hint="every step brings equally many samples")  # fmt: skip
        self._chunks = list(torch.chunk(x, self._micro))
        self._leaves, self._made = [], []
        anchor = torch.ones((), device=x.device, requires_grad=True)
        answer: Tensor = Walked.apply(anchor, self)  # type: ignore[no-untyped-call]
        return answer

    # -- the tasks of a step -----------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Let come what will: it is known by now how many samples there are."""

    def forward(self, number: int) -> None:
        """Run this stage's parts over one micro-batch."""
        leaf = self._came.pop((ACTIVATIONS, number)).requires_grad_() if self.stage else self._chunks[number]
        with torch.enable_grad():
            made = self._through(leaf)
        self._leaves.append(leaf)
        self._made.append(made)

    def answer(self) -> Tensor:
        """Return the model's answer to the whole batch; zeros on all stages but the last."""
        if self._last:
            return torch.cat([made.detach() for made in self._made])
        shape, dtype = self._shape(self._chunks[0], self._stages - 1)
        return torch.zeros(sum(self.sizes), *shape[1:], dtype=dtype, device=self._chunks[0].device)

    def backward(self, number: int, ready: tuple[str, ...]) -> None:
        """Take one micro-batch back; with `ready` the gradients of the stage's parameters are complete."""
        leaf, made = self._leaves[number], self._made[number]
        gradient = self.of_answer[number] if self._last else self._came.pop((GRADIENTS, number)).to(made.dtype)
        wanted = [*([leaf] if self.stage else []), *self._own.values()]
        found = torch.autograd.grad(made, wanted, gradient, allow_unused=True) if wanted else ()
        self._made[number] = made.detach()  # what it was made of is needed no more
        for name, value in zip(self._own, found[len(wanted) - len(self._own) :], strict=True):
            if value is not None:
                so_far = self._found.get(name)
                self._found[name] = value.clone() if so_far is None else so_far.add_(value)
        if self.stage:
            self._leaves[number] = found[0]
        for name in ready:
            if name in self._found:
                self._own[name].grad = self._found.pop(name)

    def take_loss(self) -> None:
        """Let the loss be what the last stage has."""
        self.loss = self._came.pop((LOSS, 0))[0]

    def parcel(self, op: HandOver) -> Parcel:
        """Return what a hand-over gives, or is to fill."""
        key = (op.part, op.number)
        if op.part == LOSS:
            tensor = self.loss.detach().float().reshape(1).clone() if self._last else torch.empty(1)
            self._came[key] = tensor
        elif (op.link == self.stage) == (op.part == ACTIVATIONS):
            whole = self._made[op.number] if op.part == ACTIVATIONS else self._leaves[op.number]
            tensor = whole.detach().to(self._dtype).contiguous()
        else:
            shape, _ = self._shape(self._chunks[op.number], op.link)
            tensor = torch.empty(shape, dtype=self._dtype, device=self._chunks[0].device)
            self._came[key] = tensor
        return Parcel(tensor, tensor, [], [], root=op.root)

    def _through(self, x: Tensor) -> Tensor:
        for part in self._parts:
            x = part(x)
        return x

    def _shape(self, x: Tensor, stage: int) -> tuple[Shape, torch.dtype]:
        """Return shape and dtype of what leaves a stage where `x` enters the first."""
        key = (tuple(x.shape), x.dtype)
        if key not in self._shapes:
            found, value, begin = [], torch.empty(x.shape, dtype=x.dtype, device="meta"), 0
            parts = self._shadow.parts()  # type: ignore[operator]
            with torch.no_grad():
                for end in self._ends:
                    for part in parts[begin:end]:
                        value = part(value)
                    found.append((tuple(value.shape), value.dtype))
                    begin = end
            self._shapes[key] = found
        return self._shapes[key][stage]

    # -- outside a step ----------------------------------------------------------------------------------------------------

    def _evaluated(self, x: Tensor) -> Tensor:
        """Return the answer to a batch, which every stage of a pipeline must be asked for: the last one tells the others."""
        if self.stage:
            shape, dtype = self._shape(x, self.stage - 1)
            y = torch.empty(shape, dtype=dtype, device=x.device)
            self._told(link_of(self.stage - 1), y, 0)
        else:
            y = x
        y = self._through(y).contiguous()
        if self._last:
            answer = y
        else:
            self._told(link_of(self.stage), y, 0)
            shape, dtype = self._shape(x, self._stages - 1)
            answer = torch.empty(shape, dtype=dtype, device=x.device)
        self._told(STAGES, answer, self._stages - 1)
        return answer

    def _told(self, group: str, tensor: Tensor, root: int) -> None:
        if group in self._groups:
            collectives.broadcast(backend_of(self._groups[group], tensor.device), tensor, root).wait()


class PipelineEngine(PlanEngine):
    """Runs the plan of a pipeline on this rank. Of `model` only the parameters of this rank's stage are kept."""

    def __init__(self, plan: Plan, model: nn.Module, setup: Setup, groups: Groups) -> None:
        # Before anybody else reads the model.
        self._pipeline = Pipeline(plan, model, setup.rank, groups, self)
        super().__init__(plan, model, setup, groups)

    def backward(self, loss: Tensor) -> None:
        """Walk the micro-batches back; `loss` counts where the last stage is."""
        self._pipeline.loss = loss
        super().backward(loss)

    def train_step(self, loss_of: Callable[[nn.Module], Tensor]) -> Tensor:
        """Run one step; return the loss of the last stage."""
        super().train_step(loss_of)
        return self._pipeline.loss

    def layer(self, name: str) -> Any:
        """Return the stage of this rank."""
        return self._pipeline

    def close(self) -> None:
        """Give the model its forward back, take the hooks off it and let go of buffers."""
        self._pipeline.close()
        super().close()


def _keep(model: nn.Module, names: set[str]) -> None:
    """Let the model be without the parameters of other stages."""
    for path, module in model.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and f"{path}.{name}".lstrip(".") not in names:
                module._parameters[name] = None
