"""`orch show`: a page for whatever has a name, and the nearest name for what has none."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_a_technique_page_says_what_the_code_says(orch) -> None:
    out = orch("show", "mg-wfbp").out
    assert out.startswith("MG-WFBP: send neighbouring gradients")
    for part in ("Helps:", "Does not:", "schedule", "exact", "arXiv:1811.11141", "planner", "exact | greedy"):
        assert part in out
    facts = orch("show", "mg-wfbp", "--json").document
    assert (facts["kind"], facts["slot"]) == ("technique", "schedule")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("train.precision", ["fp32 | bf16 | fp16", "default  fp32"]),
        ("measure", ["measure.blocks", "whole number from 1", "8"]),
        ("cluster.links.inter.alpha", ["start-up", "time, like 50us from 0", "s in Python and JSON"]),
        ("train.optimizer.sgd.momentum", ["number from 0 below 1"]),
        ("when.mine.train", ["for this stack only"]),
        ("batch_per_worker", ["train.batch_per_worker", "whole number from 1"]),
        ("recipe", ["train.steps", "cluster.nodes", "stacks"]),
        ("pair", ["a cluster of 4 workers", "nodes: 2"]),
        ("mine", ["a recipe", "orch plan mine"]),
        ("e001", ["orch has no command", "to mend it"]),
    ],
)
def test_everything_with_a_name_has_a_page(orch, name: str, parts: list[str]) -> None:
    done = orch("show", name)
    assert done.code == 0, done.err
    assert [part for part in parts if part not in done.out] == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("MG_WFBP", "nothing is named 'MG_WFBP'; did you mean mg-wfbp? [E015]"),
        ("train.stepz", "nothing is named 'train.stepz'; did you mean train.steps? [E015]"),
        ("nodees", "nothing is named 'nodees'; did you mean nodes? [E015]"),
    ],
)
def test_the_nearest_name_is_offered(orch, name: str, line: str) -> None:
    done = orch("show", name)
    assert (done.code, done.out, done.err) == (2, "", line + "\n")


def test_a_field_in_several_places_is_asked_back(orch) -> None:
    assert "train.optimizer.sgd.lr, train.optimizer.adam.lr" in orch("show", "lr").err


def test_an_unknown_code_lists_the_known(orch) -> None:
    done = orch("show", "E999")
    assert done.code == 2
    assert "codes: E" in done.err


def test_a_schema_of_something_else_is_refused(orch) -> None:
    assert orch("show", "mg-wfbp", "--json-schema").code == 2


def test_a_file_of_the_project_is_found_by_its_name(orch, project: Path) -> None:
    assert str(project / "clusters" / "pair.yaml") in orch("show", "pair").out
