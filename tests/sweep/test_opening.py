"""Taking a study up again: with what was changed since."""

from __future__ import annotations

import io
import sys

import pytest

from orch import registry
from orch.errors import OrchError
from orch.sweep import code
from orch.sweep.opening import changes


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch):
    """Pretend that mg-wfbp was edited since."""

    def edit() -> None:
        real = code.sources

        def sources(recipe):
            texts = real(recipe)
            text = texts["mg-wfbp"]["mg_wfbp.py"]
            return {**texts, "mg-wfbp": {"mg_wfbp.py": text.replace("_ROWS = 64", "_ROWS = 65")}}

        monkeypatch.setattr(code, "sources", sources)

    return edit


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["sweep.over.stack=[buckets, small]"], 'space.stack.choices: ["buckets", "merged", "small"] -> '),
        (["sweep.maximize=throughput", "sweep.minimize=[]"], 'sought.objectives.step_time: "minimize" -> (not there)'),
        (["sweep.constraints={memory: {at_most: 1GiB}}"], "sought.constraints: [] -> "),
        (["cluster.devices_per_node=4"], "recipe.cluster.devices_per_node: 2 -> 4"),
        (["train.batch_per_worker=16"], "recipe.train.batch_per_worker: 8 -> 16"),
        (["stacks.ddp=[wfbp]"], "recipe.stacks.ddp"),
    ],
)
def test_another_question_is_another_study(simulate, changes: list[str], line: str) -> None:
    simulate()
    said: list[str] = []
    with pytest.raises(
        OrchError, match=r"begun with another recipe: .*; undo the change, or .*sweep.study=NAME \[E634\]"
    ):
        simulate(*changes, said=said)
    assert any(line in text for text in said), said
    assert len(simulate(*changes, "sweep.study=other")["trials"]) == 12


def test_a_techniques_own_default_is_part_of_its_code(simulate, monkeypatch) -> None:
    """Another default comes with another source, of which the user is asked; the recipe has not changed."""
    first = simulate()
    fields = registry.technique("bucketed").config.model_fields
    monkeypatch.setattr(fields["first_bucket"], "default", "3MiB")
    assert simulate()["trials"] == first["trials"]
    with pytest.raises(OrchError, match=r"stacks.buckets.bucketed.first_bucket: \(not there\) -> .*\[E634\]"):
        simulate("stacks.buckets.bucketed.first_bucket=2MiB")


def test_what_decides_no_trial_may_change(simulate) -> None:
    first = simulate()
    again = simulate("measure.blocks=5", "sweep.pruner=MedianPruner", "sweep.deadline=1h", trials=14)
    assert again["trials"][:12] == first["trials"]
    assert len(again["trials"]) == 14


def test_changed_code_without_a_terminal_is_refused(simulate, edited) -> None:
    simulate()
    edited()
    with pytest.raises(
        OrchError, match=r"begun with other code or machines: code.mg-wfbp: .*--changed keep .*\[E635\]"
    ):
        simulate(trials=14)


def test_changed_code_kept(simulate, edited) -> None:
    first = simulate()
    edited()
    assert simulate(trials=14, changed="keep")["trials"][:12] == first["trials"]
    assert len(simulate(trials=15)["trials"]) == 15  # asked once


def test_changed_code_redone_runs_the_same_settings_again(simulate, edited) -> None:
    first = simulate()
    edited()
    redone = simulate(changed="redo")
    assert redone["study"] == f"{first['study']} (2)"
    assert [trial["params"] for trial in redone["trials"]] == [trial["params"] for trial in first["trials"]]
    assert {trial["state"] for trial in redone["trials"]} == {"complete"}
    assert simulate()["study"] == redone["study"]


def test_a_diff_shows_the_source_line_by_line_and_runs_nothing(simulate, edited) -> None:
    simulate()
    edited()
    said: list[str] = []
    with pytest.raises(OrchError, match="nothing was run"):
        simulate(trials=14, changed="diff", said=said)
    text = "\n".join(said)
    assert "-_ROWS = 64" in text
    assert "+_ROWS = 65" in text
    assert len(simulate(trials=14, changed="keep")["trials"]) == 14


def test_on_a_terminal_the_user_is_asked(simulate, edited, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    simulate()
    edited()
    monkeypatch.setattr(sys, "stdin", Terminal("what?\ndiff\nkeep\n"))
    monkeypatch.setattr(sys, "stderr", Terminal())
    said: list[str] = []
    assert len(simulate(trials=13, said=said)["trials"]) == 13
    text = "\n".join(said)
    assert text.count("[keep/redo/diff]") == 3
    assert "+_ROWS = 65" in text
    edited()


def test_changes_are_named_by_path() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1, "c": 3}, "e": 0}
    assert list(changes(old, new)) == ["a.c: 2 -> 3", "d: [1] -> (not there)", "e: (not there) -> 0"]
