"""`orch test`: proves a good technique, names what a broken one does wrong, and refuses knobs that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import registry
from orch.commands import test
from orch.errors import OrchError


def test_a_shipped_technique_keeps_its_contract(orch) -> None:
    done = orch("test", "mg-wfbp", "planner=greedy", "--worlds", "1,2", "--processes", "0")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("mg-wfbp keeps its contract: ")
    assert ["plan", "1,", "2", "holds"] in [line.split() for line in done.out.splitlines()]


def test_the_same_for_programs(orch) -> None:
    document = orch("test", "wfbp", "--worlds", "2", "--json").document
    assert [f["world_size"] for f in document["findings"] if f["check"] == "processes"] == [2]
    assert (document["technique"], document["worlds"]) == ("wfbp", [2])
    assert {finding["message"] for finding in document["findings"]} == {""}


def test_a_broken_pass_is_found(orch, project: Path) -> None:
    orch("new", "technique", "torn-idea")
    path = project / "torn_idea.py"
    text = path.read_text(encoding="utf-8")
    kept = "plan.each_step(lambda step: type(step)(step.stream('compute')))"
    broken = text.replace("return fuse_each_wave(", f"return {kept} if plan.world_size > 1 else fuse_each_wave(")
    assert broken != text
    path.write_text(broken, encoding="utf-8")
    done = orch("test", "torn-idea", "--worlds", "2", "--processes", "0")
    assert done.code == 2
    assert "BROKEN" in done.out
    assert done.err.startswith("torn-idea breaks its contract in ")
    assert done.err.endswith("[E017]\n")


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        (["densty=0.1"], "override 1: densty=0.1: top-k has no knob 'densty'; did you mean density? [E018]"),
        (["min_numel=3", "density=2"], "override 2: density=2: top-k.density: 2 is not a fraction; "),
    ],
)
def test_a_bad_knob_is_one_line(orch, knobs: list[str], line: str) -> None:
    done = orch("test", "top-k", *knobs)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(line)


def test_knobs_are_read_as_in_a_recipe() -> None:
    technique = registry.technique("top-k")
    assert test.parse_knobs(technique, ["density=1e-1", "min_numel=8"]) == {"density": 0.1, "min_numel": 8}


@pytest.mark.parametrize("text", ["", "0", "2,x", "-1", "100"])
def test_worlds_are_numbers(text: str) -> None:
    assert test.parse_worlds("3, 1,3") == [1, 3]
    with pytest.raises(OrchError, match="world sizes are numbers from 1 to 64"):
        test.parse_worlds(text)
