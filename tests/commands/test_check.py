"""`orch check`: what it says about a right recipe, a wrong one, a value's origin; and that it is quick."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml


def test_a_right_recipe_is_summed_up(orch) -> None:
    done = orch("check", "mine")
    assert (done.code, done.err) == (0, "")
    head, _, *rows = done.out.splitlines()
    assert head.endswith("recipes/mine.yaml: right; mine, 4 workers, 2 stacks")
    assert [row.split() for row in rows[2:]] == [
        ["plain", "wfbp", "exact", "baseline"],
        ["merged", "mg-wfbp", "exact"],
    ]


def test_the_same_for_programs(orch) -> None:
    assert orch("check", "mine", "--json").document == {
        "recipe": "mine",
        "file": str(Path("recipes/mine.yaml").absolute()),
        "workers": 4,
        "baseline": "plain",
        "stacks": {
            "plain": {"techniques": ["wfbp"], "lossless": True},
            "merged": {"techniques": ["mg-wfbp"], "lossless": True},
        },
    }


def test_a_wrong_one_is_one_line_with_its_place(orch) -> None:
    done = orch("check", "mine", "train.stepz=3")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "override 1" in done.err
    assert "did you mean" in done.err
    assert "steps" in done.err


def test_resolved_is_a_recipe_again(orch, project: Path) -> None:
    done = orch("check", "mine", "train.steps=7", "--resolved")
    written = yaml.safe_load(done.out)
    assert written["train"]["steps"] == 7
    assert written["train"]["optimizer"]["sgd"]["momentum"] == 0.0
    (project / "again.yaml").write_text(done.out, encoding="utf-8")
    again = orch("check", "again.yaml", "--resolved", "--json")
    assert again.document == orch("check", "mine", "train.steps=7", "--resolved", "--json").document


def test_why_names_the_place_of_a_value(orch) -> None:
    assert orch("check", "mine", "--why", "train.optimizer.sgd.lr").out.endswith("recipes/mine.yaml:6:25)\n")
    assert orch("check", "mine", "--why", "measure.blocks").out == "measure.blocks = 8  (default)\n"
    over = orch("check", "mine", "cluster.nodes=8", "--why", "cluster.nodes", "--json").document
    assert (over["value"], over["where"]) == (8, "override 1: cluster.nodes=8")
    assert [item["value"] for item in over["replaced"]] == [2]


def test_a_pair_that_nobody_has_tested_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from orch import stack
    from orch.commands.check import _remark
    from orch.recipe import load

    recipe = load("quickstart")
    assert _remark(recipe, "mg-wfbp+acp-sgd") == ""
    monkeypatch.setattr(stack, "_ships", lambda technique: technique.name != "acp-sgd")
    assert _remark(recipe, "mg-wfbp+acp-sgd") == "never tested together: acp-sgd with mg-wfbp"
    assert _remark(recipe, "ddp") == "baseline"
