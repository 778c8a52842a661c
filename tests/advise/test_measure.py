"""Advice confirmed by a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch.advise import measure
from orch.advise.advise import advise
from orch.advise.measure import Confirmed, confirm
from orch.errors import OrchError
from orch.experiment.invoke import Invocation
from orch.experiment.show import Quiet
from orch.recipe import load

GAIN = {"median": 1.2, "lo": 1.1, "hi": 1.3, "distinguishable": True}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Invocation]:
    """What would have been run; every stack comes out 1.2 times as fast."""
    asked: list[Invocation] = []

    def invoke(what: Invocation, show: object) -> dict[str, Any]:
        asked.append(what)
        stacks = load(what.recipe, what.overrides).stacks  # what is run is a recipe that holds
        return {"run_dir": "there", "stacks": {name: {"speedup": GAIN} for name in stacks}}

    monkeypatch.setattr(measure, "invoke", invoke)
    return asked


def test_the_first_stacks_are_run_beside_the_baseline(ran, tmp_path: Path) -> None:
    overrides = ["techniques.acp-sgd.rank=8", "when.acp-sgd.train.optimizer.sgd.lr=0.05"]
    advice = advise(load("resnet50-v100", overrides))
    found = confirm(advice, "resnet50-v100", overrides, 2, "processes", tmp_path, Quiet())
    (asked,) = ran
    assert (asked.on, asked.runs) == ("processes", tmp_path)
    recipe = load(asked.recipe, asked.overrides)
    assert list(recipe.stacks) == ["ddp", *(one.name for one in advice.ranked[:2])]
    moved = load("resnet50-v100", ['stacks={"ddp": ["torch-ddp"], "d": {"dear": {"bucket": "6553600.0B"}}}'])
    assert moved.stacks["d"].members[0].config.model_dump()["bucket"] == 6553600.0
    for one in advice.ranked[:2]:
        assert recipe.stacks[one.name].members == one.candidate.stack.members
    assert found is not None and found.run_dir == "there"
    assert [one.verdict for one in found.stacks] == ["confirmed", "confirmed"]
    assert found.stacks[0].predicted == advice.ranked[0].gain.median


def test_nothing_is_run_where_nothing_can_gain(ran) -> None:
    advice = advise(load("quickstart", ["cluster.device.memory=1MiB"]))
    with pytest.raises(OrchError, match="no stack is predicted to be faster") as refused:
        confirm(advice, "quickstart", [], 1, None, None, Quiet())
    assert refused.value.code == "E651" and ran == []


@pytest.mark.parametrize(
    ("measured", "distinguishable", "verdict"),
    [(1.2, True, "confirmed"), (0.8, True, "refuted: it is slower"), (1.2, False, "not distinguishable")],
)
def test_a_run_says_yes_no_or_nothing(measured: float, distinguishable: bool, verdict: str) -> None:
    assert Confirmed("dear", 1.1, measured, 0.9, 1.3, distinguishable).verdict == verdict
