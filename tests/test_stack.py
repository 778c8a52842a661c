"""Stacks: the order follows from contracts, conflicts are explained, every pass is checked and reported."""

from dataclasses import replace

import pytest

from orch.errors import OrchError
from orch.plan import PlanError
from orch.stack import Member, apply, arrange, untested_pairs
from orch.technique import Form, Knobs, Slot, Technique
from orch.testing.small import cluster, context, member, profile, step_time_s
from orch.workload import data_parallel
from techniques.schedules import bucketed, dear, mg_wfbp, wfbp

LOOKUP = {t.name: t for t in (bucketed.technique, dear.technique, mg_wfbp.technique, wfbp.technique)}
SPARSE = Technique("thin", Slot.COMPRESSOR, lambda plan, context, config: plan, "here", False, gives=Form.SPARSE)


def arranged(*techniques, lookup=LOOKUP):
    return arrange([Member(t, t.config()) for t in techniques], lookup.__getitem__)


def test_an_empty_stack_takes_the_default_schedule():
    (only,) = arranged()
    assert only.name == "bucketed"
    assert not only.given


def test_order_of_a_set_means_nothing():
    assert arranged(SPARSE_EXCHANGED, wfbp.technique) == arranged(wfbp.technique, SPARSE_EXCHANGED)


SPARSE_EXCHANGED = replace(SPARSE, name="thin-low", gives=Form.ADDABLE)


@pytest.mark.parametrize(
    ("techniques", "code", "message"),
    [
        (
            [wfbp.technique, bucketed.technique],
            "E510",
            "'bucketed' and 'wfbp' both fill slot schedule; keep one, or make 'wfbp' a stack of its own",
        ),
        ([wfbp.technique, wfbp.technique], "E510", "'wfbp' is named twice in one stack; name it once"),
        (
            [SPARSE, dear.technique],
            "E512",
            "'dear' needs addable or dense gradients and 'thin' gives sparse; drop one of them, or make 'dear'",
        ),
        (
            [SPARSE],
            "E513",
            "'thin' gives sparse gradients, which no all-reduce can add; add a technique of slot exchange",
        ),
        (
            [replace(SPARSE, excludes={"wfbp": "they fight"}), wfbp.technique],
            "E511",
            "'thin' and 'wfbp' exclude one another: they fight; drop 'wfbp'",
        ),
        (
            [replace(SPARSE, name="keeper", slot=Slot.FEEDBACK, needs=frozenset({Form.SPARSE}), gives=None)],
            "E512",
            "'keeper' needs sparse gradients and nothing in this stack makes them; drop 'keeper', or add a compressor",
        ),
    ],
)
def test_a_conflict_names_both_and_the_way_out(techniques, code, message):
    with pytest.raises(OrchError) as caught:
        arranged(*techniques)
    assert caught.value.code == code
    assert message in str(caught.value)


def test_each_pass_reports_what_it_did():
    model = profile([(4,), (1,), (1,), (1,)], [2, 1, 1, 2])
    where = cluster(2, alpha_s=2.0, beta_s_per_byte=0.25)
    plain = data_parallel(model, 2, 1, update_s=0.0)
    idle = replace(SPARSE_EXCHANGED, name="idle")
    members = arranged(idle, mg_wfbp.technique)
    plan, reports = apply(plain, members, context(model, where), lambda plan: step_time_s(plan, where))
    assert [str(report) for report in reports] == [
        "idle: changed nothing",
        "mg-wfbp: 13 -> 11 tasks, 28 B -> 28 B, 17 s -> 14 s (simulated)",
    ]
    assert step_time_s(plan, where) == pytest.approx(14.0)


def test_a_broken_pass_is_caught_and_named():
    def lose_an_update(plan, context, config):
        return plan.each_step(lambda step: replace(step, tasks=step.tasks[:-1]))

    broken = replace(wfbp.technique, name="broken", rewrite=lose_an_update)
    model = profile([(4,)], [1.0])
    with pytest.raises(PlanError, match=r"technique broken: gradient 'l1.weight' is not updated exactly once"):
        apply(data_parallel(model, 2, 1), arranged(broken), context(model, cluster(2)))


def divides_by_nothing(plan, context, config):
    del plan, context, config
    return 1 // 0


@pytest.mark.parametrize(
    ("rewrite", "line"),
    [
        (
            divides_by_nothing,
            r"technique x cannot rewrite this plan: ZeroDivisionError: .* \(test_stack\.py, line \d+\)",
        ),
        (
            lambda plan, context, config: None,
            "technique x cannot rewrite this plan: TypeError: rewrite returned NoneType",
        ),
    ],
)
def test_what_a_stranger_does_wrong_is_not_a_fault_of_orch(rewrite, line):
    broken = replace(wfbp.technique, name="x", rewrite=rewrite)
    model = profile([(1,)] * 2, [1.0] * 2)
    with pytest.raises(OrchError, match=line) as caught:
        apply(data_parallel(model, 2, 1), [Member(broken, Knobs())], context(model, cluster(2)))
    assert caught.value.code == "E223"
    assert caught.value.exit_code == 2


def test_pairs_with_a_stranger_are_untested():
    ours = Member(wfbp.technique, Knobs())
    stranger = Member(SPARSE, Knobs())
    assert untested_pairs([ours, stranger]) == [("wfbp", "thin")]
    assert untested_pairs([ours, member(mg_wfbp.technique)]) == []
