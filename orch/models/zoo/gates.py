"""Gates of mixtures: which tokens go to which expert with what weight. Each is a module of tokens [T, M] -> Routing.

Scores are fp32 whatever the tokens are. T tokens of this rank in sequences of S, M their width, E experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orch.models.draft import PROJECTED
from orch.models.profile import Mixture


@dataclass(frozen=True)
class Routing:
    """Where tokens go: of each route [N] its token, expert and weight (differentiable), and its choice, 0 a token's first.

    A gate that mixes tokens before experts see them routes what it mixed: `sent` [B P, M] takes the tokens' place, and
    `shares` [B, S, P] says what each token gets of what comes back.
    """

    token: Tensor
    expert: Tensor
    weight: Tensor
    choice: Tensor
    sent: Tensor | None = None
    shares: Tensor | None = None

    def returned(self, outputs: Tensor) -> Tensor:
        """Return the tokens' outputs from those of what was routed."""
        if self.shares is None:
            return outputs
        batch, _, slots = self.shares.shape
        return self.shares.to(outputs.dtype) @ outputs.view(batch, slots, -1)


class _Adding(torch.autograd.Function):
    """The identity of `weight`, whose backward also starts that of an auxiliary loss: so a layer adds to any loss."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss
        return weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones_like(ctx.like)


class Gate(nn.Module):
    """A token goes to the `top_k` experts of its highest scores, which are products without bias.

    `softmax`: weights are the probabilities, for several experts scaled to sum to 1 (GShard; Switch with one).
    `sigmoid`: weights are sigmoids of the scores (BASE, StableMoE). `balance` weighs the auxiliary loss
    E sum_e mean(p_e) mean(first choice is e), 1 when loads are even; where a gate sees one of some `parts` of a batch's
    tokens, it is the mean over these.
    """

    parts = 1

    def __init__(self, hidden: int, experts: int, top_k: int, kind: str = "softmax", balance: float = 0.0) -> None:
        super().__init__()
        self.weight = _drawn(experts, hidden)
        self.top_k = top_k
        self.kind = kind
        self.balance = balance

    def scores(self, tokens: Tensor) -> Tensor:
        """Return how well each expert suits each token [T, E]; tokens are fp32."""
        return tokens @ self.weight.float().T

    def forward(self, tokens: Tensor) -> Routing:
        """Return the routes of `tokens` [T, M], token after token, best choice first."""
        routing, share, first = self.choose(tokens)
        number = tokens.shape[0]
        if not (self.balance and torch.is_grad_enabled() and number):
            return routing
        even = (share * self.even(first, number)).sum()
        return replace(routing, weight=_Adding.apply(routing.weight, even))  # type: ignore[no-untyped-call]

    def choose(self, tokens: Tensor) -> tuple[Routing, Tensor, Tensor]:
        """Return the routes, and by expert [E] the sum of all tokens' shares, differentiable, and how many choose it first: of
        these, added up over parts of the tokens, the auxiliary loss is made.
        """
        with torch.autocast(tokens.device.type, enabled=False):
            scores = self.scores(tokens.float())
            shares = scores.softmax(-1)
            best, expert = (scores.sigmoid() if self.kind == "sigmoid" else shares).topk(self.top_k, dim=-1)
            if self.kind == "softmax" and self.top_k > 1:
                best = best / best.sum(-1, keepdim=True)
        number, experts, device = tokens.shape[0], scores.shape[1], tokens.device
        token = torch.arange(number, device=device).repeat_interleave(self.top_k)
        choice = torch.arange(self.top_k, device=device).repeat(number)
        first = torch.bincount(expert[:, 0], minlength=experts).to(scores.dtype)
        return Routing(token, expert.reshape(-1), best.reshape(-1), choice), shares.sum(0), first

    def even(self, first: Tensor, number: int) -> Tensor:
        """Return the gradient of the auxiliary loss by the sums of shares of `number` tokens, of which `first` choose each."""
        return first * (self.balance / self.parts * first.shape[0] / number**2)


class CosineGate(Gate):
    """Scores are cosines between a token's projection and each expert's embedding, over a learned temperature (X-MoE,
    Chi et al. 2022, as Tutel has it): exp(min(tau, ln 100)), which begins at 2. Else a softmax gate.
    """

    MOST = math.log(100.0)

    def __init__(self, hidden: int, experts: int, top_k: int, balance: float = 0.0) -> None:
        super().__init__(PROJECTED, experts, top_k, balance=balance)
        self.temperature = nn.Parameter(torch.full((1,), math.log(2.0)))
        self.project = _drawn(PROJECTED, hidden)
        self.project_bias = nn.Parameter(torch.zeros(PROJECTED))

    def scores(self, tokens: Tensor) -> Tensor:
        """Return the scaled cosines [T, E]."""
        projected = F.linear(tokens, self.project.float(), self.project_bias.float())
        cosines = F.normalize(projected, dim=-1) @ F.normalize(self.weight.float(), dim=-1).T
        return cosines * self.temperature.float().clamp(max=self.MOST).exp()


class ExpertChoiceGate(nn.Module):
    """Every expert takes the tokens whose probability for it is highest, as many as it has slots (Zhou et al. 2022):
    none is dropped for want of a slot, a token gets none to all experts, and loads are even by themselves.

    What a token gets depends on all tokens of the batch, later ones too.
    """

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.weight = _drawn(mixture.experts, mixture.hidden)
        self._mixture = mixture

    def forward(self, tokens: Tensor) -> Routing:
        """Return the routes of `tokens` [T, M], expert after expert, each in the tokens' order."""
        number, experts = tokens.shape[0], self._mixture.experts
        taken = min(number, self._mixture.capacity(number))
        with torch.autocast(tokens.device.type, enabled=False):
            shares = (tokens.float() @ self.weight.float().T).softmax(-1)
        token = shares.T.topk(taken, dim=-1).indices.sort(dim=-1).values.reshape(-1)
        expert = torch.arange(experts, device=tokens.device).repeat_interleave(taken)
        return Routing(token, expert, shares[token, expert], torch.zeros_like(token))


