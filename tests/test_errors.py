"""Errors: one line each, whole across processes, with a page for every code."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.errors import OrchError, Position, RunError, clipped, did_you_mean, error_pages, nearest, quoted

ROOT = Path(__file__).resolve().parent.parent
# Codes below this are faults of recipes and command lines, which people meet; each has a page that was written for it.
EXPLAINED = re.compile(r"E[12]\d\d")


@pytest.mark.parametrize(
    ("where", "hint", "text"),
    [
        (Position("r.yaml", 3, 5), "did you mean x?", "r.yaml:3:5: no; did you mean x? [E210]"),
        (Position("r.yaml"), "", "r.yaml: no [E210]"),
        (Position("override 2: a=1"), "", "override 2: a=1: no [E210]"),
        (None, "", "no [E210]"),
    ],
)
def test_an_error_is_one_line(where: Position | None, hint: str, text: str) -> None:
    assert str(OrchError("no", code="E210", where=where, hint=hint)) == text


@given(st.text(), st.text())
def test_no_text_breaks_the_line(message: str, hint: str) -> None:
    assert str(OrchError(message, hint=hint, where=Position(message))).isprintable()


@pytest.mark.parametrize("kind", [OrchError, RunError])
def test_an_error_crosses_processes_whole(kind: type[OrchError]) -> None:
    error = kind("no", code="E701", where=Position("r.yaml", 1, 2), hint="try")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.exit_code) == (kind, str(error), kind.exit_code)


def test_an_error_keeps_the_first_place_it_was_given() -> None:
    error = OrchError("no").at(Position("a")).at(Position("b"))
    assert error.where == Position("a")


@pytest.mark.parametrize(
    ("name", "found"),
    [("topK", "top-k"), ("TOP_K", "top-k"), ("mgwfbp", "mg-wfbp"), ("ddp", "torch-ddp"), ("zzz", None), ("", None)],
)
def test_the_nearest_name(name: str, found: str | None) -> None:
    assert nearest(name, ["top-k", "mg-wfbp", "torch-ddp"]) == found


def test_a_suggestion_is_a_question_or_nothing() -> None:
    assert (did_you_mean("top_k", ["top-k"]), did_you_mean("x", ["top-k"])) == ("did you mean top-k?", "")


def test_long_and_odd_text_is_cut_and_escaped() -> None:
    assert clipped("a\n\x00\u2028") == r"a\n\x00\u2028"
    assert clipped("x" * 99, 10) == "xxxxxxx..."
    assert quoted("李\t") == r"'李\t'"


def raised() -> set[str]:
    """Return the codes that the sources name."""
    texts = [path.read_text() for folder in ("orch", "techniques") for path in (ROOT / folder).rglob("*.py")]
    return {code for text in texts for code in re.findall(r"\"(E\d{3})\"", text)}


def test_every_code_that_people_meet_has_a_page_and_no_page_is_left_over() -> None:
    codes = raised()
    assert {code for code in codes if EXPLAINED.fullmatch(code)} - set(error_pages()) == set()
    assert set(error_pages()) - codes == set()


def test_pages_are_complete() -> None:
    pages = error_pages()
    assert len(pages) > 40
    for page in pages.values():
        assert page.title[0].islower() or page.title[0] == "`", page.title
        assert page.means.endswith("."), page.code
        assert page.fix.endswith((".", "]")), page.code
        assert page.example, page.code
