"""What a run measured comes back from JSON to the last bit, and a file makes nothing but values of orch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orch.cluster import Link, Sharing
from orch.cluster.span import Span
from orch.experiment.predict import described, predict
from orch.experiment.values import from_data, to_data
from orch.recipe import load


def test_inputs_of_a_prediction_come_back_and_plan_the_same() -> None:
    recipe = load("quickstart")
    inputs = described(recipe)
    tables = {name: {1024.0: 1e-4 / 3, 1e6: 0.01} for name in ("all-reduce", "reduce-scatter", "all-gather")}
    cluster = inputs.cluster.with_links(intra=Link.from_tables(tables, inputs.cluster.world, "a test"))
    inputs = replace(inputs, cluster=replace(cluster, sharing=Sharing(1.1, 1.2, "a test")))
    again = from_data(json.loads(json.dumps(to_data(inputs))))
    assert again == inputs
    assert isinstance(again.cluster.world, Span)
    plans, others = (
        {name: stack.plan for name, stack in predict(recipe, one).stacks.items()} for one in (again, inputs)
    )
    assert plans == others


def test_numbers_keep_their_bits_and_kinds() -> None:
    for value in (1 / 3, 10**18, True, None, "x", (), (1, (2.5,)), {3: "a", "b": (None,)}, Span(4, 2, 2)):
        again = from_data(json.loads(json.dumps(to_data(value))))
        assert again == value
        assert type(again) is type(value)


@pytest.mark.parametrize(
    "kind", ["os:system", "orch.errors:nearest", "orch.nothing:At", "subprocess:Popen", "orch.cluster:"]
)
def test_only_values_of_orch_are_made(kind: str) -> None:
    with pytest.raises(ValueError, match="is no value of orch"):
        from_data({"is": kind, "args": "x"})


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(TypeError, match="set cannot be kept"):
        to_data({"a": {1}})
    with pytest.raises(ValueError, match="unexpected keyword"):
        from_data({"is": "orch.cluster.cluster:Sharing", "nonsense": 1})
