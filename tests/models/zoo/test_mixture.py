"""The parts of a mixture, each against its definition: gates, orders, experts by hand against autograd, hooks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from orch.models.load import Load
from orch.models.profile import Mixture
from orch.models.zoo.gates import CosineGate, ExpertChoiceGate, Gate, Routing, SoftGate
from orch.models.zoo.mixture import (
    POINTS,
    EinsumRows,
    Experts,
    FeedForward,
    GatedFeedForward,
    MixtureLayer,
    Rows,
    order,
    spans,
)


def routing_of(experts: list[list[int]]) -> Routing:
    """Routes of tokens whose experts are listed, best first, with weights that tell them apart."""
    top_k = len(experts[0])
    number = len(experts) * top_k
    token = torch.arange(len(experts)).repeat_interleave(top_k)
    weight = torch.arange(1.0, number + 1)
    return Routing(token, torch.tensor(experts).reshape(-1), weight, torch.arange(top_k).repeat(len(experts)))


def test_the_third_token_of_two_slots_is_dropped() -> None:
    # The brief's example: S = 8, E = 4, k = 1, f = 1: two slots an expert, three tokens want the first.
    rows = order(routing_of([[0], [0], [0], [1], [2], [2], [3], [3]]), 4, 2)
    assert rows.token.tolist() == [0, 1, 3, -1, 4, 5, 6, 7]
    assert rows.position.tolist() == [0, 1] * 4


def test_first_choices_come_before_second_ones() -> None:
    rows = order(routing_of([[1, 0], [0, 1], [0, 1]]), 2, 2)
    # Expert 0: tokens 1 and 2 by first choice, so token 0's second choice finds no slot.
    assert rows.token.tolist() == [1, 2, 0, 1]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 5), st.integers(1, 3), st.sampled_from([None, 1, 2, 5]), st.integers(0, 10**6)
)
def test_rows_are_a_permutation_and_drop_only_what_finds_no_slot(
    tokens: int, experts: int, top_k: int, capacity: int | None, seed: int
) -> None:
    top_k = min(top_k, experts)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)])
    rows = order(routing_of(chosen.tolist()), experts, capacity)
    routes = rows.route[rows.route >= 0].tolist()
    assert len(set(routes)) == len(routes)
    wanted = torch.bincount(chosen.reshape(-1), minlength=experts).tolist()
    kept = [min(number, capacity) if capacity else number for number in wanted]
    assert len(routes) == sum(kept)
    for e, a, b in spans(rows.counts.tolist()):
        mine = rows.route[a:b]
        assert (chosen.reshape(-1)[mine[mine >= 0]] == e).all()
        if capacity is None:
            assert rows.token[a:b].tolist() == sorted(rows.token[a:b].tolist())


@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_products_lay_tokens_out_as_a_sort_does(capacity: int | None) -> None:
    # GShard's einsums "sec,sm->ecm" and its inverse, with the dimensions of expert and slot as one.
    routing = routing_of([[0, 2], [2, 1], [2, 0], [0, 2], [2, 1]])
    by_sort, by_products = (order(routing, 3, capacity, kind) for kind in (Rows, EinsumRows))
    tokens = torch.randn(5, 4)
    torch.testing.assert_close(by_products.gather(tokens), by_sort.gather(tokens))
    rows = torch.randn(by_sort.token.shape[0], 4) * (by_sort.token >= 0).unsqueeze(1)
    torch.testing.assert_close(by_products.scatter(rows, 5), by_sort.scatter(rows, 5))


def test_a_softmax_gate_weighs_its_choices_to_one_and_a_switch_by_the_probability() -> None:
    tokens = torch.randn(5, 4)
    gate = Gate(4, 3, 2)
    shares = (tokens @ gate.weight.T).softmax(-1)
    routing = gate(tokens)
    assert routing.expert.view(5, 2).tolist() == shares.topk(2).indices.tolist()
    torch.testing.assert_close(routing.weight.view(5, 2).sum(1), torch.ones(5))
    switch = Gate(4, 3, 1)
    switch.weight = gate.weight
    torch.testing.assert_close(switch(tokens).weight, shares.max(-1).values)


def test_a_sigmoid_gate_weighs_by_sigmoids() -> None:
    tokens = torch.randn(5, 4)
    gate = Gate(4, 3, 1, "sigmoid")
    torch.testing.assert_close(gate(tokens).weight, (tokens @ gate.weight.T).max(-1).values.sigmoid())


def test_a_gate_of_cosines_scores_directions_only_and_its_temperature_has_a_bound() -> None:
    tokens = torch.randn(5, 4)
    gate = CosineGate(4, 3, 2)
    with torch.no_grad():
        gate.project_bias.normal_()
    projected = torch.nn.functional.linear(tokens, gate.project, gate.project_bias)
    cosines = torch.nn.functional.cosine_similarity(projected.unsqueeze(1), gate.weight.unsqueeze(0), dim=-1)
    torch.testing.assert_close(gate.scores(tokens), 2 * cosines)
    best, expert = (2 * cosines).softmax(-1).topk(2)
    routing = gate(tokens)
    assert routing.expert.view(5, 2).tolist() == expert.tolist()
    torch.testing.assert_close(routing.weight.view(5, 2), best / best.sum(-1, keepdim=True))
    with torch.no_grad():
        gate.weight *= 10
        gate.temperature.fill_(50.0)
    torch.testing.assert_close(gate.scores(tokens), 100 * cosines, rtol=1e-4, atol=1e-4)


def dense(experts: Experts, expert: int, rows: Tensor) -> Tensor:
    counts = [0] * experts.experts
    counts[expert] = len(rows)
    return experts(rows, counts)


@pytest.mark.parametrize("capacity", [0.5, 1.0, 3.0])
def test_experts_that_choose_add_up_to_their_definition(capacity: float) -> None:
    mixture = Mixture("m", 6, 4, 5, 3, 1, capacity).routed_by("expert-choice")
    layer = MixtureLayer(mixture, ExpertChoiceGate(mixture), FeedForward(3, 4, 5))
    x = torch.randn(6, 4)
    shares = (x @ layer.gate.weight.T).softmax(-1)
    taken = int(capacity * 2)  # of 6 tokens and 3 experts, each is due 2
    expected = torch.zeros_like(x)
    for expert in range(3):
        outputs = dense(layer.experts, expert, x)
        for token in sorted(range(6), key=lambda t: -shares[t, expert].item())[:taken]:
            expected[token] += shares[token, expert] * outputs[token]
    torch.testing.assert_close(layer(x), expected)
    assert layer.load is not None
    assert layer.load == Load((taken,) * 3)


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_soft_mixture_is_its_definition(top_k: int) -> None:
    plain = Mixture("m", 6, 4, 5, 3, top_k)
    mixture = plain.routed_by("soft")
    assert (mixture.tokens, mixture.capacity(2 * mixture.tokens)) == (3 * 2 * top_k, 2 * 2 * top_k)
    layer = MixtureLayer(mixture, SoftGate(mixture, 6), FeedForward(3, 4, 5))
    x = torch.randn(2, 6, 4)
    phi = layer.gate.weight
    expected = []
    for sequence in x:  # each by itself
        logits = (sequence / sequence.norm(dim=1, keepdim=True)) @ (phi / phi.norm(dim=1, keepdim=True)).T
        slots = logits.softmax(0).T @ sequence
        each = [dense(layer.experts, e, part) for e, part in enumerate(slots.chunk(3))]
        expected.append(logits.softmax(1) @ torch.cat(each))
    torch.testing.assert_close(layer(x), torch.stack(expected))


def test_the_auxiliary_loss_is_one_when_loads_are_even_and_leaves_the_output_alone() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(64, 8)
    plain, balanced = Gate(8, 4, 1), Gate(8, 4, 1, balance=0.5)
    balanced.load_state_dict(plain.state_dict())
    assert torch.equal(plain(tokens).weight, balanced(tokens).weight)
    weight = balanced.weight.detach().clone().requires_grad_()
    shares = (tokens @ weight.T).softmax(-1)
    first = torch.nn.functional.one_hot(shares.argmax(-1), 4).float().mean(0)
    loss = 0.5 * 4 * (shares.mean(0) * first).sum()
    (expected,) = torch.autograd.grad(loss, weight)
    balanced(tokens).weight.mul(0.0).sum().backward()
    torch.testing.assert_close(balanced.weight.grad, expected)


class Custom(Experts):
    """An expert of a user's: only what it computes."""

    def __init__(self, experts: int, hidden: int) -> None:
        super().__init__()
        self.experts = experts
        self.scale = torch.nn.Parameter(torch.rand(experts, hidden) + 0.5)

    def one(self, expert: int, x: Tensor) -> Tensor:
        return torch.tanh(x * self.scale[expert])


