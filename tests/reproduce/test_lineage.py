"""Lineage: which ids meet, what is unsure, and what is left of it as evidence."""

from __future__ import annotations

import pytest

from orch.reproduce.lineage import Evidence, Origin, caps, evidence_of, meet


@pytest.mark.parametrize(
    ("left", "right", "met"),
    [
        ("a/b/c", "a/b/c", True),
        ("a/b/c", "a/b/d", False),
        ("a/*/c", "a/b/c", True),
        ("a/b/c", "a/*/c", True),  # whichever side has the star
        ("a/b", "a/b/c", True),  # a row is all its numbers
        ("a/b/c", "a/b", True),
        ("a/b", "a/bc/d", False),
        ("a/*/p32/one", "a/x/p16/one", False),
    ],
)
def test_ids_meet(left: str, right: str, met: bool) -> None:
    assert bool(meet([left], [right])) is met


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("measured", ""),
        ("recollection: data sheet", "recollection"),
        ("Recollected by a friend", "recollection"),
        ("a guess", "guess"),
        ("guessed from scripts", "guess"),
        ("derived from two rows", ""),
    ],
)
def test_unsure_sources_are_found_in_their_words(source: str, word: str) -> None:
    assert Origin("x", "1", "f:1", source).unsure == word


def test_evidence() -> None:
    plain, fitted = Origin("a", "1", "f:1", "measured"), Origin("b", "1", "f:2", "a fit", ("t/row/one",))
    assert evidence_of([plain], ["t/row/one"])[0] is Evidence.INDEPENDENT
    assert evidence_of([plain, fitted], ["t/row/two"])[0] is Evidence.FITTED_ELSEWHERE
    found, why = evidence_of([plain, fitted], ["t/row/two", "t/row/one"])
    assert (found, "b was fitted on t/row/one" in why) == (Evidence.FITTED, True)


def test_the_first_unsure_input_is_the_reason() -> None:
    inputs = [Origin("a", "1", "f:1", "measured"), Origin("b", "1", "f:2", "a guess")]
    assert caps(inputs) == "b rests on a guess"
    assert caps(inputs[:1]) == ""
