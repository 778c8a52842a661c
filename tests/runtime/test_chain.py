"""Layers walked as a chain equal the model of one process, however dense work and mixtures are cut, along tokens or samples:
losses, and every parameter after a few steps; and every rank did what the plan says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orch import registry
from orch.errors import RunError
from orch.models.mixture import (
    BertMoeKnobs,
    CharMoeKnobs,
    Gpt2MoeKnobs,
    MixtralKnobs,
    bert_moe_profile,
    char_moe_profile,
    gpt2_moe_profile,
    mixtral_profile,
)
from orch.models.zoo import mixed
from orch.models.zoo.mixture import mixture_layers
from orch.models.zoo.objective import logits_of
from orch.models.zoo.shards import share, shared_parameters
from orch.plan import SAMPLES, TOKENS, Plan, Step, Task, bounds, chained, check
from orch.runtime.base import Setup
from orch.runtime.chain import Strip
from orch.runtime.engine import PlanEngine
from orch.runtime.mixture import expert_parameters, spread
from orch.runtime.optimizers import optimizer_factory
from orch.stack import apply, arrange
from orch.testing import mixture as made_up
from orch.testing import small
from orch.workload import Layout, mixture_training
from techniques.moe._chain import aligned
from tests.runtime.one_process import train
from tests.runtime.worlds import World, run

LR, STEPS = 0.05, 2
SMALL: dict[str, Any] = {"seq_len": 11, "hidden": 16, "num_heads": 4, "vocab": 32, "experts": 4}
MODELS: dict[str, Any] = {
    "char": (CharMoeKnobs, char_moe_profile, mixed.char_moe, {}),
    "gpt2": (Gpt2MoeKnobs, gpt2_moe_profile, mixed.gpt2_moe, {"positions": 16}),
    "mixtral": (MixtralKnobs, mixtral_profile, mixed.mixtral, {"key_value_heads": 2, "inner": 24}),
    "bert": (BertMoeKnobs, bert_moe_profile, mixed.bert_moe, {"positions": 16}),
}


@dataclass(frozen=True)
class Case:
    """A model, its capacity, and the chunks of dense work and of mixtures along an axis."""

    model: str = "char"
    dense: int = 1
    mixture: int = 1
    axis: str = TOKENS
    layers: int = 4
    every: int = 2
    capacity: float | None = None
    balance: float = 0.1
    batch: int = 3
    late: bool = False
    # All tokens choose the first two experts, so that the other ranks get none.
    crowded: bool = False
    # Techniques in place of a cut by hand.
    stack: tuple[str, ...] = ()
    knobs: dict[str, Any] = field(default_factory=dict)
    nodes: int = 1
    # So many ranks share each sample.
    tensor: int = 1
    # Backward: chunks of dense work (none: as forward), and parts of each chunk of a mixture.
    back: int | None = None
    parts: int = 1

    @property
    def sizes(self) -> Any:
        kind, _, _, more = MODELS[self.model]
        return kind(
            **SMALL, **more, num_layers=self.layers, every=self.every, capacity=self.capacity, balance=self.balance
        )

    def plan(self, world: int) -> Plan:
        profile = MODELS[self.model][1](self.sizes)
        layout = Layout.of(world, profile.mixtures, tensor=self.tensor)
        plain = mixture_training(profile, layout, self.batch)
        if self.stack:
            members = [small.member(registry.technique(name), **dict(self.knobs.get(name, {}))) for name in self.stack]
            where = made_up.cluster(
                world, alpha_s=1e-4, beta_s_per_byte=2e-7, rate_flops=2e8, nodes=self.nodes, intra=(1e-4, 1e-6),
                all_reduce=(0.0, 1e-6),
            )  # fmt: skip
            context = small.context(layout.local(profile), where, batch=self.batch)
            return apply(plain, arrange(members, registry.technique), context)[0]
        step = chained(plain.steps[0], profile.stages, profile.mixtures, self.batch, self.axis)
        step = step.in_parts(self.parts)
        dense, mixed = (bounds(step.forward.units, number) for number in (self.dense, self.mixture))
        cuts = [(dense, mixed), (dense if self.back is None else aligned(dense, self.back), mixed)]
        chains = (step.forward, step.backward)
        chunks = [chain.cut(*cut) for chain, cut in zip(chains, cuts, strict=True)]
        orders = [chain.in_turn(*cut) for chain, cut in zip(chains, cuts, strict=True)]
        return check(plain.each_step(lambda _: step.woven(chunks, orders, late=self.late)), finished=True)

    def build(self) -> nn.Module:
        torch.manual_seed(3)
        model: nn.Module = MODELS[self.model][2](self.sizes)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if self.crowded and name.endswith("norm2.bias"):
                    parameter.fill_(3.0)  # so the sum over a token is positive
                elif self.crowded and name.endswith("gate.weight"):
                    parameter.copy_(torch.linspace(3, -3, parameter.shape[0]).unsqueeze(1) / parameter.shape[1])
                elif parameter.dim() > 1:
                    parameter.copy_(
                        torch.randn(parameter.shape, generator=generator) * (1.0 if "gate" in name else 0.2)
                    )
        return model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are tiny, and threads that meet for each cost more than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tokens(case: Case, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randint(0, SMALL["vocab"], (case.batch, SMALL["seq_len"]), generator=generator)


def loss_of(model: Any, x: Tensor) -> Tensor:
    output = model(x)
    logits = output.prediction_logits if hasattr(output, "prediction_logits") else logits_of(output)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), x.roll(1, 1).flatten())
    return loss + output.seq_relationship_logits.square().mean() if hasattr(output, "seq_relationship_logits") else loss


def trained(world: World, case: Case, number: int) -> dict[str, Any]:
    plan = case.plan(world.size)
    model = case.build()
    groups = {"world": world.group(f"world{number}")}
    place = sharer = (0, 1)
    for name in plan.groups:
        if name != "world":
            block = list(plan.groups[name].block_of(world.rank))
            groups[name] = world.block(f"{name}{number}", block)
            place = (block.index(world.rank), len(block)) if name == "experts" else place
            sharer = (block.index(world.rank), len(block)) if name == "tensor" else sharer
    share(model, *sharer)
    spread(model, place)
    reader = world.rank // sharer[1]
    engine = PlanEngine(plan, model, Setup(optimizer_factory({"sgd": {"lr": LR}}), world.rank), groups)
    losses = [
        float(engine.train_step(lambda module, step=step: loss_of(module, tokens(case, reader, step))))
        for step in range(STEPS)
    ]
    engine.flush()
    with torch.no_grad():
        judged = float(loss_of(engine.module, tokens(case, 9, 9)))
    layers = [layer for layer in model.modules() if hasattr(layer, "load")]
    seen = {
        "losses": losses,
        "judged": judged,
        "place": place,
        "sharer": sharer,
        "shared": sorted(shared_parameters(model)),
        "own": sorted(expert_parameters(model)) if place[1] > 1 else [],
        "parameters": {name: parameter.detach().clone() for name, parameter in model.named_parameters()},
        "differences": engine.differences(),
        "rows": [layer.load.rows for layer in layers],
        "loads": [sum(layer.load.rows) + layer.load.dropped for layer in layers],
    }
    engine.settle()
    engine.close()
    return seen


def train_all(world: World, cases: list[Case]) -> list[dict[str, Any]]:
    return [trained(world, case, number) for number, case in enumerate(cases)]


def in_pieces(layer: nn.Module, case: Case, pieces: int) -> None:
    """Let a mixture be given the tokens of each chunk by themselves, where gradients are asked for."""
    plain, dim = layer.forward, 1 if case.axis == TOKENS else 0

    def forward(x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return plain(x)  # type: ignore[no-any-return]
        return torch.cat([plain(x.narrow(dim, a, b - a)) for a, b in pairwise(bounds(x.shape[dim], pieces))], dim)

    layer.forward = forward


def expected(case: Case, world: int, pieces: int = 1) -> dict[str, Any]:
    """One process: every rank's tokens through the whole model, and one update by the mean of the losses."""
    model = case.build()
    for layer in mixture_layers(model).values() if pieces > 1 else ():
        in_pieces(layer, case, pieces)
    losses: list[list[float]] = [[] for _ in range(STEPS)]

    def loss(rank: int, step: int) -> Tensor:
        value: Tensor = loss_of(model, tokens(case, rank, step))
        losses[step].append(float(value.detach()))
        return value

    train(model, loss, world, STEPS, LR)
    with torch.no_grad():
        judged = float(loss_of(model, tokens(case, 9, 9)))
    return {"losses": losses, "judged": judged, "parameters": dict(model.named_parameters())}


