"""Comparisons of finished runs: who is compared with whom, what is refused, and waterfalls that add up."""

from __future__ import annotations

import math
import shutil

import pytest

from orch.errors import OrchError
from orch.experiment.statistics import compare as paired
from orch.report.compare import comparison, document
from orch.report.stored import StoredRun


def sums(pair) -> bool:
    total = math.fsum(part.change_s for part in pair.waterfall)
    return math.isclose(total, pair.difference_s, rel_tol=1e-12, abs_tol=1e-15)


def test_one_run_is_compared_with_its_baseline_per_block(measured) -> None:
    run = measured()
    found = comparison([run])
    assert [(pair.reference.name, pair.own.name) for pair in found.pairs] == [("plain", "merged"), ("plain", "small")]
    times = {name: list(stack.block_times_s.values()) for name, stack in run.stacks.items()}
    assert times["merged"] == pytest.approx([0.05, 0.06, 0.056, 0.05])
    expected = paired(times["plain"], times["merged"], comparisons=2)
    merged = found.pairs[0].speedup
    assert merged is not None
    assert (merged.lo, merged.median, merged.hi) == (expected.lo, expected.median, expected.hi)
    assert found.pairs[0].paired
    small = found.pairs[1].speedup
    assert small is not None and not small.distinguishable
    assert all(pair.waterfall and sums(pair) for pair in found.pairs)


def test_seeds_and_blocks_are_grouped_and_paired(measured) -> None:
    run = measured("seeds=[0, 1]", "target={metric: loss, reach: 1.0}")
    found = comparison([run.stack("merged"), run.stack("plain")])
    (pair,) = found.pairs
    assert pair.speedup is not None and pair.speedup.n == 8
    assert pair.speedup.median < 1


def test_a_waterfall_adds_up_by_class(measured) -> None:
    parts = {
        "plain": {"compute": 1.0, "encode_decode": 0.0, "exposed:net.inter": 1.0, "waiting": 0.0, "overhead": 0.0},
        "merged": {"compute": 1.0, "encode_decode": 0.0, "waiting": 0.0, "overhead": 1.0},
    }
    run = measured(parts=parts)
    pair = comparison([run]).pairs[0]
    before, after = pair.reference.step_time_s, pair.own.step_time_s
    changes = {part.name: part.change_s for part in pair.waterfall}
    assert changes["compute"] == pytest.approx((after - before) / 2)
    assert changes["exposed:net.inter"] == pytest.approx(-before / 2)
    assert changes["overhead"] == pytest.approx(after / 2)
    assert sums(pair)


def test_two_runs_are_compared_stack_by_stack_and_not_paired(measured) -> None:
    slow = {"plain": (0.2, 0.22, 0.2, 0.24)}
    rest = dict.fromkeys(("merged", "small"), (0.1, 0.11, 0.12, 0.1))
    one, two = measured(), measured(times=slow | rest)
    found = comparison([one, two])
    assert [(pair.reference.label, pair.own.label) for pair in found.pairs] == [
        (f"{one.id}:{name}", f"{two.id}:{name}") for name in ("plain", "merged", "small")
    ]
    plain = found.pairs[0].speedup
    assert plain is not None and not found.pairs[0].paired
    assert plain.distinguishable and plain.median == pytest.approx(0.5, rel=0.05)
    assert "Welch" in plain.method
    assert "different runs share no blocks" in found.notes[0]


def test_simulated_runs_are_compared_with_the_range_of_their_inputs(simulated) -> None:
    run = simulated()
    found = comparison([run])
    for pair in found.pairs:
        assert pair.speedup is None and pair.range is not None
        assert pair.range.lo <= pair.range.median <= pair.range.hi
        assert pair.range.lo < pair.range.hi
        assert sums(pair)
    written = document(found)
    assert written["modes"] == ["simulated"]
    assert written["pairs"][0]["speedup"]["method"].startswith("simulated")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.width=8", r"model\.width: 16 in \S+, 8 in "),
        ("train.batch_per_worker=4", r"batch per worker: 8 in \S+:plain, 4 in "),
        ("cluster.devices_per_node=4", "workers: 2 in .*, 4 in "),
        ("cluster.links.intra.algorithm=auto", r"cluster\.links\.intra\.algorithm"),
    ],
)
def test_runs_of_different_things_are_refused_with_the_reason(simulated, override, message) -> None:
    one, two = simulated(), simulated(override)
    with pytest.raises(OrchError, match=f"these cannot be compared: .*{message}") as refused:
        comparison([one, two])
    assert refused.value.code == "E644"
    assert "--anyway" in refused.value.hint
    found = comparison([one, two], anyway=True)
    assert found.differences and len(found.pairs) == 3


def test_a_simulated_run_against_a_measured_one_is_refused(simulated, measured) -> None:
    one, two = simulated(), measured()
    with pytest.raises(OrchError, match=r"is simulated and .* is measured"):
        comparison([one, two])
    found = comparison([one, two], anyway=True)
    assert "holds the simulation's error" in " ".join(found.notes)
    assert all(pair.speedup is None and sums(pair) for pair in found.pairs)


def test_a_stack_of_its_own_is_nothing_to_compare(measured) -> None:
    run = measured()
    for alone in ([run.stack("plain")], [run, run]):
        with pytest.raises(OrchError, match="nothing to compare with") as refused:
            comparison(alone)
        assert refused.value.code == "E640"


def test_a_run_of_an_older_version_has_no_waterfall(measured) -> None:
    run = measured()
    data = dict(run.directory.results)
    for stack in data["stacks"].values():
        del stack["breakdown_s"]
    run.directory.write_json("results.json", data)
    found = comparison([StoredRun(run.directory)])
    assert all(pair.waterfall == () and pair.speedup is not None for pair in found.pairs)
    assert "no record of where the time went" in found.notes[0]


def test_a_run_cut_short_is_compared_by_the_blocks_it_has(measured) -> None:
    run = measured()
    (run.directory.path / "results.json").unlink()
    steps = run.stack("merged").folder / "steps.seed0.csv"
    steps.write_text("".join(steps.read_text().splitlines(keepends=True)[:-1]))  # the last block is not whole
    pair = comparison([StoredRun(run.directory)]).pairs[0]
    assert pair.speedup is not None and pair.speedup.n == 3
    shutil.rmtree(run.stack("merged").folder)
    with pytest.raises(OrchError, match=r"does not hold the plan of stack 'merged'|has no finished block"):
        comparison([StoredRun(run.directory)]).pairs[0].difference_s  # noqa: B018