class SoftGate(nn.Module):
    """Every slot of an expert gets a mean of all tokens of a sequence, every token a mean of all slots' outputs (SoftMoE,
    Puigcerver et al. 2023): no choice is made, so nothing is dropped and everything is differentiable.

    Logits [S, P] are cosines between tokens and slots' parameters; columns of their softmax mix tokens into slots, rows
    mix outputs into tokens. What a token gets depends on all tokens of its sequence, later ones too. `mixture` is that
    of the slots: `Mixture.of_slots`.
    """

    def __init__(self, mixture: Mixture, sequence: int) -> None:
        super().__init__()
        self.weight = _drawn(mixture.tokens, mixture.hidden)
        self._experts = mixture.experts
        self._sequence = sequence

    def forward(self, tokens: Tensor) -> Routing:
        """Return the routes of the slots that `tokens` [B S, M] are mixed into, slot after slot."""
        sequences = tokens.view(-1, self._sequence, tokens.shape[1])
        slots, device = self.weight.shape[0], tokens.device
        with torch.autocast(device.type, enabled=False):
            logits = F.normalize(sequences.float(), dim=-1) @ F.normalize(self.weight.float(), dim=-1).T
            into, shares = logits.softmax(1), logits.softmax(2)
        sent = into.transpose(1, 2).to(tokens.dtype) @ sequences
        number = sequences.shape[0] * slots
        expert = torch.arange(self._experts, device=device).repeat_interleave(slots // self._experts)
        return Routing(
            torch.arange(number, device=device),
            expert.repeat(sequences.shape[0]),
            torch.ones(number, device=device),
            torch.zeros(number, dtype=torch.int64, device=device),
            sent.reshape(number, -1),
            shares,
        )


def gate_of(mixture: Mixture, sequence: int, kind: str, balance: float) -> nn.Module:
    """Return the gate of a layer, `kind` as the knob of models says it; `sequence` tokens make a sample."""
    if kind == "expert-choice":
        return ExpertChoiceGate(mixture)
    if kind == "soft":
        return SoftGate(mixture, sequence)
    if kind == "cosine":
        return CosineGate(mixture.hidden, mixture.experts, mixture.top_k, balance)
    return Gate(mixture.hidden, mixture.experts, mixture.top_k, kind, balance)


def _drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).normal_(std=0.02))