def check_equal(case: Case, ranks: list[dict[str, Any]], want: dict[str, Any]) -> None:
    for rank, found in enumerate(ranks):
        assert found["differences"] == []
        reader = rank // found["sharer"][1]
        assert found["losses"] == pytest.approx([step[reader] for step in want["losses"]], abs=1e-5)
        assert found["judged"] == pytest.approx(want["judged"], abs=1e-5)
        assert set(found.get("loads", ())) <= {2 * case.batch * SMALL["seq_len"]}
        part, parts = found["place"]
        for name, whole in want["parameters"].items():
            number = SMALL["experts"] // parts
            value = whole[part * number : (part + 1) * number] if name in found["own"] else whole
            value = heads_of(name, value, *found["sharer"]) if name in found["shared"] else value
            torch.testing.assert_close(
                found["parameters"][name],
                value.detach(),
                rtol=1e-5,
                atol=1e-5,
                msg=lambda m, n=name: f"{case} {n}: {m}",
            )


def heads_of(name: str, whole: Tensor, place: int, ranks: int) -> Tensor:
    """Return a rank's share of a parameter of attention: some heads of each of queries, keys and values, or what they add."""
    across = name.endswith(("c_attn.weight", "c_attn.bias", "c_proj.weight"))
    if name.endswith(("out.weight", "c_proj.weight")):
        return whole.chunk(ranks, 0 if across else 1)[place]
    dim = whole.dim() - 1 if across else 0
    return torch.cat([part.chunk(ranks, dim)[place] for part in whole.chunk(3, dim)], dim)


