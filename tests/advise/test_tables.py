"""Advice on a terminal, and as data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orch.advise import tables
from orch.advise.advise import Gain, advise
from orch.advise.measure import Confirmation, Confirmed
from orch.recipe import load


@pytest.fixture(scope="module")
def resnet():
    return advise(load("resnet50-v100"))


def test_the_answer_comes_first_and_says_what_it_costs(resnet) -> None:
    lines = tables.headline(resnet)
    assert lines[1] == f"if communication were free: {resnet.ceiling_speedup:.2f} times as fast as ddp"
    assert lines[3].startswith(f"try {resnet.best.name}: 1.17 [")
    assert lines[3].endswith("lossy; no exact stack gains more than the error of its prediction")
    exact = replace(next(one for one in resnet.ranked if one.lossless), gain=Gain(1.1, 1.05, 1.2))
    both = tables.headline(replace(resnet, ranked=(*resnet.ranked, exact)))[3]
    assert both == f"try {exact.name}: 1.10 [1.05, 1.20] times as fast as ddp; lossy, {resnet.best.name}: 1.17"
    kept = tables.headline(replace(resnet, ranked=()))[3]
    assert kept == "keep ddp: no other stack gains more than the error of its prediction"


def test_the_error_stands_beside_the_gain(resnet) -> None:
    headers, cells = tables.rows(resnet)
    assert headers[2:4] == ["gain", "error"]
    assert cells[0][:3] == ["ddp", "278 ms", "baseline"]
    row = next(row for row in cells if row[0] == "mg-wfbp")
    assert row[-2:] == ["exact", "inside the error"]
    low, high = str(row[3]).split()[:2]
    assert int(low) < 0 <= int(high)


def test_what_errors_rest_on_is_said(resnet) -> None:
    assert tables.basis(resnet).endswith("so gains under 2 % are never sold")
    measured = replace(resnet, past_error=0.12, past_runs=3)
    assert tables.basis(measured).endswith("3 gains measured before were 12 % off (median)")


def test_what_cannot_be_said_elsewhere_is_a_dash(resnet) -> None:
    first = resnet.elsewhere[0]
    odd = replace(resnet, elsewhere=(replace(first, gains={"8 workers": None, "64 workers": 1.25}),))
    headers, (row,) = tables.elsewhere(odd)
    assert headers == ["gain elsewhere", "here", "8 workers", "64 workers"]
    assert row[2:] == ["-", "1.25"]


def test_the_document_is_json_and_ordered_by_gain(resnet) -> None:
    found = Confirmation("there", (Confirmed("dear", 1.1, 1.2, 1.1, 1.3, True),))
    written = tables.document(resnet, found)
    assert json.loads(json.dumps(written)) == written
    gains = [one["gain"]["median"] for one in written["stacks"]]
    assert gains == sorted(gains, reverse=True)
    assert written["best"] == resnet.best.name
    assert written["confirmed"]["stacks"][0]["verdict"] == "confirmed"
    assert tables.confirmed(found)[1] == [["dear", "1.10", "1.20 [1.10, 1.30]", "confirmed"]]
