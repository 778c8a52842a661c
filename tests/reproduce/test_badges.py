"""README's table of papers is what running them all gives; and the shipped papers keep the promises made of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orch.reproduce.badges import BEGIN, END, badges, replaced
from orch.reproduce.document import PaperResult, document, reproduce_all
from orch.reproduce.paper import load
from orch.reproduce.verdict import Outcome

ROOT = Path(__file__).resolve().parents[2]
PAPERS = sorted((ROOT / "recipes" / "papers").glob("*.yaml"))
# Beside other work on two processors; on an idle machine all papers take a third of it.
MOST_S = 240.0


@pytest.fixture(scope="module")
def everything() -> tuple[list[PaperResult], float]:
    begin = time.perf_counter()
    return reproduce_all([load(path) for path in PAPERS]), time.perf_counter() - begin


@pytest.mark.slow
def test_readme_says_what_the_verdicts_say(everything: tuple[list[PaperResult], float]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert replaced(text, badges(everything[0])) == text, "put what `orch reproduce --all --badges` prints there"


@pytest.mark.slow
def test_the_survey_is_predicted_from_a_few_of_its_rows(everything: tuple[list[PaperResult], float]) -> None:
    (survey,) = (result for result in everything[0] if result.paper.name == "comm-survey")
    found = survey.predictions["throughput"]
    assert len(found.errors) > 90
    assert found.median_error <= 0.15
    assert found.best >= 0.8 * found.cells
    assert found.best_of_all >= 0.8 * found.cells


@pytest.mark.slow
def test_nothing_differs_without_a_reason(everything: tuple[list[PaperResult], float]) -> None:
    claims = [claim for result in everything[0] for claim in result.claims]
    assert all(claim.why for claim in claims)
    assert not [claim for claim in claims if claim.outcome is Outcome.INVALID]
    checks = [check for result in everything[0] for check in result.checks if check.judged]
    assert {str(check.outcome) for check in checks} <= {"reproduced", "consistent"}
    defects = [found for result in everything[0] for found in result.defects]
    assert defects
    assert all(found.worse == pytest.approx(found.defect.worse, rel=0.01) for found in defects)


@pytest.mark.slow
def test_all_papers_take_a_minute(everything: tuple[list[PaperResult], float]) -> None:
    assert everything[1] < MOST_S


def test_a_paper_without_a_verdict_has_no_row(changed) -> None:  # type: ignore[no-untyped-def]
    from orch.reproduce.document import reproduce

    table = badges([reproduce(changed()), reproduce(changed(claims="[{id: a, says: y, pending: nobody looked}]"))])
    assert "| tiny | 2 | 2 | 2 reproduced |" in table
    assert "1 more paper with 1 claims" in table


def test_marks_hold_the_table() -> None:
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"
    with pytest.raises(ValueError, match="has no lines"):
        replaced("nothing", "new")


def test_every_shipped_file_is_right() -> None:
    names = [load(path).name for path in PAPERS]
    assert names == [path.stem for path in PAPERS]
    assert document([])["papers"] == []
