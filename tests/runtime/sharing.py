"""A small transformer with mixtures whose samples are shared: as one rank trains it, and as one process would."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from orch import registry
from orch.models.draft import Draft
from orch.models.profile import EXPERT_WIDTH, Profile
from orch.models.zoo.gates import gate_of
from orch.models.zoo.mixed import MixedBlock
from orch.models.zoo.mixture import FeedForward, GatedFeedForward, MixtureLayer, mixture_layers
from orch.models.zoo.shards import share, shared_parameters
from orch.plan import GatherRows, Plan
from orch.runtime.base import Setup
from orch.runtime.engine import PlanEngine
from orch.runtime.mixture import expert_parameters, spread
from orch.runtime.optimizers import optimizer_factory
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from tests.runtime.one_process import train_seen
from tests.runtime.worlds import World

HIDDEN, INNER, HEADS, LR, STEPS = 8, 8, 4, 0.05, 2


@dataclass(frozen=True)
class Case:
    """Who shares what, how mixtures route, and by which schedule they run; `tokens` of a rank's one sample."""

    tensor: int
    slices: int = 1
    spread: int | None = None
    schedule: str = "s1"
    gathers: int | None = None
    capacity: float | None = None
    experts: int = 4
    top_k: int = 2
    tokens: int = 8
    gated: bool = False
    kind: str = "softmax"
    order: str = "sort"
    routing: str = "learned"
    balance: float = 0.1
    stack: tuple[str, ...] = ("wfbp",)
    layers: tuple[str, ...] = field(default=("0", "1"), repr=False)

    @property
    def profile(self) -> Profile:
        draft = Draft()
        draft.linear("enter", self.tokens, HIDDEN, HIDDEN)
        for layer in self.layers:
            block = f"blocks.{layer}"
            draft.norm(f"{block}.norm1", self.tokens, HIDDEN)
            draft.linear(f"{block}.qkv", self.tokens, HIDDEN, 3 * HIDDEN)
            draft.linear(f"{block}.out", self.tokens, HIDDEN, HIDDEN)
            widths = ((f"{block}.qkv.weight", 0), (f"{block}.qkv.bias", 0), (f"{block}.out.weight", 1))
            draft.shareable(block, f"{block}.qkv", HEADS, self.tokens, HIDDEN, widths)
            draft.norm(f"{block}.norm2", self.tokens, HIDDEN)
            draft.mixture(f"{block}.moe", self.tokens, HIDDEN, INNER, experts=self.experts, top_k=self.top_k,
                          capacity=self.capacity, gated=self.gated, gate=self.kind, order=self.order)  # fmt: skip
        draft.linear("leave", self.tokens, HIDDEN, 3)
        return draft.finish("shared", "a test")

    def layout(self, world: int) -> Layout:
        return Layout.of(world, self.profile.mixtures, self.spread, self.slices, self.tensor)

    def plan(self, world: int) -> Plan:
        layout = self.layout(world)
        knobs = {
            "parm": {"schedule": self.schedule, **({} if self.gathers is None else {"gathers": self.gathers})},
            "fsmoe": {"smallest": "16B"},
        }
        knobs["coconet"] = {"parts": 3}
        names = ("parm", *self.stack) if self.schedule != "plain" else self.stack
        members = [small.member(registry.technique(name), **knobs.get(name, {})) for name in names]
        where = mixture.cluster(world, alpha_s=1e-4, beta_s_per_byte=1e-6, rate_flops=1e7, all_reduce=(0.0, 1e-6))
        context = small.context(layout.local(self.profile), where)
        plain = mixture_training(self.profile, layout, 1)
        return apply(plain, arrange(members, registry.technique), context)[0]