CUTS = [(1, 1), (3, 2), (2, 4)]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_cutting_changes_nothing(world: int) -> None:
    """11 tokens divide by none of the degrees."""
    cases = [Case(dense=p, mixture=q) for p, q in CUTS]
    cases += [Case(dense=4, mixture=2, back=2, parts=3), Case(dense=3, mixture=1, back=1, parts=2, axis=SAMPLES)]
    ranks = run(world, train_all, cases)
    want = expected(cases[0], world)
    for number, case in enumerate(cases):
        check_equal(case, [found[number] for found in ranks], want)


@pytest.mark.parametrize("model", ["gpt2", "mixtral", "bert"])
def test_models_of_transformers(model: str) -> None:
    axis = SAMPLES if model == "bert" else TOKENS
    cases = [
        Case(model, 3, 2, axis, every=1 if model == "mixtral" else 2, layers=3),
        Case(model, 2, 3, SAMPLES, every=1, layers=2, late=True),
    ]
    ranks = run(2, train_all, cases)
    for number, case in enumerate(cases):
        check_equal(case, [found[number] for found in ranks], expected(case, 2))


STACKS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("sp-moe", "dear"), {"sp-moe": {"degree_dense": 2, "degree": 4, "boundary": "balanced", "policy": "expert-out"}}),
    (("mast", "pipe-a2a"), {"mast": {"degree_dense": 3, "degree": 2, "trials": 30, "seed": 3}}),
]


@pytest.mark.parametrize(("stack", "knobs"), STACKS)
def test_techniques_beside_those_for_gradients_and_ways_of_rows(stack: tuple[str, ...], knobs: dict[str, Any]) -> None:
    case = Case(stack=stack, knobs=knobs, nodes=2)
    check_equal(case, [found[0] for found in run(4, train_all, [case])], expected(case, 4))


