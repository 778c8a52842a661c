"""A comparison on a terminal."""

from __future__ import annotations

from orch.report.compare import comparison
from orch.report.tables import header, rows, waterfall


def test_a_run_is_shown_with_its_mode_and_its_intervals(measured) -> None:
    found = comparison([measured()])
    assert header(found)[0].startswith("measured, 2 workers: run ")
    assert header(found)[1] == "each gain with its 95 % interval, which holds for all 2 together"
    headers, cells = rows(found)
    assert headers == ["stack", "step time", "against", "step time", "gain", ""]
    assert cells[0][0] == "merged"
    assert str(cells[0][4]).startswith("2.00 [1.95, 2.03], n=4")
    assert "not distinguishable" in str(cells[1][4])


def test_two_runs_are_told_apart(measured) -> None:
    one, two = measured(), measured()
    _, cells = rows(comparison([one, two]))
    assert cells[0][0] == f"{two.id}:plain"
    assert cells[0][5] == "not paired"


def test_a_waterfall_goes_from_one_step_time_to_the_other(measured) -> None:
    parts = {
        "plain": {"compute": 0.5, "exposed:net.inter": 0.5},
        "merged": {"compute": 1.0, "exposed:net.inter": 0.0},
    }
    pair = comparison([measured(parts=parts)]).pairs[0]
    lines = waterfall(pair)
    assert lines[1] == "where the time of a step went, merged against plain"
    named = {line.split("  ")[1].strip(): line for line in lines[2:]}
    assert set(named) == {"plain", "compute", "exposed net.inter", "merged"}
    assert named["plain"].endswith("#" * 44)
    assert named["exposed net.inter"].strip("- ") != named["exposed net.inter"]
    length = named["exposed net.inter"].count("-") - 1  # the sign of the figure is one of them
    assert length == 22
    assert named["merged"].count("#") == 22


def test_a_simulated_gain_has_a_range_instead(simulated) -> None:
    found = comparison([simulated()])
    assert "range over what the inputs leave open" in header(found)[1]
    assert " to " in str(rows(found)[1][0][4])
