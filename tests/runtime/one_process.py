"""What ranks together are to do, done by one process: the loss of every rank's samples, and one update by their mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from orch.runtime.optimizers import optimizer_factory


def train(model: nn.Module, loss_of: Callable[[int, int], Tensor], ranks: int, steps: int, lr: float) -> None:
    """Train `model` in place; `loss_of(rank, step)` is the loss of one rank's samples."""
    optimizer = optimizer_factory({"sgd": {"lr": lr}})(list(model.parameters()))
    for step in range(steps):
        model.zero_grad(set_to_none=True)
        for rank in range(ranks):
            loss_of(rank, step).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= ranks
        optimizer.step()


def train_seen(
    model: nn.Module,
    inputs: Callable[[int, int], tuple[Tensor, Tensor]],
    loss_of: Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]],
    ranks: int,
    steps: int,
    lr: float,
) -> dict[str, Any]:
    """Train `model` in place, and return `outputs` and gradients of `inputs`, each by step and rank."""
    samples: list[list[Tensor]] = [[] for _ in range(steps)]
    outputs: list[list[Tensor]] = [[] for _ in range(steps)]

    def loss(rank: int, step: int) -> Tensor:
        x, y = inputs(rank, step)
        samples[step].append(x.requires_grad_())
        value, output = loss_of(model, x, y)
        outputs[step].append(output.detach())
        return value

    train(model, loss, ranks, steps, lr)
    return {"outputs": outputs, "inputs": [[x.grad for x in found] for found in samples]}
