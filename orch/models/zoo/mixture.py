"""Mixtures of experts that run: gate, order, experts and inverse order as parts, each to be replaced by another.

Alone, a layer is ordinary autograd over all experts: the definition that every spread layer must equal. A runtime that
spreads experts puts a `path` of its own between the gate and the output, and calls the parts itself.

Shapes: T tokens of this rank, M their width, E experts, H their width, C slots of an expert, N routes (a token and an
expert chosen for it), R rows (a route, or a slot that may be empty), laid out expert after expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orch.models.load import Load
from orch.models.mixture import MixtureKnobs
from orch.models.profile import EXPERT_WIDTH, Mixture
from orch.models.zoo.gates import Routing, gate_of

NOTHING = -1
# Where users may look at, or change, what passes: called with the layer and a dict that they may write to.
POINTS = ("before_layer", "before_dispatch", "after_dispatch", "before_combine", "after_combine", "after_layer")
Hook = Callable[["MixtureLayer", dict[str, Any]], None]


@dataclass(frozen=True)
class Rows:
    """Routes as rows, expert after expert: of each row [R] its route and token (`NOTHING` for an empty slot) and the
    position along which rows can be cut; `counts` [E] rows of each expert.
    """

    route: Tensor
    token: Tensor
    position: Tensor
    counts: Tensor

    def gather(self, tokens: Tensor) -> Tensor:
        """Return the rows [R, M] of `tokens` [T, M]; an empty slot is 0."""
        rows = tokens.index_select(0, self.token.clamp(min=0))
        return rows if self.full else rows * (self.token >= 0).unsqueeze(1)

    def weights(self, routing_weight: Tensor) -> Tensor:
        """Return the weight of each row [R], 0 for an empty slot."""
        weights = routing_weight.index_select(0, self.route.clamp(min=0))
        return weights if self.full else weights * (self.route >= 0)

    def scatter(self, rows: Tensor, number: int) -> Tensor:
        """Return for each of `number` tokens the sum of its rows [R, M]."""
        return rows.new_zeros(number, rows.shape[1]).index_add(0, self.token.clamp(min=0), rows)

    @property
    def full(self) -> bool:
        """Whether no slot is empty, as is so without capacity."""
        return self.route.numel() == 0 or bool((self.route >= 0).all())


class EinsumRows(Rows):
    """The same rows by products with a matrix of ones and zeros [R, T], as GShard and DeepSpeed have it: R T M operations
    where `Rows` moves R M numbers.
    """

    def gather(self, tokens: Tensor) -> Tensor:
        """Return the rows [R, M] of `tokens` [T, M]; an empty slot is 0."""
        return self._ones(tokens.shape[0], tokens.dtype) @ tokens

    def scatter(self, rows: Tensor, number: int) -> Tensor:
        """Return for each of `number` tokens the sum of its rows [R, M]."""
        return self._ones(number, rows.dtype).T @ rows

    def _ones(self, number: int, dtype: torch.dtype) -> Tensor:
        return (self.token.unsqueeze(1) == torch.arange(number, device=self.token.device)).to(dtype)


def order(routing: Routing, experts: int, capacity: int | None, kind: type[Rows] = Rows) -> Rows:
    """Lay the routes out as rows, sorted by expert and then by token; stable, so equal on every machine.

    With a `capacity` every expert has that many rows: its first choices come first, each in token order, what finds no
    slot is dropped (GShard's rule), and slots that nobody takes are empty. Without, every route is a row.
    """
    if capacity is None:
        by_expert = torch.argsort(routing.expert, stable=True)
        counts = torch.bincount(routing.expert, minlength=experts)
        token = routing.token[by_expert]
        return kind(by_expert, token, token, counts)
    first_come = torch.argsort(routing.choice, stable=True)
    by_expert = first_come[torch.argsort(routing.expert[first_come], stable=True)]
    expert = routing.expert[by_expert]
    wanted = torch.bincount(expert, minlength=experts)
    slot = torch.arange(expert.numel(), device=expert.device) - (wanted.cumsum(0) - wanted)[expert]
    kept = slot < capacity
    route = expert.new_full((experts * capacity,), NOTHING)
    route[(expert * capacity + slot)[kept]] = by_expert[kept]
    token = torch.where(route >= 0, routing.token[route.clamp(min=0)], route)
    position = torch.arange(capacity, device=expert.device).repeat(experts)
    return kind(route, token, position, expert.new_full((experts,), capacity))


class Experts(nn.Module):
    """Base of the experts of a layer: parameters have the expert as first dim, so that a rank can `keep` some.

    A subclass says `one(e, x)`, expert `e` [rows, M] -> [rows, M], and is done: `backward_rows` then computes forward
    again. Where `run` saves what backward needs, row by row, `backward_rows` may do without.
    """

    experts: int
    # How many ranks hold a slice each of these experts: what each adds once is shared out among them.
    slices: int = 1

    def one(self, expert: int, x: Tensor) -> Tensor:
        """Return the output of expert `expert` for its rows."""
        raise TypeError(f"{type(self).__name__} does not say what an expert computes")

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the outputs of `rows` [R, M], of which each expert has `counts` in turn. Autograd follows."""
        outputs = [self.one(e, rows[a:b]) for e, a, b in spans(counts)]
        return torch.cat(outputs) if outputs else rows

    def run(self, rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs and what `backward_rows` needs of each row; autograd is off."""
        return self(rows, counts), (rows,)

    def backward_rows(
        self, gradient: Tensor, saved: tuple[Tensor, ...], counts: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the rows' gradients, and those of the parameters by name, from the outputs' [R, M]; autograd is off."""
        parameters = dict(self.named_parameters())
        with torch.enable_grad():
            rows = saved[0].detach().requires_grad_()
            outputs = self(rows, counts)
            found = torch.autograd.grad(outputs, [rows, *parameters.values()], gradient, allow_unused=True)
        whole = [
            g if g is not None else torch.zeros_like(p)
            for g, p in zip(found, (rows, *parameters.values()), strict=True)
        ]
        return whole[0], dict(zip(parameters, whole[1:], strict=True))

    def keep(self, part: tuple[int, int], piece: tuple[int, int] = (0, 1)) -> None:
        """Keep one of some equal parts of the experts, and of these one of some slices: (which, of how many)."""
        number = self.experts // part[1]
        for name, parameter in list(self.named_parameters(recurse=False)):
            kept = parameter.detach().narrow(0, part[0] * number, number)
            width = EXPERT_WIDTH.get(name)
            if width is not None:
                size = kept.shape[width] // piece[1]
                kept = kept.narrow(width, piece[0] * size, size)
            setattr(self, name, nn.Parameter(kept.clone(), requires_grad=parameter.requires_grad))
        self.experts, self.slices = number, piece[1]


def spans(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (expert, begin, end) of those that have rows."""
    ends = [0, *accumulate(counts)]
    return [(e, a, b) for e, (a, b) in enumerate(pairwise(ends)) if b > a]


class FeedForward(Experts):
    """down(gelu(up(x))), with biases: GPT's and BERT's."""

    def __init__(self, experts: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.experts = experts
        self.up = _drawn(experts, hidden, inner)
        self.down = _drawn(experts, inner, hidden)
        self.up_bias = nn.Parameter(torch.zeros(experts, inner))
        self.down_bias = nn.Parameter(torch.zeros(experts, hidden))

    def one(self, expert: int, x: Tensor) -> Tensor:
        inner = torch.addmm(self.up_bias[expert].to(x.dtype), x, self.up[expert].to(x.dtype))
        bias = self.down_bias[expert].to(x.dtype) / self.slices
        return torch.addmm(bias, F.gelu(inner), self.down[expert].to(x.dtype))

    def run(self, rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        inner = rows.new_empty(rows.shape[0], self.up.shape[2])
        outputs = torch.empty_like(rows)
        for e, a, b in spans(counts):
            torch.addmm(self.up_bias[e].to(rows.dtype), rows[a:b], self.up[e].to(rows.dtype), out=inner[a:b])
            bias = self.down_bias[e].to(rows.dtype)
            bias = bias / self.slices if self.slices > 1 else bias
            torch.addmm(bias, F.gelu(inner[a:b]), self.down[e].to(rows.dtype), out=outputs[a:b])
        return outputs, (rows, inner)

    def backward_rows(
        self, gradient: Tensor, saved: tuple[Tensor, ...], counts: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        rows, inner = saved
        found = {name: torch.zeros_like(parameter) for name, parameter in self.named_parameters()}
        gradients = torch.empty_like(rows)
        for e, a, b in spans(counts):
            g = gradient[a:b]
            found["down"][e] = F.gelu(inner[a:b]).T @ g
            found["down_bias"][e] = g.sum(0)
            g = torch.ops.aten.gelu_backward(g @ self.down[e].to(g.dtype).T, inner[a:b])
            found["up"][e] = rows[a:b].T @ g
            found["up_bias"][e] = g.sum(0)
            torch.mm(g, self.up[e].to(g.dtype).T, out=gradients[a:b])
        return gradients, found


class GatedFeedForward(Experts):
    """down(silu(gate(x)) up(x)), without biases: Mixtral's."""

    def __init__(self, experts: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.experts = experts
        self.up = _drawn(experts, hidden, inner)
        self.down = _drawn(experts, inner, hidden)
        self.gate = _drawn(experts, hidden, inner)

    def one(self, expert: int, x: Tensor) -> Tensor:
        gate, up, down = (w[expert].to(x.dtype) for w in (self.gate, self.up, self.down))
        return (F.silu(x @ gate) * (x @ up)) @ down

    def run(self, rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        gates, ups = (rows.new_empty(rows.shape[0], self.up.shape[2]) for _ in range(2))
        outputs = torch.empty_like(rows)
        for e, a, b in spans(counts):
            torch.mm(rows[a:b], self.gate[e].to(rows.dtype), out=gates[a:b])
            torch.mm(rows[a:b], self.up[e].to(rows.dtype), out=ups[a:b])
            torch.mm(F.silu(gates[a:b]) * ups[a:b], self.down[e].to(rows.dtype), out=outputs[a:b])
        return outputs, (rows, gates, ups)

    def backward_rows(
        self, gradient: Tensor, saved: tuple[Tensor, ...], counts: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        rows, gates, ups = saved
        found = {name: torch.zeros_like(parameter) for name, parameter in self.named_parameters()}
        gradients = torch.empty_like(rows)
        for e, a, b in spans(counts):
            opened = F.silu(gates[a:b])
            found["down"][e] = (opened * ups[a:b]).T @ gradient[a:b]
            inner = gradient[a:b] @ self.down[e].to(gradient.dtype).T
            of_up, of_gate = inner * opened, torch.ops.aten.silu_backward(inner * ups[a:b], gates[a:b])
            found["up"][e] = rows[a:b].T @ of_up
            found["gate"][e] = rows[a:b].T @ of_gate
            gradients[a:b] = of_up @ self.up[e].to(of_up.dtype).T + of_gate @ self.gate[e].to(of_gate.dtype).T
        return gradients, found


def _drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).normal_(std=0.02))


# What a runtime puts in place of the path alone: layer, tokens [T, M] and routing to the sums [T, M].
Path = Callable[["MixtureLayer", Tensor, Routing], Tensor]


class MixtureLayer(nn.Module):
    """A mixture of experts: [..., M] -> [..., M]. `mixture` says its sizes; `gate` and `experts` are parts like any other."""

    def __init__(self, mixture: Mixture, gate: nn.Module, experts: Experts) -> None:
        super().__init__()
        self.mixture = mixture
        self.gate = gate
        self.experts = experts
        self.path: Path | None = None
        # Where ranks share the tokens out: what takes this rank's part of them, and what makes all outputs of every part's.
        self.around: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None
        self.hooks: dict[str, list[Hook]] = {point: [] for point in POINTS}
        # Of the last call.
        self.load: Load | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sums of the experts' outputs; what was dropped is 0."""
        data = self.call("before_layer", {"x": x})
        tokens = data["x"].reshape(-1, x.shape[-1])
        if self.around is not None:
            tokens = self.around[0](tokens)
        routing: Routing = self.gate(tokens)
        sent = routing.sent if routing.sent is not None else tokens
        y = alone(self, sent, routing) if self.path is None else self.path(self, sent, routing)
        y = routing.returned(y)
        if self.around is not None:
            y = self.around[1](y)
        result: Tensor = self.call("after_layer", {"y": y.reshape(x.shape)})["y"]
        return result.to(x.dtype)

    def rows(self, routing: Routing, number: int) -> Rows:
        """Lay the routes of `number` tokens out as rows, and note the load."""
        capacity = None if self.mixture.capacity_factor is None else self.mixture.capacity(number)
        kind = EinsumRows if self.mixture.order == "einsum" else Rows
        rows = order(routing, self.mixture.experts, capacity, kind)
        kept = rows.counts if capacity is None else (rows.route.view(-1, capacity) >= 0).sum(1)
        filled = kept.tolist()
        self.load = Load(tuple(filled), routing.token.numel() - sum(filled))
        return rows

    def call(self, point: str, data: dict[str, Any]) -> dict[str, Any]:
        """Let the hooks of `point` see `data`, and change it."""
        for hook in self.hooks[point]:
            hook(self, data)
        return data


def alone(layer: MixtureLayer, tokens: Tensor, routing: Routing) -> Tensor:
    """Return what the layer computes where this rank has all experts: autograd's own path, and the definition."""
    rows = layer.rows(routing, tokens.shape[0])
    sent = layer.call("before_dispatch", {"rows": rows.gather(tokens)})["rows"]
    sent = layer.call("after_dispatch", {"rows": sent})["rows"]
    outputs = layer.experts(sent, rows.counts.tolist())
    outputs = layer.call("before_combine", {"rows": outputs})["rows"]
    outputs = layer.call("after_combine", {"rows": outputs})["rows"]
    return rows.scatter(outputs * rows.weights(routing.weight).unsqueeze(1).to(outputs.dtype), tokens.shape[0])


def mixture_layers(model: nn.Module) -> dict[str, MixtureLayer]:
    """Return the mixtures of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MixtureLayer)}


def mixture_of(
    name: str, knobs: MixtureKnobs, tokens: int, hidden: int, inner: int, *, gated: bool = False
) -> MixtureLayer:
    """Return the layer that the models here have, as their knobs say it."""
    layer = knobs.mixture(name, tokens, hidden, inner, gated=gated)
    kind = GatedFeedForward if gated else FeedForward
    return MixtureLayer(layer, gate_of(layer, tokens, knobs.gate, knobs.balance), kind(knobs.experts, hidden, inner))
