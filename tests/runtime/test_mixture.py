"""A mixture spread over ranks equals the layer of one process: outputs, input gradients and every parameter's gradient,
however forward and backward are cut, whatever the routing; and every rank did what the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orch import registry
from orch.errors import RunError
from orch.models.draft import Draft
from orch.models.profile import EXPERT_WIDTH, Profile
from orch.models.zoo.gates import gate_of
from orch.models.zoo.mixture import FeedForward, GatedFeedForward, MixtureLayer, mixture_layers
from orch.plan import Plan, check, cut_crossings
from orch.runtime.base import Setup
from orch.runtime.engine import PlanEngine
from orch.runtime.mixture import expert_parameters, spread
from orch.runtime.optimizers import optimizer_factory
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from tests.runtime.one_process import train_seen
from tests.runtime.worlds import World, run

HIDDEN, INNER, LR, STEPS = 6, 12, 0.05, 2


@dataclass(frozen=True)
class Case:
    """What is trained: experts, choices, capacity, tokens of a rank, how routing is driven, and the cuts."""

    experts: int = 4
    top_k: int = 2
    capacity: float | None = None
    tokens: int = 7
    routing: str = "learned"
    gated: bool = False
    forward: int = 1
    backward: int = 1
    kind: str = "softmax"
    order: str = "sort"
    balance: float = 0.0
    spread: int | None = None
    # Techniques for gradients beside the cuts.
    stack: tuple[str, ...] = ()
    knobs: dict[str, Any] = field(default_factory=dict)
    nodes: int = 1
    slices: int = 1

    @property
    def profile(self) -> Profile:
        draft = Draft()
        draft.linear("enter", self.tokens, HIDDEN, HIDDEN)
        for name in ("one", "two"):
            draft.mixture(name, self.tokens, HIDDEN, INNER, experts=self.experts, top_k=self.top_k,
                          capacity=self.capacity, gated=self.gated, gate=self.kind, order=self.order)  # fmt: skip
        draft.linear("leave", self.tokens, HIDDEN, 3)
        return draft.finish("mixed", "a test")

    def plan(self, world: int) -> Plan:
        layout = Layout.of(world, self.profile.mixtures, self.spread, self.slices)
        plain = mixture_training(self.profile, layout, 1)
        if self.stack:
            members = [small.member(registry.technique(name), **dict(self.knobs.get(name, {}))) for name in self.stack]
            where = mixture.cluster(
                world, alpha_s=1e-4, beta_s_per_byte=1e-6, rate_flops=1e7, all_reduce=(0.0, 1e-6),
                nodes=self.nodes if world % self.nodes == 0 else 1, intra=(1e-4, 1e-6),
            )  # fmt: skip
            context = small.context(self.profile.spread(layout.experts, layout.slices), where)
            return apply(plain, arrange(members, registry.technique), context)[0]
        return check(cut_crossings(plain, lambda c: self.backward if c.backward else self.forward), finished=True)


class Mixed(nn.Module):
    """Two mixtures with residuals between two products."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.enter = nn.Linear(HIDDEN, HIDDEN)
        for sizes in case.profile.mixtures:
            kind = GatedFeedForward if case.gated else FeedForward
            gate = gate_of(sizes, case.tokens, case.kind, case.balance)
            setattr(self, sizes.name, MixtureLayer(sizes, gate, kind(case.experts, HIDDEN, INNER)))
        self.leave = nn.Linear(HIDDEN, 3)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
                if (
                    name.endswith("gate.weight")
                    and case.routing != "learned"
                    and parameter.shape == (case.experts, HIDDEN)
                ):
                    parameter.zero_()
                    # One expert gets every token's first choice, and where top_k is 1 all others get none.
                    parameter[:] = torch.linspace(3, -3, case.experts).unsqueeze(1) * torch.ones(HIDDEN) / HIDDEN

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).abs()
        x = x + self.one(x)
        x = x + self.two(x.abs())
        result: Tensor = self.leave(x)
        return result


