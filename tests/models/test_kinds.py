"""Pairs of model and data that cannot work are refused with the knob that mends them; the others pass."""

from __future__ import annotations

import pytest

from orch.errors import OrchError, Position
from orch.models.kinds import Classes, Flat, Image, Interface, MaskedToken, NextToken, Tokens, refuse_mismatch

DIGITS = Interface(Image(1, 8, 8), Classes(10))
TEXT = Interface(Tokens(103), NextToken())


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (DIGITS, DIGITS),
        (Interface(Image(1, 8, 8), Classes(1000)), DIGITS),
        (Interface(Flat(64), Classes(10)), DIGITS),
        (Interface(Tokens(103, 64), NextToken()), TEXT),
        (Interface(Tokens(30528, 64), MaskedToken(30528)), TEXT),
    ],
)
def test_pairs_that_work(model: Interface, data: Interface) -> None:
    assert refuse_mismatch("m", model, "d", data) is None


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            Interface(Tokens(128, 64), NextToken()),
            DIGITS,
            "model m reads sequences of 64 tokens below 128, data d gives images 1x8x8; choose text for a language model",
        ),
        (
            DIGITS,
            TEXT,
            "model m reads images 1x8x8, data d gives sequences of tokens below 103; choose a language model",
        ),
        (
            Interface(Image(3, 224, 224), Classes(1000)),
            DIGITS,
            "model m reads images 3x224x224, data d gives images 1x8x8; set model.channels=1 model.image_size=8",
        ),
        (
            Interface(Flat(784), Classes(10)),
            DIGITS,
            "model m reads rows of 784 numbers, data d gives images 1x8x8; set model.inputs=64",
        ),
        (
            Interface(Image(1, 8, 8), Classes(5)),
            DIGITS,
            "model m answers one of 5 classes, data d has 10 classes; set model.num_classes=10",
        ),
        (
            Interface(Tokens(64, 32), NextToken()),
            TEXT,
            "model m reads sequences of 32 tokens below 64, data d gives sequences of tokens below 103; "
            "set model.vocab=103 or more",
        ),
        (
            Interface(Image(1, 8, 8), Classes(5)),
            Interface(Image(1, 8, 9), Classes(5)),
            "model m reads images 1x8x8, data d gives images 1x8x9; choose data with images",
        ),
    ],
)
def test_pairs_that_cannot_work(model: Interface, data: Interface, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        refuse_mismatch("m", model, "d", data, Position("r.yaml", 3, 1))
    assert str(caught.value) == f"r.yaml:3:1: {message} [E430]"
