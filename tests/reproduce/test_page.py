"""The page: whole, self-contained, and safe whatever a paper's file holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

from orch.reproduce.document import reproduce
from orch.reproduce.page import COLOURS, page
from orch.reproduce.paper import Paper
from orch.reproduce.verdict import Outcome

Changed = Callable[..., Paper]
VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Checks that tags close in order, and gathers the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_it_is_whole_and_needs_no_network(changed: Changed) -> None:
    found = page([reproduce(changed())], "0")
    parser = Balanced()
    parser.feed(found)
    assert parser.open == []
    assert not re.search(r"<script|<link|https?://|\bsrc=", found)
    for word in ("c1", "faster", "reproduced", "simulated", "tiny/small/wfbp", "compute.step", "2 of 2 claims"):
        assert word in parser.text


def test_what_a_file_says_is_text(changed: Changed) -> None:
    found = page([reproduce(changed(("says: faster", "says: '<script>alert(1)</script>'")))], "0")
    assert "<script>" not in found
    assert "&lt;script&gt;" in found


def test_several_papers_begin_with_their_counts(changed: Changed) -> None:
    one = reproduce(changed())
    assert "2 of 2</td>" in page([one, one], "0")


def test_every_outcome_has_a_colour() -> None:
    assert {str(outcome) for outcome in Outcome} <= set(COLOURS)
