"""A training draws its own random numbers, whatever others draw in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orch.runtime.training import Training


def made(seed: int) -> Training:
    engine: Any = SimpleNamespace(device=torch.device("cpu"), state_dict=dict, load_state_dict=lambda state: None)
    batches: Any = SimpleNamespace(position=32)
    torch.manual_seed(seed)
    return Training("s", 16, engine, batches, lambda model, batch: torch.zeros(()), None)  # type: ignore[arg-type]


def drawn(training: Training) -> list[float]:
    with training.drawing():
        return torch.rand(2).tolist()


@pytest.mark.parametrize("others", [0, 5])
def test_what_is_drawn_hangs_on_nobody_else(others: int) -> None:
    alone = made(1)
    expected = drawn(alone) + drawn(alone)
    one, other = made(1), made(2)
    first = drawn(one)
    torch.rand(others)
    drawn(other)
    assert first + drawn(one) == expected


def test_others_go_on_drawing_as_if_nothing_had_been() -> None:
    training = made(1)
    torch.manual_seed(7)
    expected = torch.rand(2).tolist()
    torch.manual_seed(7)
    first = torch.rand(1).item()
    drawn(training)
    assert [first, torch.rand(1).item()] == expected


def test_place_in_the_data_and_random_numbers_are_kept() -> None:
    training = made(1)
    drawn(training)
    state = training.state_dict()
    following = drawn(training)
    other = made(9)
    other.load_state_dict(state)
    assert other.batches.position == 32
    assert drawn(other) == following
