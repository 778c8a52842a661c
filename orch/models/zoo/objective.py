"""What training minimises and evaluation reports, from what the model answers.

Shapes: B batch, S sequence, K classes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from orch.models.batches import Batch
from orch.models.kinds import Answers, MaskedToken
from orch.models.splits import Array, Split

# Devlin et al. 2019, section 3.1: 15 % of the tokens are predicted; of these 80 % are hidden and 10 % are replaced.
MASKED, HIDDEN, REPLACED = 0.15, 0.8, 0.1
IGNORED = -100


@dataclass(frozen=True)
class Objective:
    """Cross-entropy of what the model answers; for BERT the sum over masked tokens and the next sentence."""

    answers: Answers

    def loss(self, model: Callable[..., Any], batch: Batch, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the mean loss of one batch, ready for backward. Equal batches give equal losses: masks are drawn from
        the batch's place in the global order. `model` may be wrapped, as DistributedDataParallel does.
        """
        if isinstance(self.answers, MaskedToken):
            return _pretraining(model, self.answers.vocab, batch, device)[0]
        logits = logits_of(model(_tensor(batch.inputs, device)))
        return F.cross_entropy(logits.flatten(0, -2), _tensor(batch.targets, device).flatten())

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        *,
        batch: int = 256,
        limit: int | None = None,
        device: torch.device | str = "cpu",
    ) -> dict[str, float]:
        """Return `loss` and `accuracy` over the first `limit` samples (all of them): means over samples or tokens.

        The model is in evaluation mode meanwhile and left as it was found.
        """
        was_training = model.training
        model.eval()
        total = correct = count = 0.0
        try:
            with torch.no_grad():
                for part in _in_order(split, batch, limit):
                    loss, right, answers = self._judged(model, part, device)
                    total, correct, count = total + loss * answers, correct + right, count + answers
        finally:
            model.train(was_training)
        return {"loss": total / max(count, 1.0), "accuracy": correct / max(count, 1.0)}

    def _judged(self, model: nn.Module, batch: Batch, device: torch.device | str) -> tuple[float, float, float]:
        """Return the mean loss, the right answers and all answers of one batch."""
        if isinstance(self.answers, MaskedToken):
            loss, logits, targets = _pretraining(model, self.answers.vocab, batch, device)
        else:
            logits = logits_of(model(_tensor(batch.inputs, device))).flatten(0, -2)
            targets = _tensor(batch.targets, device).flatten()
            loss = F.cross_entropy(logits, targets)
        asked = targets != IGNORED
        right = (logits.argmax(-1) == targets) & asked
        return loss.item(), float(right.sum().item()), float(asked.sum().item())


def logits_of(output: Any) -> torch.Tensor:
    """Return the logits of a model's output: a tensor, or what transformers calls `logits`, or the first of a tuple."""
    if isinstance(output, torch.Tensor):
        return output
    logits: torch.Tensor = output[0] if isinstance(output, tuple) else output.logits
    return logits


def _tensor(array: Array, device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _in_order(split: Split, batch: int, limit: int | None) -> Iterator[Batch]:
    number = len(split) if limit is None else min(limit, len(split))
    for first in range(0, number, batch):
        inputs, targets = split.take(np.arange(first, min(first + batch, number)))
        yield Batch(inputs, targets, first, 0.0)


def _pretraining(
    model: Callable[..., Any], vocab: int, batch: Batch, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return BERT's loss, the token logits [B*S, V] and the token targets [B*S] (IGNORED where nothing is asked)."""
    tokens, targets, apart = masked(batch.inputs, vocab, batch.first)
    segments = np.broadcast_to(np.arange(tokens.shape[1]) >= tokens.shape[1] // 2, tokens.shape).astype(np.int64)
    output = model(input_ids=_tensor(tokens, device), token_type_ids=_tensor(segments, device))
    logits = output.prediction_logits.flatten(0, -2)
    asked = _tensor(targets, device).flatten()
    loss = F.cross_entropy(logits, asked, ignore_index=IGNORED)
    loss = loss + F.cross_entropy(output.seq_relationship_logits, _tensor(apart, device))
    return loss, logits, asked


def masked(tokens: Array, vocab: int, key: int) -> tuple[Array, Array, Array]:
    """Return BERT's question about `tokens` [B, S]: the tokens shown, the targets (IGNORED where none is asked), and
    whether each second half is another sample's [B]. Drawn from `key`; the last token number stands for [MASK].

    At least one token a sample is asked for, so that the mean over the batch exists.
    """
    generator = np.random.default_rng([key, vocab])
    B, S = tokens.shape
    apart: Array = (generator.random(B) < 0.5) & (B > 1)
    shown = tokens.copy()
    shown[apart, S // 2 :] = np.roll(tokens, 1, axis=0)[apart, S // 2 :]
    chance = generator.random((B, S))
    asked = chance < np.maximum(MASKED, chance.min(axis=1, keepdims=True) * (1 + 1e-9))
    targets = np.where(asked, shown, IGNORED)
    fate = generator.random((B, S))
    shown[asked & (fate < HIDDEN)] = vocab - 1
    replaced = asked & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED)
    shown[replaced] = generator.integers(0, vocab, int(replaced.sum()))
    return shown, targets, apart.astype(np.int64)
