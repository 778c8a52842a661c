"""Reading a paper's file: what is wrong in it is one line, at its place, with what to do."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.reproduce import paper as papers
from orch.reproduce.paper import Paper

Changed = Callable[..., Paper]
CLAIM = "  - {id: c2, says: a fifth faster, metric: speedup, of: one, over: wfbp, in: small, published: gain}"


def test_a_good_file_is_read(changed: Changed) -> None:
    paper = changed()
    assert (paper.name, [claim.id for claim in paper.spec.claims]) == ("tiny", ["c1", "c2"])
    assert [row.id for row in paper.tables["times"].rows] == ["tiny/small", "tiny/fast"]
    assert str(paper.where(paper.spec.claims[1])).endswith("tiny.yaml:15:5")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric: speedup, of: one, over: wfbp, in: each", "metric: speed, of: one, over: wfbp, in: each", r"14:\d+: claims\.0\.metric must be one of .*; it is 'speed'; did you mean speedup\? \[E214\]"),
        ("published: times", "publishd: times", r"14:\d+: unknown key 'publishd' in claims\.0; did you mean published\? \[E210\]"),
        ("in: small", "inn: small", r"15:\d+: unknown key 'inn' in claims\.1; did you mean in\? \[E210\]"),
        ("in: each", "in: eech", r"14:\d+: in names 'eech', which is no experiment; did you mean each\? \[E352\]"),
        ("published: times", "published: tims", r"14:\d+: published names 'tims', which is no evidence; did you mean times\? \[E352\]"),
        ("id: c2", "id: c1", r"15:10: the id 'c1' stands here twice; rename one \[E353\]"),
        ("table: times, set", "table: tims, set", r"11:\d+: table names 'tims', which is no table; did you mean times\? \[E352\]"),
        ("table: times.csv", "table: time.csv", r"6:\d+: there is no table '.*'; paths count from .* \[E351\]"),
        ("source: abstract", "source: abstarct", r"7:\d+: evidence\.gain\.source must be one of .* did you mean abstract\? \[E214\]"),
        ("value: 1.22, ", "", r"7:\d+: evidence\.gain must hold exactly one of value, range, table \[E215\]"),
        ("value: 1.22", "value: -1", r"7:\d+: evidence\.gain\.value must be above 0; it is -1 \[E213\]"),
        ("values: step_time, ", "", r"6:\d+: evidence\.times needs values beside table: step_time or throughput \[E215\]"),
        ("paper: tiny", "paper: ti ny", r"2:8: paper must be letters, digits, dots, hyphens and underscores; it is 'ti ny' \[E215\]"),
        ("orch: 1", "orch: 2", r"1:7: orch must be 1"),
        ("{compute.step:", "{compute.stpe:", r"11:\d+: compute\.stpe=4s: unknown key 'stpe' in compute; did you mean step\? \[E210\]"),
        ('"${step}s"', '"${stp}s"', r"11:\d+: .*times\.csv has no column 'stp'; did you mean step\? \[E352\]"),
        ("recipe: recipe.yaml}", "recipe: recip.yaml}", r"tiny\.yaml:\d+:\d+: recipe 'recip\.yaml': there is no such file; did you mean recipe\.yaml\? \[E100\]"),
        ("over: wfbp, in: each", "over: one, in: each", r"14:\d+: claim 'c1' compares stack 'one' with itself; over: ANOTHER STACK \[E353\]"),
        ("of: one, over: wfbp, in: each, published: times", "of: [one, wfbp, one], over: wfbp, in: each, published: times", r"14:\d+: claim 'c1' needs one stack"),
        ("metric: speedup, of: one, over: wfbp, in: each, published: times", "metric: ordering, of: [one, wfbp, one], in: each, source: text", r"14:\d+: claim 'c1' names stack 'one' twice in `of`; keep one \[E353\]"),
        ("metric: speedup, of: one, over: wfbp, in: each, published: times", "metric: ordering, of: [one, wfbp], over: one, in: each, source: text", r"14:\d+: claim 'c1' (compares|orders the stacks of `of`)"),
        ("metric: speedup, of: one, over: wfbp, in: each, published: times", "metric: holds, of: one, over: [wfbp, one], in: each, source: text", r"14:\d+: claim 'c1' compares stack 'one' with itself"),
        ("published: gain", "published: [1.3, 1.1], aggregate: range, source: text", r"15:\d+: claim 'c2' has a range that begins at its end; published: \[LOWEST, HIGHEST\] \[E353\]"),
        ("value: 1.22", "range: [1.3, 1.1]", r"7:\d+: evidence\.gain has a range that begins at its end: range: \[LOWEST, HIGHEST\] \[E215\]"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line(changed: Changed, old: str, new: str, message: str) -> None:
    from orch.reproduce.document import reproduce

    with pytest.raises(OrchError) as caught:
        reproduce(changed((old, new)))
    line = str(caught.value)
    assert re.search(message, line), line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("{id: x, says: y}", "claim 'x' has no metric"),
        ("{id: x, says: y, missing: a GPU, pending: time}", "keep one"),
        ("{id: x, says: y, metric: quality, of: one, in: small, published: gain}", "needs a training to know its quality"),
        ("{id: x, says: y, metric: speedup, over: one, in: small, published: gain}", "has no `of`"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, published: gain}", "has no `in`"),
        ("{id: x, says: y, metric: speedup, of: one, in: small, published: gain}", "has a speedup without `over`"),
        ("{id: x, says: y, metric: speedup, of: [one], over: wfbp, in: small, published: gain}", "needs one stack as `of`"),
        ("{id: x, says: y, metric: ordering, of: one, in: small, source: text}", "ordering needs a list"),
        ("{id: x, says: y, metric: throughput, of: one, over: [wfbp], in: small, published: gain}", "only `holds` and `speedup` compare with several"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: small}", "has nothing published"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: small, published: 1.2}", "a number without its source"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: small, published: gain, source: text}", "which its evidence has already"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: small, published: 1.2, source: derived}", "which the paper never published"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: small, published: [1, 2], source: text}", "aggregate: range"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: each, aggregate: range, published: [1, 2, 3], source: text}", "a range that is no pair"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: small, published: 0, source: text}", "a number that is not above 0"),
        ("{id: x, says: y, metric: speedup, of: one, over: [], in: small, published: gain}", "has a speedup without `over`"),
        ("{id: x, says: y, metric: ordering, of: [one], in: small, source: text}", "orders fewer than two stacks"),
        ("{id: x, says: y, metric: holds, of: one, over: wfbp, in: small}", "has no source"),
        ("{id: x, says: y, metric: holds, of: one, over: wfbp, in: small, source: text, published: 2}", "publishes no number"),
        ("{id: x, says: y, metric: holds, of: one, over: wfbp, in: each, source: text, aggregate: mean}", "it holds or it does not"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: each, published: times, aggregate: any}", "asks whether any cell holds"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: small, published: gain, only: {size: 1}}", "picks cells of an experiment that has one"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: each, published: times, only: {siz: 1}}", "has no column 'siz'; did you mean size?"),
        ("{id: x, says: y, metric: speedup, of: one, over: wfbp, in: each, published: times, only: {size: 3}}", "is about no cell"),
    ],
)  # fmt: skip
def test_a_claim_that_cannot_be_judged_says_why(changed: Changed, claim: str, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        changed((CLAIM, f"  - {claim}"))
    assert message in str(caught.value), str(caught.value)
    assert ":15:" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id,size\n", r"the table has no rows"),
        ("size,step\n1,2\n", r"times\.csv:1: the header has no column id"),
        ("id,id\n1,2\n", r"times\.csv:1: the header names a column twice"),
        ("id,step\na,1\nb\n", r"times\.csv:3: 1 cells where the header has 2"),
        ("id,step\na,1\na,2\n", r"times\.csv:3: 'a' is no id of one row; it stands in line 2 too"),
        ("# note\n\nid,step\n,1\n", r"times\.csv:4: '' is no id of one row"),
    ],
)
def test_a_bad_table_is_one_line(folder: Path, changed: Changed, table: str, message: str) -> None:
    (folder / "times.csv").write_text(table)
    with pytest.raises(OrchError, match=message):
        changed()


def test_a_number_that_is_none_is_found_when_it_is_needed(folder: Path, changed: Changed) -> None:
    from orch.reproduce.document import reproduce

    (folder / "times.csv").write_text("id,size,step,wfbp,one\ntiny/small,1,4,fast,9\n")
    with pytest.raises(OrchError, match=r"times\.csv:2: 'fast' in column wfbp is no number above 0"):
        reproduce(changed())


def test_papers_are_found_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "orch.toml").write_text("")
    (folder / "recipes" / "papers").mkdir(parents=True)
    (folder / "recipes" / "papers" / "mine.yaml").write_text("")
    assert papers.find("mine").parent.name == "papers"
    assert "mg-wfbp" in papers.papers()
    with pytest.raises(OrchError, match=r"there is no paper named 'minee'; did you mean mine\?"):
        papers.find("minee")