def inputs(case: Case, rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(1, case.tokens, HIDDEN, generator=generator), torch.randn(1, case.tokens, 3, generator=generator)


def loss_of(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    outputs = model(x)
    return ((outputs - y) ** 2).mean(), outputs


def train_all(world: World, cases: list[Case]) -> list[dict[str, Any]]:
    return [trained(world, case, number) for number, case in enumerate(cases)]


def trained(world: World, case: Case, number: int) -> dict[str, Any]:
    """Train on one rank; return outputs, input gradients, losses, parameters and differences from the plan."""
    plan = case.plan(world.size)
    model = Mixed(case)
    names = [name for name in plan.groups if name != "world"]
    groups = {"world": world.group(f"world{number}")}
    places = {"experts": (0, 1), "slices": (0, 1)}
    for name in names:
        block = list(plan.groups[name].block_of(world.rank))
        groups[name] = world.block(f"{name}{number}", block)
        if name in places:
            places[name] = (block.index(world.rank), len(block))
    spread(model, places["experts"], places["slices"])
    engine = PlanEngine(plan, model, Setup(optimizer_factory({"sgd": {"lr": LR}}), world.rank), groups)
    seen: dict[str, Any] = {"outputs": [], "inputs": []}
    for step in range(STEPS):
        x, y = inputs(case, world.rank, step)
        x.requires_grad_()
        engine.begin_step()
        loss, outputs = loss_of(engine.module, x, y)
        engine.backward(loss)
        engine.finish_step()
        seen["outputs"].append(outputs.detach())
        seen["inputs"].append(x.grad)
    engine.flush()
    with torch.no_grad():
        seen["evaluated"] = loss_of(engine.module, *inputs(case, 0, 99))[1]
    seen["own"] = sorted(expert_parameters(model)) if len(names) else []
    seen["parameters"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen["differences"] = engine.differences()
    seen["places"] = places
    engine.settle()
    engine.close()
    return seen


class Coded(torch.autograd.Function):
    """Rows through a codec and back, and their gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, through: Any) -> Tensor:
        ctx.through = through
        return through(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.through(gradient), None


def through(codec: str, world: int) -> Any:
    """Return what a codec makes of rows on their way; one rank alone sends none."""

    def run(rows: Tensor) -> Tensor:
        if world == 1 or registry.technique(codec).lossless:
            return rows
        kernels = import_module(f"techniques.moe.{codec.replace('-', '_')}_kernels")
        if codec == "bfp8-rows":
            return kernels.decode(kernels.encode(rows, 16), rows.shape[1], 16)
        return kernels.decode(kernels.encode(rows)).to(rows.dtype)

    return run


def set_hooks(model: nn.Module, case: Case, world: int) -> list[list[Any]]:
    """Let rows of the layer of one process go through the codec of a case, out and back; return the hooks set."""
    found = []
    for codec in [name for name in case.stack if name.endswith("-rows")]:
        for layer in mixture_layers(model).values():
            for point in ("before_dispatch", "before_combine"):
                layer.hooks[point].append(
                    lambda _, data, c=codec: data.update(rows=Coded.apply(data["rows"], through(c, world)))
                )
                found.append(layer.hooks[point])
    return found


def expected(case: Case, world: int) -> dict[str, Any]:
    """One process: every rank's tokens through the whole layer, and one update by the mean of their losses."""
    model = Mixed(case)
    hooks = set_hooks(model, case, case.spread or world)
    seen = train_seen(model, partial(inputs, case), loss_of, world, STEPS, LR)
    for found in hooks:
        found.clear()  # what is evaluated travels as it is
    with torch.no_grad():
        seen["evaluated"] = loss_of(model, *inputs(case, 0, 99))[1]
    seen["parameters"] = {name: p.detach() for name, p in model.named_parameters()}
    return seen


def check_equal(case: Case, ranks: list[dict[str, Any]]) -> None:
    """Assert that every rank found what one process would."""
    want = expected(case, len(ranks))
    close = {"rtol": 1e-5, "atol": 1e-5}
    for rank, found in enumerate(ranks):
        assert found["differences"] == []
        for step in range(STEPS):
            torch.testing.assert_close(found["outputs"][step], want["outputs"][step][rank], **close)
            torch.testing.assert_close(found["inputs"][step], want["inputs"][step][rank], **close)
        torch.testing.assert_close(found["evaluated"], want["evaluated"], **close)
        (part, parts), (piece, pieces) = found["places"]["experts"], found["places"]["slices"]
        for name, whole in want["parameters"].items():
            number = case.experts // parts
            value = whole[part * number : (part + 1) * number] if name in found["own"] else whole
            width = EXPERT_WIDTH.get(name.rpartition(".")[2]) if name in found["own"] else None
            if width is not None:
                size = whole.shape[width] // pieces
                value = value.narrow(width, piece * size, size)
            torch.testing.assert_close(
                found["parameters"][name], value, msg=lambda text, n=name: f"{n}: {text}", **close
            )


CASES = {
    "whole": Case(),
    "cut alike": Case(forward=2, backward=2, tokens=8),
    "cut apart": Case(forward=3, backward=2),
    "backward finer": Case(forward=1, backward=4, gated=True),
    "one choice, one expert gets all": Case(top_k=1, routing="first", forward=2, backward=3),
    "two choices, two experts get none": Case(routing="first", forward=2),
    "more chunks than tokens": Case(tokens=3, forward=8, backward=5),
    "one token": Case(tokens=1, forward=2),
    "capacity": Case(capacity=1.25, forward=3, backward=2),
    "capacity that drops": Case(capacity=0.6, forward=2, backward=2),
    "capacity, all want one expert": Case(capacity=1.0, routing="first", top_k=1),
    "sigmoid, gated": Case(kind="sigmoid", gated=True, forward=2, backward=3),
    "balanced by an auxiliary loss": Case(balance=0.05, forward=2),
    "cosines": Case(kind="cosine", forward=2, backward=3),
    "experts choose": Case(kind="expert-choice", forward=2, backward=3),
    "experts choose more than there are tokens": Case(
        kind="expert-choice", experts=2, capacity=1.5, tokens=3, gated=True
    ),
    "laid out by products": Case(order="einsum", forward=2, backward=3),
    "laid out by products, with capacity": Case(order="einsum", capacity=0.6, forward=2, backward=2),
    "soft": Case(kind="soft", forward=3, backward=2),
    "soft, a slot each": Case(kind="soft", top_k=1, capacity=0.1, tokens=5, gated=True),
    "two halves, eight bits": Case(
        stack=("schemoe", "int8-rows", "wfbp"), nodes=2, knobs={"schemoe": {"degree": 3, "degree_backward": 2}}
    ),
    "two halves, packed without loss": Case(
        stack=("schemoe", "zipccl-rows", "wfbp"), nodes=2, knobs={"schemoe": {"degree": 3, "degree_backward": 2}}
    ),
    "two hops": Case(stack=("pipemoe", "two-level-a2a", "wfbp"), nodes=2, knobs={"pipemoe": {"degree": 3}}),
    "turns of single ranks": Case(stack=("fastermoe", "int8-rows"), knobs={"fastermoe": {"group": 1}}),
    "turns of single ranks, packed without loss": Case(
        stack=("fastermoe", "zipccl-rows"), knobs={"fastermoe": {"group": 1}}, routing="first"
    ),
    "turns, one expert gets all": Case(
        stack=("fastermoe",), knobs={"fastermoe": {"group": 1}}, routing="first", top_k=1, gated=True
    ),
    "pair by pair": Case(stack=("tutel", "pairwise-a2a"), capacity=1.25, knobs={"tutel": {"degree": 2}}),
}


REPLICATED = [
    Case(spread=2, forward=2, backward=3),
    Case(spread=1, forward=2),
    Case(experts=2),
    Case(stack=("mg-wfbp", "pipemoe")),
    Case(stack=("dear", "pipemoe"), tokens=5),
    Case(stack=("dear", "pipemoe"), spread=2, gated=True),
    Case(stack=("wfbp", "naive-moe"), spread=2, capacity=1.0),
    Case(stack=("fsmoe",), knobs={"fsmoe": {"smallest": "16B"}}),
    Case(stack=("fsmoe", "wfbp"), tokens=20, knobs={"fsmoe": {"smallest": "4B", "degree": 3, "degree_backward": 2}}),
    Case(stack=("fsmoe", "dear"), spread=2),
    Case(stack=("fsmoe", "bytescheduler"), spread=2, knobs={"bytescheduler": {"partition": "64B"}}),
    Case(stack=("lina", "wfbp"), tokens=20, knobs={"lina": {"slice": "100B", "degree": 3, "degree_backward": 2}}),
    Case(stack=("sm-moe", "wfbp"), spread=2, knobs={"sm-moe": {"degree": 2, "degree_backward": 3, "pieces": 2}}),
    Case(
        stack=("sm-moe", "int8-rows", "dear"),
        routing="first",
        knobs={"sm-moe": {"degree": 3, "degree_backward": 2, "pieces": 4, "launch": "oblivious"}},
    ),
    Case(stack=("schemoe",), nodes=2, capacity=1.0, knobs={"schemoe": {"degree": 2, "order": "serial"}}),
    Case(stack=("schemoe", "bf16-rows", "two-level-a2a"), nodes=2, capacity=0.6, gated=True),
    Case(
        stack=("fsmoe", "bfp8-rows", "pipe-a2a"),
        nodes=2,
        top_k=1,
        routing="first",
        knobs={"fsmoe": {"smallest": "16B"}},
    ),
    Case(stack=("schemoe", "int8-rows", "dear"), nodes=2, tokens=1, routing="first"),
    Case(stack=("fsmoe", "zipccl-rows", "pairwise-a2a"), spread=2, capacity=0.6, knobs={"fsmoe": {"smallest": "16B"}}),
    Case(stack=("naive-moe", "two-level-a2a"), nodes=2, routing="first", top_k=1, tokens=5),
    Case(stack=("fastermoe",), knobs={"fastermoe": {"group": 2}}, tokens=1),
    Case(stack=("fastermoe", "wfbp"), knobs={"fastermoe": {"group": 1, "loads": (1, 6, 2, 1), "shadows": 2}}),
    Case(
        stack=("fastermoe", "dear"),
        experts=8,
        routing="first",
        gated=True,
        knobs={"fastermoe": {"group": 4, "loads": (9, 4, 2, 2, 1, 1, 1, 1), "shadows": 3}},
    ),
    Case(stack=("fastermoe", "bf16-rows", "dear"), knobs={"fastermoe": {"group": 2}}, capacity=0.6, nodes=2),
    Case(stack=("parm",), spread=2, slices=2, knobs={"parm": {"schedule": "s1"}}),
    Case(stack=("parm", "dear"), spread=2, slices=2, capacity=1.25, gated=True, knobs={"parm": {"schedule": "s1"}}),
    Case(stack=("parm",), spread=2, slices=2, routing="first", top_k=1, knobs={"parm": {"schedule": "s1"}}),
]


@lru_cache
def all_ranks(world: int) -> list[list[dict[str, Any]]]:
    """Train every case in one gang: making one takes longer than all the training."""
    cases = [*CASES.values(), *(REPLICATED if world == 4 else ())]
    return [list(ranks) for ranks in zip(*run(world, train_all, cases), strict=True)]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_a_spread_layer_equals_that_of_one_process(case: str, world: int) -> None:
    check_equal(CASES[case], all_ranks(world)[list(CASES).index(case)])


@pytest.mark.parametrize("number", range(len(REPLICATED)))
def test_replicas_of_experts_add_up_their_gradients(number: int) -> None:
    check_equal(REPLICATED[number], all_ranks(4)[len(CASES) + number])


def test_a_mixture_that_is_not_used_is_named() -> None:
    case = Case()
    engine = PlanEngine(case.plan(1), Mixed(case), Setup(optimizer_factory({"sgd": {"lr": LR}})), {})
    engine.begin_step()
    x, _ = inputs(case, 0, 0)
    with pytest.raises(RunError, match="mixture 'two' was crossed forward where the plan has no such task"):
        engine.module.two(engine.module.enter(x))
    engine.close()


def test_other_tokens_than_planned_are_refused() -> None:
    case = Case()
    engine = PlanEngine(case.plan(1), Mixed(case), Setup(optimizer_factory({"sgd": {"lr": LR}})), {})
    engine.begin_step()
    with pytest.raises(RunError, match="mixture one has 5 positions, and its plan was made for 7"):
        engine.module(torch.zeros(1, 5, HIDDEN))
    engine.close()
