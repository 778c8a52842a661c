"""The chain of layers of one engine: what takes the place of a model's blocks in a step, and the autograd function around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from orch.errors import RunError
from orch.models.zoo.blocks import Block, blocks_of
from orch.models.zoo.shards import First
from orch.plan import TOKENS, Attend, AttendBackward, ExpertBackward, GateBackward, Plan
from orch.runtime.chain import ChainedLayer, Facts, Range
from orch.runtime.chain_shared import SharedLayer, Sum
from orch.runtime.mixture import LayerRun
from orch.runtime.program import CHAIN


class Driver(Protocol):
    """Who walks the tasks of a chain."""

    def cross(self, name: str, *, backward: bool) -> None: ...


class Walked(torch.autograd.Function):
    """From what enters the first block to both parts of the last layer: forward and backward are what the plan says."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, chains: Chains) -> tuple[Tensor, Tensor]:
        """Walk the forward chain. `anchor` asks for a gradient where x does not."""
        layers = list(chains.running.values())
        layers[0].entered = x.detach()
        chains.driver.cross(CHAIN, backward=False)
        ctx.chains = chains
        return layers[-1].h.get(0, chains.units), layers[-1].y.get(0, chains.units)

    @staticmethod
    def backward(ctx: Any, of_h: Tensor, of_y: Tensor) -> tuple[Tensor, None, None]:
        """Walk the backward chain."""
        chains: Chains = ctx.chains
        layers = list(chains.running.values())
        layers[-1].left(0, chains.units, of_h, of_y)
        chains.driver.cross(CHAIN, backward=True)
        chains.running.clear()
        chains.met.clear()
        return layers[0].of_entered.get(0, chains.units), None, None


@dataclass
class Chains:
    """Puts the chain of a plan into a model's blocks; `close` takes it out again. Outside a step blocks run as they are."""

    plan: Plan
    model: nn.Module
    driver: Driver
    crossing: Callable[[str, list[Range]], LayerRun]
    dtypes: Mapping[str, torch.dtype]
    running: dict[str, ChainedLayer] = field(default_factory=dict)
    # By module, what ranks that share samples add up there.
    met: dict[str, Sum] = field(default_factory=dict)
    _blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names = {id(module): name for name, module in self.model.named_modules()}
        self._parameters = dict(self.model.named_parameters())
        step = self.plan.steps[0]
        self._order = list(dict.fromkeys(task.op.module for task in step.of(Attend)))  # type: ignore[attr-defined]
        self._params: dict[str, dict[str, tuple[str, ...]]] = {name: {"attend": (), "gate": ()} for name in self._order}
        for task in (*step.of(AttendBackward), *step.of(GateBackward)):
            op: Any = task.op
            part = "attend" if isinstance(op, AttendBackward) else "gate"
            self._params[op.module][part] += tuple(
                name for name in op.ready if name not in self._params[op.module][part]
            )
        attend: Any = step.of(Attend)[0].op
        self._shared = any(isinstance(module, First) for module in self.model.modules())
        self._cells: dict[str, list[Range]] = {}
        for task in step.of(ExpertBackward):
            self._cells.setdefault(task.op.module, []).append((task.op.begin, task.op.end))  # type: ignore[attr-defined]
        self.units: int = attend.units
        self._axis: str = attend.axis
        self._dim = 1 if attend.axis == TOKENS else 0
        self._blocks = blocks_of(self.model)
        mixtures = [self._names[id(block.mixture)] for block in self._blocks if block.mixture is not None]
        if mixtures != self._order:
            raise RunError("the plan walks layers as a chain, and this model's blocks are of a kind that cannot be", code="E622",
                           hint="such plans can be simulated: orch plan")  # fmt: skip
        for number, block in enumerate(self._blocks):
            block.module.forward = partial(self._enter if number == 0 else _pass, block.module.forward)

    def close(self) -> None:
        """Take the chain out of the blocks."""
        for block in self._blocks:
            block.module.__dict__.pop("forward", None)
        self._blocks = []
        self.running.clear()
        self.met.clear()

    def at(self, name: str) -> ChainedLayer | Sum:
        """Return the layer called so as it runs in this step, or what ranks add up at a module."""
        return self.running[name] if name in self.running else self.met[name]

    def _enter(self, plain: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What the first block does: all of them, in a step; itself outside of one."""
        if not torch.is_grad_enabled():
            found: Tensor = plain(x, *args, **kwargs)
            return found
        if x.shape[self._dim] != self.units:
            raise RunError(f"a plan for {self.units} {self._axis} was made, and {x.shape[self._dim]} came", code="E624",
                           hint="every step brings equally many samples and tokens")  # fmt: skip
        layers = self._layers()
        for layer in layers:
            layer.rotary = kwargs.get("position_embeddings")
        self.running = {layer.name: layer for layer in layers}
        anchor = torch.ones((), device=x.device, requires_grad=True)
        h, y = Walked.apply(x, anchor, self)  # type: ignore[no-untyped-call]
        return layers[-1].closed(h, y)

    def _layers(self) -> list[ChainedLayer]:
        layers: list[ChainedLayer] = []
        blocks: list[Block] = []
        for block in self._blocks:
            blocks.append(block)
            if block.mixture is None:
                continue
            name = self._names[id(block.mixture)]
            facts = Facts(self._dim, self.units, self._crossing, self._parameters, self.dtypes[name])
            layers.append(self._shares(name, blocks, facts) if self._shared else
                          ChainedLayer(name, blocks, self._params[name], facts))  # fmt: skip
            if len(layers) > 1:
                layers[-1].before = layers[-2]
            blocks = []
        return layers

    def _crossing(self, name: str, positions: Range) -> LayerRun:
        begin, end = positions
        return self.crossing(name, sorted(cell for cell in self._cells[name] if begin <= cell[0] and cell[1] <= end))

    def _shares(self, name: str, blocks: list[Block], facts: Facts) -> SharedLayer:
        # What one piece uses another one's task may publish: a bias counts behind the sum that its product goes into.
        names = tuple(dict.fromkeys((*self._params[name]["attend"], *self._params[name]["gate"])))
        layer = SharedLayer(name, blocks, {"attend": names, "gate": names}, facts)
        for block, total, of_total in zip(blocks, layer.sums, layer.of_sums, strict=True):
            enter = next(module for module in block.module.modules() if isinstance(module, First))
            self.met[self._names[id(block.last)]], self.met[self._names[id(enter)]] = total, of_total
        return layer


def _pass(plain: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """What every other block does: nothing in a step, where the first has done it all."""
    return x if torch.is_grad_enabled() else plain(x, *args, **kwargs)