@pytest.mark.parametrize(("axis", "chunks"), [(TOKENS, 3), (SAMPLES, 2)])
def test_each_chunk_fills_a_capacity_of_its_own(axis: str, chunks: int) -> None:
    """The definition: one process whose mixtures are given the tokens of one chunk after another."""
    case = Case(dense=2, mixture=chunks, axis=axis, capacity=0.8, balance=0.0, parts=2)
    want = expected(case, 2, pieces=chunks)
    whole = expected(case, 2)
    assert want["losses"][0] != pytest.approx(whole["losses"][0], abs=1e-4)  # other tokens are dropped
    ranks = [found[0] for found in run(2, train_all, [case])]
    for found in ranks:
        found.pop("loads")
    check_equal(case, ranks, want)


def test_experts_that_get_no_token() -> None:
    case = Case(dense=2, mixture=3, crowded=True, balance=0.0)
    ranks = [found[0] for found in run(4, train_all, [case])]
    assert ranks[0]["rows"][0][2:] == (0, 0)
    check_equal(case, ranks, expected(case, 4))


def test_a_batch_of_another_size_is_refused() -> None:
    case = Case(axis=SAMPLES)
    engine = PlanEngine(case.plan(1), case.build(), Setup(optimizer_factory({"sgd": {"lr": LR}})), {})
    with pytest.raises(RunError, match="a plan for 3 samples was made, and 2 came"):
        engine.train_step(lambda module: loss_of(module, tokens(case, 0, 0)[:2]))
    engine.close()


def test_a_closed_engine_leaves_the_model_as_it_was() -> None:
    case = Case(dense=2, mixture=2)
    model = case.build()
    before = loss_of(model, tokens(case, 0, 0))
    engine = PlanEngine(case.plan(1), model, Setup(optimizer_factory({"sgd": {"lr": LR}})), {})
    engine.close()
    assert loss_of(model, tokens(case, 0, 0)) == before
    before.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_strip_gives_any_range_out_of_its_pieces() -> None:
    whole = torch.arange(24.0).view(2, 12)
    strip = Strip(1)
    for first, last in ((0, 5), (5, 6), (6, 12)):
        strip.put(first, last, whole[:, first:last])
    for first, last in ((0, 12), (0, 5), (3, 8), (5, 6), (7, 9)):
        assert torch.equal(strip.get(first, last), whole[:, first:last])
    with pytest.raises(RunError, match="units 12 to 13 of a chain"):
        strip.get(6, 13)


def test_in_bf16_a_chain_is_as_near_to_fp32_as_whole_layers_are() -> None:
    """Uncut it does the same sums; cut, other ones of the same length."""

    def gradients(case: Case, precision: str, *, walked: bool) -> dict[str, Tensor]:
        plan = case.plan(1) if walked else mixture_training(MODELS["char"][1](case.sizes), Layout(1), case.batch)
        plan = plan.each_step(lambda step: Step(tuple(_in(task, precision) for task in step)))
        model = case.build()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        engine = PlanEngine(plan, model, Setup(optimizer_factory({"sgd": {"lr": 1.0}})), {})
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            engine.train_step(lambda module: loss_of(module, tokens(case, 0, 0)))
        engine.close()
        return {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}

    want = gradients(Case(), "fp32", walked=False)
    plain, uncut, cut = (
        gradients(Case(dense=p, mixture=q), "bf16", walked=bool(p)) for p, q in ((0, 0), (1, 1), (2, 3))
    )
    for name, right in want.items():
        assert torch.equal(plain[name], uncut[name]), name
        assert (cut[name] - right).norm() <= 1.2 * (plain[name] - right).norm() + 1e-3 * right.norm(), name


def _in(task: Task, precision: str) -> Task:
    return replace(task, op=replace(task.op, dtype=precision)) if hasattr(task.op, "dtype") else task  # type: ignore[call-arg]
