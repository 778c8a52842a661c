"""What a sweep varies: ranges, choices, conditions, and a place for every fault."""

from __future__ import annotations

import pytest

from orch.errors import Position
from orch.recipe.space import Parameter
from tests.recipe.conftest import GOOD


def space(changed, over: str, *overrides: str) -> dict[str, Parameter]:
    text = f"{GOOD}sweep:\n  over: {over}\n  minimize: step_time\n"
    return {parameter.path: parameter for parameter in changed(*overrides, text=text).space}


def test_a_range_keeps_its_unit(changed) -> None:
    found = space(changed, "{stack: [merged], techniques.together.size: {low: 32KiB, high: 4MiB, log: true}}")
    size = found["techniques.together.size"]
    assert (size.low, size.high, size.whole, size.log, size.unit) == (2**15, 2**22, True, True, "B")
    assert size.written(40000.0) == "40000B"
    assert size.ends() == ("32768B", "4194304B")


def test_numbers_are_whole_where_both_ends_are(changed) -> None:
    found = space(
        changed, "{stack: [both], train.steps: {low: 1, high: 9}, train.optimizer.adamw.lr: {low: 1, high: 2.0}}"
    )
    assert found["train.steps"].whole
    assert not found["train.optimizer.adamw.lr"].whole
    assert list(found["train.steps"].steps()) == list(range(1, 10))
    assert (found["train.steps"].count, found["train.optimizer.adamw.lr"].count) == (9, None)


def test_a_step_that_does_not_fit_lowers_the_end(changed) -> None:
    found = space(changed, "{stack: [both], techniques.squeeze.share: {low: 0, high: 1.0, step: 0.3}}")
    assert found["techniques.squeeze.share"].high == pytest.approx(0.9)
    assert list(found["techniques.squeeze.share"].steps()) == pytest.approx([0.0, 0.3, 0.6, 0.9])


def test_values_are_counted_without_being_made(changed) -> None:
    found = space(changed, "{stack: [merged], techniques.together.size: {low: 0B, high: 1GiB}}")
    size = found["techniques.together.size"]
    assert size.count == 2**30 + 1
    assert next(size.steps()) == "0B"


def test_a_condition_may_wait_for_a_value_of_a_range(changed) -> None:
    over = "{stack: [merged], techniques.together.size: {low: 1MiB, high: 8MiB, step: 1MiB}, train.steps: {choices: [1, 2], when: {techniques.together.size: [2MiB, 4096KiB]}}}"  # noqa: E501
    found = space(changed, over)["train.steps"]
    assert found.when == (("techniques.together.size", ("2097152B", "4194304B")),)
    assert found.active({"techniques.together.size": "4194304B"})


def test_a_technique_gives_its_own_ranges(changed) -> None:
    found = space(changed, "{stack: auto, techniques.together: auto, techniques.squeeze.share: auto}")
    assert found["stack"].choices == ("plain", "merged", "both")
    assert found["techniques.together.planner"].choices == ("exact", "greedy")
    assert "techniques.together.size" not in found  # it states no upper end
    share = found["techniques.squeeze.share"]
    assert (share.low, share.high, share.log) == (1e-4, 1.0, True)


def test_a_knob_is_varied_where_its_technique_is_used(changed) -> None:
    found = space(changed, "{stack: auto, techniques.squeeze.rank: [1, 2], techniques.together.planner: auto}")
    assert found["techniques.squeeze.rank"].when == (("stack", ("both",)),)
    assert found["techniques.together.planner"].when == (("stack", ("merged", "both")),)
    assert found["techniques.squeeze.rank"].active({"stack": "both"})
    assert not found["techniques.squeeze.rank"].active({"stack": "plain"})


def test_conditions_stand_behind_what_they_name(changed) -> None:
    over = (
        "{techniques.squeeze.share: {choices: [0.1, 0.2], when: {train.steps: 2}}, train.steps: [1, 2], stack: [both]}"
    )
    found = space(changed, over)
    assert list(found) == ["stack", "train.steps", "techniques.squeeze.share"]
    assert found["techniques.squeeze.share"].when == (("train.steps", (2,)),)


def test_a_recipe_with_one_stack_beside_its_baseline_needs_no_stack(changed) -> None:
    found = space(changed, "{techniques.squeeze.rank: [1, 2]}", "stacks.merged=null")
    assert found["stack"].choices == ("both",)
    assert found["techniques.squeeze.rank"].when == ()


