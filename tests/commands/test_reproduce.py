"""`orch reproduce`: the standing of papers, one paper, the lineage of a claim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.conftest import Result
from tests.reproduce.conftest import PAPER, PROFILE, RECIPE, TABLE

Orch = Callable[..., Result]


@pytest.fixture
def paper(project: Path) -> str:
    import json

    folder = project / "recipes" / "papers"
    folder.mkdir()
    for name, text in {
        "tiny.yaml": PAPER, "recipe.yaml": RECIPE, "times.csv": TABLE, "three.json": json.dumps(PROFILE)
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "recipe.yaml").rename(folder / "recipe.yml.txt")  # only papers stand here
    (folder / "tiny").mkdir()
    (folder / "recipe.yml.txt").rename(folder / "tiny" / "recipe.yaml")
    (folder / "three.json").rename(folder / "tiny" / "three.json")
    (folder / "tiny.yaml").write_text(PAPER.replace("recipe: recipe.yaml", "recipe: tiny/recipe.yaml"))
    return "tiny"


def test_without_an_argument_the_papers_and_their_standing(orch: Orch, paper: str) -> None:
    result = orch("reproduce")
    assert result.code == 0
    assert "tiny" in result.out and "mg-wfbp" in result.out
    rows = {row["paper"]: row for row in orch("reproduce", "--json").document["papers"]}  # type: ignore[index]
    assert (rows["tiny"]["claims"], rows["tiny"]["runnable"]) == (2, 2)


def test_a_paper_is_a_table(orch: Orch, paper: str) -> None:
    result = orch("reproduce", paper)
    assert result.code == 0, result.err
    assert "ours (simulated)" in result.out
    assert "1.222 [1.222, 1.222]" in result.out
    assert "2 of 2 claims could be judged" in result.out
    assert "outcome: 2 reproduced" in result.out


def test_a_paper_is_a_document(orch: Orch, paper: str) -> None:
    found = orch("reproduce", paper, "--json").document
    (only,) = found["papers"]  # type: ignore[index]
    assert (only["paper"], [claim["outcome"] for claim in only["claims"]]) == ("tiny", ["reproduced", "reproduced"])


def test_a_path_is_a_paper_too(orch: Orch, paper: str) -> None:
    assert orch("reproduce", "recipes/papers/tiny.yaml").code == 0


def test_a_lineage_leads_to_its_sources(orch: Orch, paper: str) -> None:
    result = orch("reproduce", paper, "--explain", "c1")
    assert result.code == 0, result.err
    assert "published: 1.22222  [table] Table 1" in result.out
    assert "recipes/papers/times.csv:3: wfbp = 11" in result.out
    assert "compute.step = 4s  (recipes/papers/tiny.yaml:11:" in result.out
    assert "cluster.links.inter.measured.0 = all-reduce of 2 ranks" in result.out
    assert "evidence: tiny/fits/*" in result.out
    assert orch("reproduce", paper, "--explain", "c1", "--json").document["claim"] == "c1"  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["tinny"], "there is no paper named 'tinny'; did you mean tiny? [E350]"),
        (["tiny", "--explain", "c3"], "tiny has no claim 'c3'; claims: c1, c2 [E352]"),
        (["--explain", "c1"], "--explain needs the paper of the claim; orch reproduce PAPER --explain CLAIM [E001]"),
        (
            ["--badges"],
            "the list of papers is no result to write or keep; give a paper or --all, without --explain [E001]",
        ),
        (
            ["tiny", "--explain", "c1", "--keep"],
            "--explain is no result to write or keep; give a paper or --all, without --explain [E001]",
        ),
        (["tiny", "--all"], "a paper and --all say different things; give one of them [E001]"),
        (["tiny", "--plan-costs", "papers"], "--plan-costs papers: is no choice; did you mean paper? [E001]"),
    ],
)
def test_what_cannot_be_done_is_one_line(orch: Orch, paper: str, arguments: list[str], line: str) -> None:
    result = orch("reproduce", *arguments)
    assert (result.code, result.err.strip()) == (2, line)


def test_a_page_and_a_run_are_written_when_asked_for(orch: Orch, paper: str, project: Path, monkeypatch) -> None:
    from orch.track import indexer

    monkeypatch.setattr(indexer, "available", lambda: False)
    result = orch("reproduce", paper, "--html", "page.html", "--runs", "kept", "--json")
    assert result.code == 0, result.err
    assert (project / "page.html").read_text().startswith("<!doctype html>")
    found = result.document
    assert found["html"] == "page.html"  # type: ignore[index,call-overload]
    assert (Path(found["run_dirs"]["tiny"]) / "report.html").exists()  # type: ignore[index,call-overload]
    assert not (project / "runs").exists()


def test_badges_are_the_table_alone(orch: Orch, paper: str) -> None:
    assert orch("reproduce", paper, "--badges").out == (
        "| paper | claims | judged (simulated) | outcome |\n|---|---|---|---|\n| tiny | 2 | 2 | 2 reproduced |\n"
    )
