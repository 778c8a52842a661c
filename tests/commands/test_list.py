"""`orch list`: what it finds, in the project and among the shipped, and the keys that programs rely on."""

from __future__ import annotations

from pathlib import Path


def test_techniques_have_the_keys_others_rely_on(orch) -> None:
    listed = orch("list", "techniques", "--json").document
    assert [entry["name"] for entry in listed] == sorted(entry["name"] for entry in listed)
    (merged,) = [entry for entry in listed if entry["name"] == "mg-wfbp"]
    assert {"name", "family", "slot", "lossless", "paper", "knobs"} <= set(merged)
    assert (merged["family"], merged["slot"], merged["lossless"]) == ("schedules", "schedule", True)
    planner = merged["knobs"][0]
    assert (planner["name"], planner["default"], planner["choices"]) == ("planner", "exact", ["exact", "greedy"])


def test_a_project_adds_to_what_is_shipped(orch, project: Path) -> None:
    recipes = {entry["name"]: entry for entry in orch("list", "recipes", "--json").document}
    assert {"mine", "quickstart"} <= set(recipes)
    assert recipes["mine"]["about"] == "What is this one for?"
    assert recipes["mine"]["file"] == str(project / "recipes" / "mine.yaml")
    clusters = {entry["name"]: entry for entry in orch("list", "clusters", "--json").document}
    assert clusters["pair"]["workers"] == 4


def test_a_broken_cluster_is_listed_with_the_reason(orch, project: Path) -> None:
    (project / "clusters" / "torn.yaml").write_text("nodes: none\n", encoding="utf-8")
    (torn,) = [entry for entry in orch("list", "clusters", "--json").document if entry["name"] == "torn"]
    assert torn["workers"] is None
    assert torn["about"].startswith("cannot be read: ")


def test_without_a_kind_everything(orch) -> None:
    done = orch("list")
    assert [line for line in done.out.splitlines() if line.endswith(":")] == [
        "techniques:",
        "models:",
        "clusters:",
        "recipes:",
        "data:",
    ]


def test_an_unknown_kind_names_those_there_are(orch) -> None:
    done = orch("list", "technique")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "'techniques'" in done.err
