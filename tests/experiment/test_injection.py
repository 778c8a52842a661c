"""Faults of a recipe happen, once in each training, in reality and in the forecast; one that did not is an error."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from orch.errors import LostWorkerError, OrchError, RunError
from orch.experiment import invoke
from orch.experiment.injection import Injection, fired_from, predicted
from orch.experiment.invoke import Invocation
from orch.experiment.predict import predict
from orch.plan.fault import Fault
from orch.track import indexer
from tests.experiment.conftest import PAIR, TINY, Remembers

ONE = (
    "stacks={plain: [wfbp], dear: [dear]}",
    "when={}",
    "seeds=[0]",
    "target=null",
    "measure={blocks: 2, steps: 3, warmup: 1}",
)


def test_killed_ranks_and_nodes_cost_no_result(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(indexer, "available", lambda: False)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    prints = []
    for faults in ("[]", "[{kill_rank: {rank: 1, step: 2}}, {kill_node: {node: 0, step: 5, stack: dear}}]"):
        show = Remembers()
        asked = Invocation(str(path), (PAIR, *ONE, f"faults={faults}"), on="processes", runs=tmp_path / "runs")
        found = invoke.invoke(asked, show)
        run = max((tmp_path / "runs" / "tiny").iterdir())
        assert found is not None
        prints.append([(run / "stacks" / name / "parameters.json").read_text() for name in ("plain", "dear")])
        assert {stack["speedup"]["n"] for stack in found["stacks"].values()} == {2}
    assert prints[0] == prints[1]
    assert sum("making the gang anew" in stage for stage in show.stages) == 3
    assert sum("died in step 2" in stage for stage in show.stages) >= 2
    assert len(json.loads((run / "faults.json").read_text())["fired"]) == 3


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("[{kill_rank: {rank: 2, step: 1}}]", "there is no rank 2; there are 2"),
        ("[{kill_node: {node: 1, step: 1}}]", "there is no node 1; there are 1"),
        ("[{kill_rank: {rank: 0, step: 7}}]", "the training of stack plain ends before step 7; it has steps 0 to 6"),
        ("[{kill_rank: {rank: 0, step: 1, stack: plane}}]", "'plane' is no stack of this recipe; did you mean plain?"),
        ("[{kill_rank: {rank: 0, step: 1}, kill_node: {node: 0, step: 1}}]", "must hold exactly one of"),
        ("[{kill_rank: {rank: 0, step: 1}}, {kill_rank: {rank: 0, step: 1}}]", "rank 0 is killed at step 1, twice"),
        ("[{cut_link: {node: 0, step: 1, lasts: 3}}]", "lasts"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused_at_its_line(tiny, faults: str, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        tiny(*ONE, f"faults={faults}")
    assert message in str(caught.value)
    assert str(caught.value).startswith("override ")


def test_exactly_the_fault_that_workers_cannot_have_is_refused(tiny) -> None:
    injection = Injection(
        tiny(*ONE, "faults=[{kill_rank: {rank: 0, step: 1}}, {cut_link: {node: 0, step: 2, lasts: 3s}}]")
    )
    gang: Any = SimpleNamespace(kind="processes", shaping=None)
    with pytest.raises(
        OrchError, match=r"the link of node 0 is cut for 3 s at step 2: the links of processes workers cannot"
    ):
        injection.refuse(gang)
    gang.shaping = object()
    injection.refuse(gang)
    with pytest.raises(OrchError, match=r"rank 0 is killed at step 1: it would kill this process"):
        injection.refuse(SimpleNamespace(kind="inline", shaping=object()))  # type: ignore[arg-type]


def test_a_cut_ends_by_itself_and_a_fault_that_never_came_is_an_error(tiny) -> None:
    injection = Injection(
        tiny(*ONE, "faults=[{cut_link: {node: 0, step: 2, lasts: 10ms}}, {kill_rank: {rank: 1, step: 3}}]")
    )
    restored = threading.Event()
    done: list[int] = []
    shaping = SimpleNamespace(cut=done.append, restore=lambda node: restored.set())
    cut, kill = injection.due("plain", 0, 0, 7)
    injection.cut(SimpleNamespace(shaping=shaping), cut, "plain", 0)  # type: ignore[arg-type]
    injection.wait_until_restored()
    assert restored.is_set()
    assert done == [0]
    assert injection.due("plain", 0, 0, 7) == [kill]
    assert injection.deaths([cut, kill]) == {3: (1,)}
    other = LostWorkerError("rank 0 died")
    other.ranks = (0,)
    injection.lost(other, [kill], "plain", 0)  # another death than the one that was ordered
    assert injection.due("plain", 0, 0, 7) == [kill]
    injection.fired.add((0, "dear", 0))
    with pytest.raises(
        RunError, match=r"rank 1 is killed at step 3 never happened in the training of stack plain \[E666\]"
    ):
        injection.refuse_unfired()
    assert fired_from({"fired": [list(key) for key in injection.fired]}) == injection.fired


def test_a_forecast_counts_steps_that_are_trained_twice(tiny) -> None:
    settings = ("faults=[{kill_rank: {rank: 1, step: 5}}]", "train.checkpoint={every: 3}")
    recipe = tiny(*ONE, *settings)
    forecast = predict(recipe)
    costs = {cost["stack"]: cost for cost in predicted(recipe, forecast)}
    assert costs["plain"]["steps_again"] == 1  # a checkpoint after step 4
    assert costs["plain"]["extra_s"] == forecast.stacks["plain"].step_time_s.median
    without = predicted(tiny(*ONE, settings[0]), forecast)
    assert without[0]["steps_again"] == 5
    assert Fault("kill-rank", 1, 5) in recipe.faults