@pytest.mark.parametrize(
    ("over", "line"),
    [
        (
            "{train.steps: [1, 2]}",
            "r.yaml:16:3: sweep.over does not say which of the stacks merged, both runs; add stack",
        ),
        ("{stack: [plane]}", "r.yaml:16:18: 'plane' is no stack of this recipe; did you mean plain? [E233]"),
        ("{stack: [both, both]}", "stack has the choice 'both' twice"),
        ("{stack: {low: 1, high: 2}}", "stack is varied by choices; write stack: [NAME, NAME] [E241]"),
        ("{stack: auto, seeds: [[0]]}", "seeds cannot be varied; vary `stack`"),
        ("{stack: auto, train..steps: [1]}", "a part of the path is empty"),
        ("{stack: auto, train.steps: auto}", "train.steps has no range of its own; give choices or a range"),
        ("{stack: auto, techniques.squeeze.rank: auto}", "techniques.squeeze.rank has no bounds of its own"),
        ("{stack: auto, techniques.squeeze.rnak: auto}", "squeeze has no knob 'rnak'; did you mean rank? [E210]"),
        ("{stack: auto, techniques.sqeeze.rank: auto}", "technique 'sqeeze' is not known; did you mean squeeze?"),
        ("{stack: [plain], techniques.squeeze.rank: [1]}", "no stack of the sweep uses squeeze"),
        (
            "{stack: auto, techniques.squeeze.rank: {choices: [1], when: {stack: [plain]}}}",
            "waits for stack 'plain', which has no such knob; stacks that have it: ",
        ),
        ("{stack: auto, train.steps: {low: 3, high: 3}}", "train.steps: high must be above low"),
        ("{stack: auto, train.steps: {low: 3}}", "must hold low and high: a range has two ends"),
        ("{stack: auto, train.steps: {low: 0, high: 3, log: true}}", "a logarithmic range begins above 0"),
        ("{stack: auto, train.steps: {low: 1, high: 3, log: true, step: 1}}", "a logarithmic range has no step"),
        ("{stack: auto, train.steps: {low: 1, high: 3, step: 5}}", "step must be above 0 and at most high - low"),
        (
            "{stack: auto, train.steps: {low: 1, high: 3, choices: [1]}}",
            "must hold either choices or a range, not both",
        ),
        ("{stack: [[plain]]}", "is no stack of this recipe; did you mean plain? [E233]"),
        ("{stack: [{plain: {}}]}", "is no stack of this recipe"),
        ("{stack: auto, train.steps: {low: 5, high: 3}}", "train.steps: high must be above low; swap them [E241]"),
        ("{stack: auto, train.optimizer.adamw.lr: {low: .nan, high: 1}}", "low is no finite number"),
        ("{stack: auto, train.optimizer.adamw.lr: {low: 0, high: .inf}}", "high is no finite number"),
        ("{stack: auto, train.optimizer.adamw.lr: [1, .inf]}", "has a choice that is no finite number"),
        ("{stack: auto, train.optimizer.adamw.lr: {low: -1.0e308, high: 1.0e308}}", "wider than any number"),
        (
            "{stack: auto, train.steps: {choices: [1], when: {stack: []}}}",
            "train.steps is never varied: no value of stack meets all its conditions",
        ),
        (
            "{stack: auto, train.precision: {choices: [fp16, bf16], when: {stack: plain}},"
            " train.steps: {choices: [1], when: {train.precision: fp16, stack: both}}}",
            "train.steps is never varied: no value of stack meets all its conditions; loosen its `when`, or drop it [E242]",
        ),
        (
            "{stack: auto, train.optimizer.adamw.lr: {low: 0.1, high: 0.2},"
            " train.steps: {choices: [1], when: {train.optimizer.adamw.lr: 0.15}}}",
            "to be 0.15, which a range of any values hardly ever is; give that range a step, or choices [E242]",
        ),
        (
            "{stack: auto, techniques.squeeze.rank: {low: 1, high: 8},"
            " train.steps: {choices: [1], when: {techniques.squeeze.rank: 9}}}",
            "to be 9, which is no value of its range; 1 to 8 [E242]",
        ),
        (
            "{stack: [both], techniques.squeeze.rank: [1, 2], stacks.both.squeeze.rank: [3, 4]}",
            "stacks.both.squeeze.rank and techniques.squeeze.rank vary one knob of stack 'both'; keep one",
        ),
        (
            "{stack: auto, train.steps: aut}",
            "must be choices [a, b], a range {low: .., high: ..}, or auto; it is 'aut'",
        ),
        (
            "{stack: auto, techniques.together.size: {low: 1KiB, high: 5}}",
            "low 1KiB, high 5: these do not make a range; write numbers",
        ),
        (
            "{stack: auto, techniques.together.size: {low: 1KiB, high: 5ms}}",
            "low 1KiB, high 5ms: these do not make a range",
        ),
        ("{stack: auto, train.steps: []}", "must have at least 1 entry"),
        ("{stack: auto, train.steps: 5}", "must be choices [a, b], a range {low: .., high: ..}, or auto; it is 5"),
        ("{stack: auto, train.steps: [1, 1]}", "train.steps has the choice 1 twice"),
        (
            "{stack: auto, train.steps: {choices: [1], when: {train.lr: 1}}}",
            "hangs on train.lr, which the sweep does not",
        ),
        ("{stack: auto, train.steps: {choices: [1], when: {stack: none}}}", "which is none of its choices"),
        (
            "{stack: auto, train.steps: {choices: [1], when: {model.seq_len: 1}},"
            " model.seq_len: {choices: [1], when: {train.steps: 1}}}",
            "lead in a circle",
        ),
        ("{stack: auto, techniques.together: auto, techniques.together.planner: [exact]}", "planner twice; keep one"),
    ],
)
def test_what_cannot_be_varied_is_refused_at_its_place(fault, over: str, line: str) -> None:
    found = fault(f"{GOOD}sweep:\n  over: {over}\n  minimize: step_time\n")
    assert line in found
    assert found.startswith("r.yaml:1")


def test_what_decides_the_values_is_plain_data() -> None:
    one = Parameter("a", ("a",), Position("r"), low=1.0, high=2.0, log=True, when=(("stack", ("x",)),))
    assert one.to_json() == {"low": 1.0, "high": 2.0, "log": True, "when": {"stack": ["x"]}}
    assert Parameter("a", ("a",), Position("r"), choices=(1, "b")).to_json() == {"choices": [1, "b"]}
