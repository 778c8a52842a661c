"""From a file to outcomes, on a paper whose step times are worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from orch.errors import OrchError
from orch.reproduce.document import document, reproduce
from orch.reproduce.evaluate import cells_of
from orch.reproduce.judge import ClaimResult, Judge
from orch.reproduce.lineage import Evidence
from orch.reproduce.paper import Paper
from orch.reproduce.verdict import Outcome
from tests.reproduce.conftest import ONE_S, WFBP_S

Changed = Callable[..., Paper]
SPEEDUP = "{id: x, says: y, metric: speedup, of: one, over: wfbp, in: each, published: times"


def only(paper: Paper) -> ClaimResult:
    return Judge(paper).result(paper.spec.claims[0])


def test_step_times_are_those_of_the_hand(changed: Changed) -> None:
    cells = Judge(changed()).result(changed().spec.claims[0]).cells
    small = {time.stack: time.ours_s.median for time in cells[0].absolute}
    assert small == pytest.approx({"one": ONE_S, "wfbp": WFBP_S})
    assert cells[0].ours[0].median == pytest.approx(WFBP_S / ONE_S)
    assert cells[0].published == (pytest.approx(11 / 9),)


def test_a_published_number_of_a_table_is_reproduced(changed: Changed) -> None:
    result = only(changed())
    assert [str(cell.verdict.outcome) for cell in result.cells if cell.verdict] == ["reproduced", "reproduced"]
    assert (result.outcome, result.evidence) == (Outcome.REPRODUCED, Evidence.FITTED_ELSEWHERE)
    assert "absolute times within" in result.why


def test_a_lucky_ratio_is_a_ratio_only(folder, changed: Changed) -> None:
    (folder / "times.csv").write_text("id,size,step,wfbp,one\ntiny/small,1,4,22,18\n")
    assert only(changed()).outcome is Outcome.RATIO_ONLY


def test_inputs_fitted_on_the_claim_give_no_outcome(changed: Changed) -> None:
    paper = changed(recipe=("tiny/fits/*", "tiny/*/wfbp"))
    result = only(paper)
    assert (result.outcome, result.evidence, result.judged) == (None, Evidence.FITTED, False)
    assert "fitted on tiny/*/wfbp" in result.why


def test_cells_that_are_fitted_are_left_out_of_the_verdict(changed: Changed) -> None:
    result = only(changed(recipe=("tiny/fits/*", "tiny/fast")))
    assert [cell.verdict is None for cell in result.cells] == [False, True]
    assert result.outcome is Outcome.REPRODUCED
    assert "1 more cells are fitted" in result.why


@pytest.mark.parametrize("word", ["recollection", "a guess"])
def test_a_guessed_input_caps_the_outcome(changed: Changed, word: str) -> None:
    result = only(changed(recipe=("      source: an example", f"      source: {word}")))
    assert result.outcome is Outcome.CONSISTENT
    assert "cluster.links.inter.measured.0 rests on" in result.why


def test_a_guessed_grid_caps_the_outcome(changed: Changed) -> None:
    result = only(changed(claims=f"[{SPEEDUP}, guessed: the sizes are a guess}}]"))
    assert result.outcome is Outcome.CONSISTENT
    assert "the sizes are a guess" in result.why


def test_a_recollected_number_caps_the_outcome(changed: Changed) -> None:
    paper = changed(("source: abstract", "source: recollection"))
    assert Judge(paper).result(paper.spec.claims[1]).outcome is Outcome.CONSISTENT


@pytest.mark.parametrize(
    ("claim", "published", "outcome"),
    [
        ("metric: speedup, of: one, over: wfbp, aggregate: max, source: text", 1.4286, "reproduced"),
        ("metric: speedup, of: one, over: wfbp, aggregate: min, source: text", 1.2222, "reproduced"),
        ("metric: speedup, of: one, over: wfbp, aggregate: mean, source: text", 1.3254, "reproduced"),
        ("metric: speedup, of: one, over: wfbp, aggregate: range, source: text", [1.2222, 1.4286], "reproduced"),
        ("metric: speedup, of: one, over: wfbp, aggregate: mean, source: text", 1.9, "smaller effect"),
        ("metric: speedup, of: wfbp, over: one, aggregate: mean, source: text", 1.2, "contradicted"),
    ],
)  # fmt: skip
def test_aggregates_are_judged_on_the_cells(changed: Changed, claim: str, published: object, outcome: str) -> None:
    result = only(changed(claims=f"[{{id: x, says: y, in: each, {claim}, published: {published}}}]"))
    assert str(result.outcome) == outcome, result.why
    assert "small, fast" in result.cells[0].name


@pytest.mark.parametrize(
    ("claim", "ours"),
    [
        ("metric: step_time, of: one, published: 9, source: table", 9.0),
        ("metric: step_time, of: one, over: wfbp, published: 1.2, source: table", WFBP_S / ONE_S),
        ("metric: throughput, of: one, published: 0.44, source: table", 4 / 9),
        ("metric: scaling_efficiency, of: one, published: 0.44, source: table", 4 / 9),
        ("metric: speedup, of: one, over: [wfbp, one], published: 1.0, source: table", 1.0),
        ("metric: exposed_time, of: one, published: 5, source: table", 5.0),
        ("metric: exposed_time, of: one, over: wfbp, published: 1.4, source: table", 7 / 5),
        ("metric: bytes, of: one, published: 12, source: table", 12.0),
        ("metric: bytes, of: one, over: wfbp, published: 1.0, source: table", 1.0),
        ("metric: count, of: wfbp, published: 3, source: table", 3.0),
        ("metric: count, of: one, over: wfbp, published: 3, source: table", 3.0),
        ("metric: memory, of: one, over: wfbp, published: 1.0, source: table", 1.0),
    ],
)
def test_metrics(changed: Changed, claim: str, ours: float) -> None:
    result = only(changed(claims=f"[{{id: x, says: y, in: small, {claim}}}]"))
    assert result.cells[0].ours[0].median == pytest.approx(ours)
    assert result.outcome is Outcome.REPRODUCED, result.why


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ("metric: holds, of: one, over: wfbp", "reproduced"),
        ("metric: holds, of: wfbp, over: [one]", "contradicted"),
        ("metric: ordering, of: [one, wfbp]", "reproduced"),
        ("metric: ordering, of: [wfbp, one]", "contradicted"),
        ("metric: holds, of: one, over: wfbp, aggregate: any", "reproduced"),
    ],
)
def test_statements(changed: Changed, claim: str, outcome: str) -> None:
    result = only(changed(claims=f"[{{id: x, says: y, in: each, source: abstract, {claim}}}]"))
    assert str(result.outcome) == outcome


def test_an_uncertain_input_is_drawn_and_decides(changed: Changed) -> None:
    uncertain = "\nuncertain: {cluster.links.inter.measured.0.alpha: {range: [10ms, 10s], source: nobody knows}}\n"
    paper = changed(recipe=("  one: [single-bucket]\n", f"  one: [single-bucket]{uncertain}"))
    result = Judge(paper).result(paper.spec.claims[1])
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "to know cluster.links.inter.measured.0.alpha would decide most" in result.why
    assert result.cells[0].ours[0].lo < 1 < result.cells[0].ours[0].hi


def test_planners_know_what_they_are_told(changed: Changed) -> None:
    merged = ("  one: [single-bucket]\n", "  one: [single-bucket]\n  merged: [mg-wfbp]\n")
    costs = "{set: {techniques.mg-wfbp.alpha: 1ns, techniques.mg-wfbp.beta: 1ns/B}, source: repository, where: code}"
    paper = changed(
        ("small: {recipe: recipe.yaml}", f"small: {{recipe: recipe.yaml, plan_costs: {costs}}}"),
        claims="[{id: x, says: y, metric: speedup, of: merged, over: wfbp, in: small, published: 1.2, source: text}]",
        recipe=merged,
    )
    told, real = (Judge(paper, costs).result(paper.spec.claims[0]) for costs in ("paper", "cluster"))
    assert told.cells[0].ours[0].median == pytest.approx(1.0)  # a start-up of nothing: no merging
    assert real.cells[0].ours[0].median == pytest.approx(11 / 9)
    assert (told.cells[0].other_costs, real.cells[0].other_costs) == ("1.222", "")
    assert "planner: techniques.mg-wfbp.alpha" in [origin.name for origin in told.cells[0].inputs]


def test_what_is_not_judged_says_why(changed: Changed) -> None:
    paper = changed(claims="[{id: a, says: y, missing: eight GPUs}, {id: b, says: y, pending: nobody looked}]")
    results = Judge(paper).claims()
    assert [str(result.outcome) for result in results] == ["not runnable here", "not yet judged"]
    assert [result.why for result in results] == ["missing: eight GPUs", "nobody looked"]


def test_the_document_counts(changed: Changed) -> None:
    found = document([reproduce(changed())])
    assert (found["judged"], found["claims"], found["mode"]) == (2, 2, "simulated")
    assert found["counts"]["outcome"] == {"reproduced": 2}
    claim = found["papers"][0]["claims"][1]
    assert {"id", "cells", "published", "ours", "evidence", "outcome", "why"} <= set(claim)
    assert (claim["published"], claim["outcome"]) == (1.22, "reproduced")
    assert claim["ours"][0]["median"] == pytest.approx(math.exp(math.log(WFBP_S / ONE_S)))


def test_a_verdict_never_flips(changed: Changed) -> None:
    assert document([reproduce(changed())]) == document([reproduce(changed())])


def test_a_choice_that_touches_one_stack_leaves_the_others_alone(changed: Changed) -> None:
    knobs = "  one: [single-bucket]\n  some: {bucketed: {cap: 1B, first_bucket: 1B}}\n"
    uncertain = "\nuncertain: {stacks.some.bucketed.cap: {choices: [1B, 1MiB], source: nobody knows}}\n"
    paper = changed(
        claims="[{id: x, says: y, metric: speedup, of: some, over: wfbp, in: small, published: 1.2, source: text}]",
        recipe=("  one: [single-bucket]\n", knobs + uncertain),
    )
    # One message a gradient takes as long as wfbp; the first alone ends at 5, two together at 5 + 2 + 2 = 9 s.
    band = Judge(paper).result(paper.spec.claims[0]).cells[0].ours[0]
    assert (band.lo, band.hi) == (pytest.approx(1.0), pytest.approx(11 / 9))


def test_a_note_explains_an_outcome(changed: Changed) -> None:
    result = only(changed(claims=f"[{SPEEDUP}, note: luck}}]"))
    assert result.why.endswith("; luck")


@pytest.mark.parametrize("more", ["jitter: 5%", "speed: {1: 0.5}"])
def test_ranks_that_differ_are_refused(changed: Changed, more: str) -> None:
    paper = changed(recipe=("  devices_per_node: 1\n", f"  devices_per_node: 1\n  {more}\n"))
    with pytest.raises(OrchError, match=r"recipe.yaml: the cluster's ranks differ, or jitter.*E354"):
        only(paper)


def test_an_aggregate_is_of_the_cells_that_the_paper_filled(changed, folder) -> None:
    whole = "[{id: x, says: y, metric: speedup, of: one, over: wfbp, in: each, aggregate: mean, published: times}]"
    table = (folder / "times.csv").read_text()
    (folder / "times.csv").write_text(table.replace("tiny/fast,2,2,10,7", "tiny/fast,2,2,10,"))
    (cell,) = only(changed(claims=whole)).cells
    assert cell.name == "mean of small"
    assert cell.published == pytest.approx((WFBP_S / ONE_S,))
    (folder / "times.csv").write_text(table.replace("10,7", "10,").replace("11,9", "11,"))
    result = only(changed(claims=whole))
    assert (result.outcome, result.why) == (Outcome.NOT_JUDGED, "the paper left every cell of it empty")


def test_values_reach_a_recipe_as_the_paper_wrote_them(changed) -> None:
    """A boolean in a mapping is no word of Python."""
    given = "{train.optimizer: {sgd: {lr: 0.1, momentum: 0.5, nesterov: true}}, train.learning_rate: {}, seeds: [0, 1]}"
    paper = changed(("small: {recipe: recipe.yaml}", f"small: {{recipe: recipe.yaml, set: {given}}}"))
    recipe = Judge(paper).draws("small", cells_of(paper, "small")[0]).recipe
    assert recipe.train.optimizer.sgd is not None
    assert recipe.train.optimizer.sgd.nesterov is True
    assert recipe.seeds == (0, 1)


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"defects": "[{id: d, says: x, published: one, mended: nope, in: small, worse: 2}]"},
            r"tiny\.yaml:\d+:\d+: the recipe .* has no stack 'nope'; did you mean one\?|its stacks: wfbp, one",
        ),
        (
            {"defects": "[{id: d, says: x, published: one, mended: wfbp, in: small, worse: 2}, "
             "{id: d, says: x, published: one, mended: wfbp, in: small, worse: 2}]"},
            r"tiny\.yaml:\d+:\d+: the id 'd' stands here twice; rename one \[E353\]",
        ),
    ],
)  # fmt: skip
def test_a_defect_that_cannot_be_shown_is_refused_where_it_stands(changed, sections, line: str) -> None:
    with pytest.raises(OrchError, match=line):
        reproduce(changed(**sections))


def test_a_choice_that_no_recipe_takes_is_refused_where_it_was_stated(changed) -> None:
    choices = ("stacks:", "uncertain: {cluster.nodes: {choices: [2, two], source: x}}\nstacks:")
    with pytest.raises(OrchError, match=r"recipe\.yaml:\d+:\d+: cluster.nodes=two: must be a whole number"):
        reproduce(changed(recipe=choices))