@pytest.mark.parametrize("counts", [[3, 0, 5], [0, 0, 8], [8, 0, 0], [1, 2, 0], [0, 0, 0]])
@pytest.mark.parametrize(
    "make", [lambda: FeedForward(3, 4, 6), lambda: GatedFeedForward(3, 4, 6), lambda: Custom(3, 4)]
)
def test_backward_by_hand_is_that_of_autograd(make: Any, counts: list[int]) -> None:
    torch.manual_seed(1)
    experts = make().double()
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_()
    rows = torch.randn(sum(counts), 4, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(sum(counts), 4, dtype=torch.float64)
    outputs = experts(rows, counts)
    names = [name for name, _ in experts.named_parameters()]
    expected = torch.autograd.grad(outputs, [rows, *experts.parameters()], gradient, allow_unused=True)
    with torch.no_grad():
        found, saved = experts.run(rows.detach(), counts)
        of_rows, of_parameters = experts.backward_rows(gradient, saved, counts)
    torch.testing.assert_close(found, outputs)
    torch.testing.assert_close(of_rows, expected[0] if expected[0] is not None else torch.zeros_like(rows))
    for name, value in zip(names, expected[1:], strict=True):
        wanted = value if value is not None else torch.zeros_like(of_parameters[name])
        torch.testing.assert_close(of_parameters[name], wanted)


def test_gradients_of_a_layer_are_those_of_finite_differences() -> None:
    torch.manual_seed(2)
    mixture = Mixture("m", 5, 3, 4, 3, 2)
    layer = MixtureLayer(mixture, Gate(3, 3, 2, "sigmoid"), FeedForward(3, 3, 4)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()

    class Doubled(Gate):  # scores in fp64: fp32 would drown differences of 1e-6
        def forward(self, tokens: Tensor) -> Routing:
            best, expert = (tokens @ layer.gate.weight.T).sigmoid().topk(2)
            token = torch.arange(len(tokens)).repeat_interleave(2)
            return Routing(token, expert.reshape(-1), best.reshape(-1), torch.arange(2).repeat(len(tokens)))

    weight = layer.gate.weight
    layer.gate = Doubled(3, 3, 2)
    layer.gate.weight = weight
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_hooks_see_what_passes_in_order_and_may_change_it() -> None:
    layer = MixtureLayer(Mixture("m", 4, 3, 4, 2, 1), Gate(3, 2, 1), FeedForward(2, 3, 4))
    seen: list[str] = []
    for point in POINTS:
        layer.hooks[point].append(lambda _, data, point=point: seen.append(f"{point} {next(iter(data))}"))
    x = torch.randn(4, 3)
    before = layer(x)
    assert [line.split()[0] for line in seen] == list(POINTS)
    layer.hooks["after_combine"].append(lambda _, data: data.update(rows=data["rows"] * 2))
    torch.testing.assert_close(layer(x), before * 2)


def test_a_layer_knows_its_load_and_what_it_dropped() -> None:
    layer = MixtureLayer(Mixture("m", 8, 3, 4, 4, 1, 1.0), Gate(3, 4, 1), FeedForward(4, 3, 4))
    with torch.no_grad():
        layer.gate.weight.copy_(torch.tensor([[9.0], [0], [0], [0]]).expand(4, 3))
    layer(torch.rand(8, 3) + 0.1)
    assert layer.load is not None
    assert layer.load == Load((2, 0, 0, 0), 6)
    assert (layer.load.imbalance, layer.load.drop_rate) == (4.0, 0.75)


def test_each_part_of_the_experts_is_kept_by_one_rank() -> None:
    whole = FeedForward(6, 2, 3)
    kept = []
    for part in range(3):
        mine = FeedForward(6, 2, 3)
        mine.load_state_dict(whole.state_dict())
        mine.keep((part, 3))
        kept.append(mine)
    for name, parameter in whole.named_parameters():
        assert torch.equal(torch.cat([dict(part.named_parameters())[name] for part in kept]), parameter)
    assert kept[0].experts == 2


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_what_slices_of_experts_compute_adds_up_to_what_whole_ones_do(kind: type[Experts]) -> None:
    torch.manual_seed(0)
    whole = kind(4, 6, 8)  # type: ignore[call-arg]
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter)
    rows = torch.randn(5, 6)
    total = torch.zeros(5, 6)
    for piece in range(4):
        mine = copy.deepcopy(whole)
        mine.keep((1, 2), (piece, 4))
        with torch.no_grad():
            total += mine.run(rows, [2, 3])[0]
    kept = copy.deepcopy(whole)
    kept.keep((1, 2))
    with torch.no_grad():
        torch.testing.assert_close(total, kept.run(rows, [2, 3])[0], rtol=1e-5, atol=1e-4)
