"""Losses and evaluation: what is averaged over, BERT's masks, equal batches give equal losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orch.models.batches import Batch, Batches
from orch.models.catalogue import choose
from orch.models.datasets import choose_data
from orch.models.kinds import Classes, NextToken
from orch.models.splits import Arrays, Windows
from orch.models.zoo.objective import IGNORED, Objective, logits_of, masked

BERT = {"seq_len": 16, "num_layers": 1, "hidden": 16, "num_heads": 2, "vocab": 128}


class Fixed(nn.Module):
    """Answers class 1 for every sample, with the odds of e to 1."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tensor([0.0, 1.0]).expand(*inputs.shape[:1], 2)


def test_evaluation_is_a_mean_over_samples_whatever_the_batch() -> None:
    split = Arrays(np.zeros((7, 3), dtype=np.float32), np.array([1, 1, 1, 0, 0, 1, 0]))
    right, wrong = np.log(1 + np.e) - 1, np.log(1 + np.e)
    for batch in (1, 2, 7, 100):
        found = Objective(Classes(2)).evaluate(Fixed(), split, batch=batch)
        assert found["accuracy"] == pytest.approx(4 / 7)
        assert found["loss"] == pytest.approx((4 * right + 3 * wrong) / 7)
    assert Objective(Classes(2)).evaluate(Fixed(), split, limit=3)["accuracy"] == 1


def test_evaluation_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    split = Arrays(np.ones((4, 3), dtype=np.float32), np.zeros(4, dtype=np.int64))
    for training in (True, False):
        model.train(training)
        Objective(Classes(2)).evaluate(model, split)
        assert model.training is training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_text_is_judged_by_the_token() -> None:
    class Successor(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return 50.0 * nn.functional.one_hot((tokens + 1) % 10, 10)

    split = Windows(np.arange(41) % 10, 4, vocab=10)
    found = Objective(NextToken()).evaluate(Successor(), split, batch=3)
    assert found == {"loss": pytest.approx(0, abs=1e-6), "accuracy": 1.0}


@pytest.mark.parametrize(
    ("name", "changes", "data", "floor"),
    [
        ("resnet-digits", {"width": 8, "depth": 2}, "digits8", 0.6),
        ("mlp", {}, "digits8", 0.85),
        ("tiny-tensors", {}, "digits8", 0.7),
    ],
)
def test_the_small_models_learn_digits(name: str, changes: dict[str, int], data: str, floor: float) -> None:
    chosen = choose(use=name, arguments=changes)
    assert chosen.interface is not None
    loaded = choose_data(data).load(chosen.interface)
    model, objective = chosen.build(seed=0), Objective(chosen.interface.answers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = Batches(loaded.train, rank=0, world_size=1, batch_per_worker=64, seed=0)
    for _ in range(60):
        optimizer.zero_grad()
        objective.loss(model, next(batches)).backward()
        optimizer.step()
    assert objective.evaluate(model, loaded.test)["accuracy"] > floor


def test_bert_and_gpt2_train_on_text() -> None:
    for name in ("bert-base", "gpt2", "char-transformer"):
        chosen = choose(use=name, arguments=BERT)
        assert chosen.interface is not None
        loaded = choose_data("pydoc_text").load(chosen.interface)
        model, objective = chosen.build(seed=0), Objective(chosen.interface.answers)
        batches = Batches(loaded.train, rank=0, world_size=1, batch_per_worker=8, seed=0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(25):
            loss = objective.loss(model, next(batches))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-5:]) < losses[0] - 0.8
        found = objective.evaluate(model, loaded.test, limit=32)
        assert 0 < found["accuracy"] < 1


def test_equal_batches_give_equal_losses_and_other_places_other_masks() -> None:
    chosen = choose(use="bert-base", arguments=BERT)
    assert chosen.interface is not None
    loaded = choose_data("pydoc_text").load(chosen.interface)
    model, objective = chosen.build(seed=0), Objective(chosen.interface.answers)
    inputs, targets = loaded.train.take(np.arange(4))
    losses = [objective.loss(model, Batch(inputs, targets, first, 0.0)).item() for first in (0, 0, 8)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_masks_follow_the_paper() -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, (400, 64))
    shown, targets, apart = masked(tokens, 30000, key=1)
    asked = targets != IGNORED
    assert asked.mean() == pytest.approx(0.15, abs=0.01)
    assert asked.any(axis=1).all()
    assert (shown[asked] == 29999).mean() == pytest.approx(0.8, abs=0.02)
    assert (shown[asked] == targets[asked]).mean() == pytest.approx(0.1, abs=0.02)
    assert apart.mean() == pytest.approx(0.5, abs=0.07)
    together = apart == 0
    assert (targets[asked & together[:, None]] == tokens[asked & together[:, None]]).all()
    assert (shown[~asked & together[:, None]] == tokens[~asked & together[:, None]]).all()
    swapped = np.flatnonzero(apart)[0]
    unasked = ~asked[swapped, 32:]
    assert (shown[swapped, 32:][unasked] == tokens[swapped - 1, 32:][unasked]).all()


def test_one_short_sample_still_asks_for_a_token() -> None:
    for key in range(20):
        _, targets, apart = masked(np.zeros((1, 4), dtype=np.int64), 10, key)
        assert (targets != IGNORED).sum() >= 1
        assert apart.tolist() == [0]


def test_logits_are_found_in_what_models_return() -> None:
    logits = torch.zeros(2, 3)

    class Output:
        def __init__(self) -> None:
            self.logits = logits

    assert all(logits_of(output) is logits for output in (logits, (logits, None), Output()))
