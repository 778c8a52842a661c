"""Models from the user's own code: built, traced on data, and every fault of theirs one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orch.errors import OrchError, Position
from orch.models.catalogue import PythonModel, choose
from orch.models.datasets import choose_data
from orch.models.zoo.own import refuse_misfit

CODE = """
import torch
from torch import nn

def net(width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, 10))

def few():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))

def wrong():
    return "a string"

def failing():
    raise RuntimeError("two\\nlines")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_models.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_models", raising=False)
    return "own_models"


def own(module: str, function: str, **arguments: object) -> PythonModel:
    chosen = choose(python=f"{module}:{function}", arguments=arguments, listed=[module])
    assert isinstance(chosen, PythonModel)
    return chosen


def test_a_model_is_built_from_its_seed(module: str) -> None:
    chosen = own(module, "net", width=6)
    first, again, other = (chosen.build(seed).state_dict()["1.weight"] for seed in (1, 1, 2))
    assert first.shape == (6, 64)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_its_step_is_seen_by_tracing(module: str) -> None:
    profile = own(module, "net").profile(choose_data("digits8"))
    assert [m.name for m in profile.modules] == ["1", "2", "3"]
    assert profile.module("1").flops == 2 * 64 * 4
    assert set(profile.ready_order) == {tensor.name for tensor in profile.tensors}
    assert "own_models:net on digits8" in profile.source


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("nothing", {}, r"own_models:nothing cannot be made: AttributeError: module 'own_models' has no attribute"),
        ("net", {"depth": 3}, r"cannot be made: TypeError: .*unexpected keyword argument 'depth'"),
        ("failing", {}, r"cannot be made: RuntimeError: two lines \[E424\]"),
        ("wrong", {}, r"returned str, not a torch.nn.Module"),
    ],
)
def test_faults_in_own_code_are_one_line(module: str, function: str, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(OrchError, match=message):
        own(module, function, **arguments).build(seed=0)


def test_a_model_that_does_not_fit_its_data_says_so(module: str) -> None:
    with pytest.raises(OrchError, match=r"model own_models:net fails on data mnist5k: RuntimeError: mat1 and mat2"):
        own(module, "net").profile(choose_data("mnist5k"))
    with pytest.raises(OrchError, match=r"is code: its step is seen by tracing it on data.*add data:"):
        own(module, "net").profile()
    with pytest.raises(OrchError, match="data synthetic takes its shapes from the model"):
        own(module, "net").profile(choose_data("synthetic"))


@pytest.mark.parametrize(
    ("width", "data", "batch", "message"),
    [
        (
            4,
            "mnist5k",
            4,
            r"^r.yaml:3:8: model own_models:net fails on data mnist5k: RuntimeError: mat1 and mat2 shapes",
        ),
        (
            4,
            "digits8",
            1,
            r"^r.yaml:3:8: model own_models:net fails on data digits8: ValueError: Expected more than 1 value",
        ),
    ],
)
def test_a_step_that_cannot_be_taken_is_the_recipes_fault(module, width, data, batch, message) -> None:
    chosen = replace(own(module, "net", width=width), where=Position("r.yaml", 3, 8))
    with pytest.raises(OrchError, match=message):
        refuse_misfit(chosen, chosen.build(0), choose_data(data).load(), batch)
    assert refuse_misfit(chosen, chosen.build(0), choose_data("digits8").load(), 4) is None


def test_too_few_answers_are_the_recipes_fault_whatever_the_first_samples_are(module: str) -> None:
    chosen = own(module, "few")
    with pytest.raises(OrchError, match=r"own_models:few answers one of 9 classes, data digits8 has 10"):
        refuse_misfit(chosen, chosen.build(0), choose_data("digits8").load(), 2)


def test_a_batch_that_batch_normalisation_cannot_take_is_refused_for_any_model() -> None:
    chosen = choose(use="resnet-digits", arguments={"image_size": 8})
    narrow = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))
    loaded = choose_data("digits8").load()
    assert refuse_misfit(chosen, narrow, loaded, 2) is None
    with pytest.raises(
        OrchError, match=r"^model resnet-digits fails on data digits8: ValueError: Expected more than 1"
    ):
        refuse_misfit(chosen, narrow, loaded, 1)