class Shared(nn.Module):
    """Two blocks between two products: [1, S, M] -> [1, S, 3]."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.enter = nn.Linear(HIDDEN, HIDDEN)
        kind = GatedFeedForward if case.gated else FeedForward
        self.blocks = nn.ModuleList()
        for sizes in case.profile.mixtures:
            gate = gate_of(sizes, case.tokens, case.kind, case.balance)
            self.blocks.append(MixedBlock(HIDDEN, HEADS, MixtureLayer(sizes, gate, kind(case.experts, HIDDEN, INNER))))
        self.leave = nn.Linear(HIDDEN, 3)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
                if name.endswith("gate.weight") and case.routing == "first":
                    # One expert gets every token's first choice.
                    parameter[:] = torch.linspace(3, -3, case.experts).unsqueeze(1) * torch.ones(HIDDEN) / HIDDEN

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.leave(x)
        return result


def inputs(case: Case, reader: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * reader + step)
    return (
        torch.randn(1, case.tokens, HIDDEN, generator=generator),
        torch.randn(1, case.tokens, 3, generator=generator),
    )


def loss_of(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    outputs = model(x)
    return ((outputs - y) ** 2).mean(), outputs


def train_all(world: World, cases: list[Case]) -> list[dict[str, Any]]:
    return [trained(world, case, number) for number, case in enumerate(cases)]


def trained(world: World, case: Case, number: int) -> dict[str, Any]:
    """Train on one rank; return outputs, input gradients, parameters and differences from the plan."""
    plan = case.plan(world.size)
    model = Shared(case)
    groups, places = {"world": world.group(f"world{number}")}, {}
    for name in ("experts", "slices", "tensor", *plan.groups):
        block = list(plan.groups[name].block_of(world.rank)) if name in plan.groups else [world.rank]
        places[name] = (block.index(world.rank), len(block))
        if name in plan.groups and name not in groups:
            groups[name] = world.block(f"{name}{number}", block)
    share(model, *places["tensor"])
    spread(model, places["experts"], places["slices"])
    engine = PlanEngine(plan, model, Setup(optimizer_factory({"sgd": {"lr": LR}}), world.rank), groups)
    seen: dict[str, Any] = {"outputs": [], "inputs": [], "places": places}
    for step in range(STEPS):
        x, y = inputs(case, world.rank // case.tensor, step)
        x.requires_grad_()
        engine.begin_step()
        loss, outputs = loss_of(engine.module, x, y)
        engine.backward(loss)
        engine.finish_step()
        seen["outputs"].append(outputs.detach())
        seen["inputs"].append(x.grad)
    engine.flush()
    with torch.no_grad():
        seen["evaluated"] = loss_of(engine.module, *inputs(case, world.rank // case.tensor, 99))[1]
    seen["experts"], seen["shared"] = sorted(expert_parameters(model)), sorted(shared_parameters(model))
    seen["parameters"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen["differences"] = engine.differences()
    seen["gathers"] = sorted({task.op.module for task in plan.steps[0].of(GatherRows)})
    engine.settle()
    engine.close()
    return seen


def part_by_part(layer: MixtureLayer, parts: int) -> None:
    """Let a layer treat each of some equal parts of its tokens as if they were all: what S1 is, on one process."""
    whole = layer.forward
    layer.gate.parts = parts  # type: ignore[assignment]

    def forward(x: Tensor) -> Tensor:
        pieces = x.reshape(-1, x.shape[-1]).chunk(parts)
        return torch.cat([whole(piece) for piece in pieces]).reshape(x.shape)

    layer.forward = forward  # type: ignore[method-assign]


def expected(case: Case, world: int) -> dict[str, Any]:
    """One process: every reader's sample through the whole model, and one update by the mean of their losses."""
    model, readers = Shared(case), world // case.tensor
    if case.schedule == "s1":
        for layer in mixture_layers(model).values():
            part_by_part(layer, case.tensor)
    seen = train_seen(model, partial(inputs, case), loss_of, readers, STEPS, LR)
    with torch.no_grad():
        seen["evaluated"] = [loss_of(model, *inputs(case, reader, 99))[1] for reader in range(readers)]
    seen["parameters"] = {name: p.detach() for name, p in model.named_parameters()}
    return seen


def check_equal(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Assert that every rank found what one process would."""
    want = expected(case, len(ranks))
    for rank, found in enumerate(ranks):
        reader = rank // case.tensor
        assert found["differences"] == []
        pairs = {f"outputs {step}": (found["outputs"][step], want["outputs"][step][reader]) for step in range(STEPS)}
        pairs |= {f"inputs {step}": (found["inputs"][step], want["inputs"][step][reader]) for step in range(STEPS)}
        pairs["evaluated"] = (found["evaluated"], want["evaluated"][reader])
        for name, whole in want["parameters"].items():
            pairs[name] = (found["parameters"][name], held(case, found, name, whole))
        for name, (value, wanted) in pairs.items():
            torch.testing.assert_close(
                value, wanted, rtol=1e-5, atol=1e-5, msg=lambda text, n=name, r=rank: f"{case}, rank {r}, {n}: {text}"
            )


def decided(case: Case, ranks: list[dict[str, Any]]) -> Case:
    """Return the case with the schedule that its plan has."""
    if case.schedule != "auto":
        return case
    gathers = ranks[0]["gathers"]
    around = any(name.endswith(".whole") for name in gathers)
    return replace(case, schedule="s1" if around else "s2" if gathers else "plain")


def held(case: Case, found: dict[str, Any], name: str, whole: Tensor) -> Tensor:
    """Return what a rank holds of a parameter."""
    if name in found["experts"]:
        (part, parts), (piece, pieces) = found["places"]["experts"], found["places"]["slices"]
        number = case.experts // parts
        value, width = whole[part * number : (part + 1) * number], EXPERT_WIDTH.get(name.rpartition(".")[2])
        size = whole.shape[width] // pieces if width is not None else 0
        return value if width is None else value.narrow(width, piece * size, size)
    place, ranks = found["places"]["tensor"]
    if ranks == 1 or name not in found["shared"]:
        return whole
    if name.endswith("out.weight"):
        size = HIDDEN // ranks
        return whole.narrow(1, place * size, size)
    size = HIDDEN // ranks
    heads = whole.view(3, HIDDEN, *whole.shape[1:]).narrow(1, place * size, size)
    return heads.reshape(3 * size, *whole.shape[1:])
