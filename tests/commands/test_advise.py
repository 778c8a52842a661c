"""`orch advise`: an answer for people, a document for programs."""

from __future__ import annotations

from pathlib import Path


def test_advice_for_a_recipe_of_ones_own(orch, project: Path) -> None:
    done = orch("advise", "mine")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("mine on pair, 4 workers: ") and lines[0].endswith(" stacks simulated, nothing was run")
    assert lines[-1] == "next: orch advise mine --measure 3 (runs the first three beside plain)"
    assert not (project / "runs").exists()


def test_the_document_and_what_is_wrong(orch, project: Path) -> None:
    found = orch("advise", "mine", "cluster.nodes=4", "--json").document
    assert (found["mode"], found["workers"], found["confirmed"]) == ("simulated", 8, None)
    assert {"stack", "gain", "verdict", "lossless", "extra_memory_bytes", "risks"} <= set(found["stacks"][0])
    assert orch("advise", "mine", "--measure", "0").code == 2
    assert orch("advise", "mine", "--measure", "1").err.startswith("nothing says what to run on")
