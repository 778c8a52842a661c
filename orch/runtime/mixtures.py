"""The mixtures of one engine: who runs which now, and how they are crossed outside a step, where no plan says how."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from orch.errors import RunError
from orch.models.zoo.gates import Routing
from orch.models.zoo.mixture import MixtureLayer, mixture_layers
from orch.plan import COUNTS, AllToAll, Chunk, Expert, GatherRows, Plan, ReturnGradients, Rows, ShareExpert
from orch.runtime import collectives
from orch.runtime.base import Groups, backend_of
from orch.runtime.buffers import DTYPES
from orch.runtime.meetings import AROUND
from orch.runtime.mixture import Crossed, Driver, LayerRun
from orch.runtime.shadows import ShadowRun, Shadows
from orch.runtime.table import Cell
from orch.workload.layout import BLOCK, EXPERTS, SLICES, TENSOR


class _Engine(Driver, Protocol):
    def cells(self, name: str) -> tuple[Cell, ...] | None: ...


class Mixtures:
    """Puts a path into every mixture that the plan knows; `close` takes it out again.

    Within a step the engine walks the plan. Outside one, without gradients (evaluation), rows are exchanged in one
    piece: then too every rank of a block must call the model, with as many batches as the others.
    """

    def __init__(self, plan: Plan, model: nn.Module, rank: int, groups: Groups, engine: _Engine) -> None:
        self._engine = engine
        self._layers = mixture_layers(model)
        self._runs: dict[str, LayerRun] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        # By mixture, the experts of which every rank gets a copy in each step.
        self._shadowed: dict[str, list[int]] = {}
        for task in plan.steps[0].of(ShareExpert):
            if isinstance(task.op, ShareExpert) and not isinstance(task.op, ReturnGradients):
                self._shadowed.setdefault(task.op.module, []).append(task.op.expert)
        across = BLOCK if BLOCK in plan.groups else EXPERTS
        block = plan.groups[across].block_of(rank) if across in plan.groups else (rank,)
        self._ranks, self._place = len(block), list(block).index(rank)
        self._slices = plan.groups[SLICES].size if SLICES in plan.groups else 1
        self._group = groups.get(across)
        sharers = list(plan.groups[TENSOR].block_of(rank)) if TENSOR in plan.groups else [rank]
        self._sharing = (len(sharers), sharers.index(rank))
        met = [task.op for task in plan.steps[0].of(GatherRows) if task.group == TENSOR]
        # Layers of which ranks share rows, and those whose tokens they share out before the gate.
        self._split = {op.module for op in met if isinstance(op, GatherRows) and not op.module.endswith(AROUND)}
        self._taken = {op.module.removesuffix(AROUND) for op in met if isinstance(op, GatherRows)} - self._split
        for task in plan.steps[0].of(Expert):
            op = task.op
            assert isinstance(op, Expert)
            layer = self._layers.get(op.module)
            if layer is None:
                raise RunError(f"the plan speaks of mixture {op.module!r}, which the model does not have", code="E622")
            self.dtypes[op.module] = DTYPES[op.dtype]
            layer.path = partial(self._path, op.module)

    def crossing(self, name: str, cells: list[Cell]) -> LayerRun:
        """Return a crossing of mixture `name` for the rows at some of its positions, which backward cuts into `cells`."""
        return LayerRun(self._layers[name], name, self._ranks, self._place, cells, self._slices)

    def running(self, name: str) -> LayerRun:
        """Return the mixture that is being crossed."""
        return self._runs[name]

    def close(self) -> None:
        """Take the paths out of the layers."""
        for name in self.dtypes:
            self._layers[name].path = None
        self._runs.clear()

    def _path(self, name: str, layer: MixtureLayer, tokens: Tensor, routing: Routing) -> Tensor:
        cells = self._engine.cells(name)
        training = torch.is_grad_enabled()
        split = training and name in self._split
        kind = ShadowRun if name in self._shadowed and training else LayerRun
        run = kind(
            layer, name, self._ranks, self._place, cells if training else None, self._slices,
            self._sharing if split or name in self._taken else (1, 0), split,
        )  # fmt: skip
        if isinstance(run, ShadowRun):
            run.shadows = Shadows(self._shadowed[name], layer.experts, self._place * layer.experts.experts)
        run.routing = routing
        if not torch.is_grad_enabled():
            return self._alone(run, tokens)
        if cells is None:
            raise RunError(f"mixture {name!r} is used with gradients outside a step", code="E613",
                           hint="begin_step() starts one")  # fmt: skip
        self._runs[name] = run
        with torch.autocast(tokens.device.type, enabled=False):
            output: Tensor = Crossed.apply(  # type: ignore[no-untyped-call]
                tokens, routing.weight, run, self._engine, self.dtypes[name]
            )
        return output

    def _alone(self, run: LayerRun, tokens: Tensor) -> Tensor:
        """Cross forward in one piece."""
        run.tokens = tokens.to(self.dtypes[run.name])
        positions = run.layer.mixture.positions(tokens.shape[0])
        with torch.autocast(tokens.device.type, enabled=False):
            run.order(0, positions)
            if self._ranks > 1:
                if run.layer.mixture.capacity_factor is None:
                    self._exchange(run, COUNTS, positions)
                self._exchange(run, "dispatch", positions)
            run.expert(Chunk(0, positions))
            if self._ranks > 1:
                self._exchange(run, "combine", positions)
            run.restore(0, positions)
        return run.output

    def _exchange(self, run: LayerRun, part: str, positions: int) -> None:
        op = AllToAll(Rows.buffer_of(part, 0, "fp32"), run.name, part, positions, 0, positions)
        parcel = run.parcel(op)
        group: Any = self._group
        backend = backend_of(group, parcel.sent.device)
        collectives.hand_over(backend, parcel, self._place).wait()
