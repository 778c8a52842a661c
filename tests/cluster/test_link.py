"""Links known by point-to-point numbers, by fits and by tables, and how a measurement is carried to other groups."""

import numpy as np
import pytest

from orch.cluster.basis import Basis
from orch.cluster.collectives import Level
from orch.cluster.curves import Curve
from orch.cluster.link import Link, Measured
from orch.cluster.node import Node
from orch.cluster.span import Span
from orch.errors import OrchError

WORLD = Span(16, 4, 4)
FIT = Measured("all-reduce", WORLD, Curve(9.08e-4, 7.40e-10), source="repo", sizes=(32768.0, 2.0**21))
FITTED = Link(measured=(FIT,))


def test_own_group_costs_what_was_measured():
    assert FITTED.curve("all-reduce", WORLD, None, None).seconds(1e6) == pytest.approx(9.08e-4 + 7.40e-4)


def test_mg_wfbp_solves_alpha_and_beta_of_a_ring():
    """MG-WFBP section 6: from 10GbE N=16, ring alpha = 3.03e-5 and beta = 3.95e-10; double tree alpha = 1.14e-4."""
    level = FITTED.point_to_point()
    assert (level.alpha_s, level.beta_s_per_byte) == (
        pytest.approx(3.03e-5, rel=2e-3),
        pytest.approx(3.95e-10, rel=2e-3),
    )
    tree = Measured("all-reduce", WORLD, FIT.curve, "double-binary-tree").level()
    assert (tree.alpha_s, tree.beta_s_per_byte) == (pytest.approx(1.14e-4, rel=5e-3), pytest.approx(7.40e-10))


def test_ring_carried_to_another_world():
    far = Span(2048, 512, 4)
    curve = FITTED.curve("all-reduce", far, None, None)
    assert curve.start_up_s == pytest.approx(2 * 2047 * 9.08e-4 / 30)
    assert curve.per_byte_s == pytest.approx((2047 / 2048) / (15 / 16) * 7.40e-10)
    assert FITTED.basis("all-reduce", far) == Basis("fitted", 128.0, "repo")
    assert str(FITTED.basis("all-reduce", far)) == "fitted, extrapolated 128 times"


def test_smaller_groups_are_extrapolated_too():
    assert FITTED.basis("all-reduce", Span(4, 4, 1)).times == 4.0


def test_messages_beyond_the_fit_are_extrapolated():
    assert FITTED.basis("all-reduce", WORLD, 2.0**23).times == 4.0
    assert FITTED.basis("all-reduce", WORLD, 1000.0).times == 1.0


def test_halves_of_a_measured_ring_make_the_whole():
    halves = [FITTED.curve(half, WORLD, None, None).seconds(1e7) for half in ("reduce-scatter", "all-gather")]
    assert halves[0] == halves[1]
    assert sum(halves) == pytest.approx(FITTED.curve("all-reduce", WORLD, None, None).seconds(1e7))


def test_nearest_measured_group_speaks():
    near = Measured("all-reduce", Span(8, 2, 4), Curve(5.23e-4, 8.57e-10))
    link = Link(measured=(FIT, near))
    assert link.chosen("all-reduce", Span(8, 2, 4)) is near
    assert link.chosen("all-reduce", Span(9, 3, 4)) is near
    assert link.chosen("all-reduce", Span(64, 16, 4)) is FIT


def test_a_measured_collective_wins_over_alpha_and_beta_and_leaves_the_others():
    link = Link(Level(1e-5, 1e-10), measured=(FIT,))
    assert link.curve("all-reduce", WORLD, None, None).seconds(1e6) == FIT.curve.seconds(1e6)
    assert link.curve("broadcast", Span(4, 4, 1), None, None).start_up_s == pytest.approx(4 * 1e-5)


def test_another_algorithm_than_the_measured_one_is_solved_from_it():
    curve = FITTED.curve("all-reduce", Span(16, 16, 1), "halving-doubling", None)
    assert curve.start_up_s == pytest.approx(8 * 9.08e-4 / 30)


def test_table_is_carried_knee_by_knee():
    table = Link.from_tables({"all-reduce": {1024.0: 1e-4, 2048.0: 2e-4, 4096.0: 6e-4}}, Span(4, 1, 4), "this run")
    twice = table.curve("all-reduce", Span(8, 1, 8), None, None)
    assert table.basis("all-reduce", Span(8, 1, 8)) == Basis("measured", 2.0, "this run")
    own = table.curve("all-reduce", Span(4, 1, 4), None, None)
    assert twice.knees[0][0] == own.knees[0][0] == 2048.0
    assert twice.seconds(4096.0) == pytest.approx(own.seconds(4096.0) * (7 / 8) / (3 / 4))


def test_every_collective_takes_its_own_table():
    tables = {"all-reduce": {1e3: 1e-3, 1e6: 9e-3}, "all-gather": {1e3: 2e-3, 1e6: 3e-3}}
    link = Link.from_tables(tables, Span(4, 1, 4), "this run")
    times = [link.curve(name, Span(4, 1, 4), None, None).seconds(1e6) for name in (*tables, "reduce-scatter")]
    assert times == pytest.approx([9e-3, 3e-3, 4.5e-3])


def test_impossible_tables_are_refused():
    with pytest.raises(OrchError, match="did you mean all-reduce"):
        Link.from_tables({"allreduce": {1.0: 1.0, 2.0: 2.0}}, Span(2, 1, 2), "x")
    with pytest.raises(ValueError, match="at least two sizes"):
        Link.from_tables({"all-reduce": {}}, Span(2, 1, 2), "x")


def test_scaled_multiplies_start_ups_and_bytes_apart():
    link = Link(Level(1.0, 10.0, 100.0), measured=(FIT,)).scaled(2.0, np.array([1.0, 3.0]))
    assert link.level.alpha_s == 2.0
    assert link.level.beta_s_per_byte.tolist() == [10.0, 30.0]
    assert link.level.gamma_s_per_byte.tolist() == [100.0, 300.0]
    assert link.measured[0].curve.seconds(1e6) == pytest.approx([2 * 9.08e-4 + 7.40e-4, 2 * 9.08e-4 + 3 * 7.40e-4])


def test_bands_come_from_the_file_else_from_the_kind_and_widen():
    assert FITTED.band(Basis("fitted")) == (0.2, 0.15)
    assert FITTED.band(Basis("fitted", 4.0)) == pytest.approx((0.3, 0.225))
    assert Link(measured=(FIT,), bands=(0.1, None)).band(Basis("fitted")) == (0.1, 0.15)


def test_a_table_of_one_rate_is_carried_to_another_by_the_bytes_on_the_wire():
    span, sizes = Span(4, 4, 1), (1e3, 1e6, 4e6)

    def seconds(nbytes, rate):  # a ring of four: start-ups of 2 ms in all, and 1.5 bytes a byte
        return 2e-3 + 1.5 * nbytes / rate

    tables = {n: seconds(n, 125e6) for n in sizes}
    ways = {"beside": {"all-reduce": tables}, "stolen": {"all-reduce": dict.fromkeys(sizes, 1e-3)}}
    link = Link.from_tables({"all-reduce": tables}, span, "here", ways=ways).held_to(Node(125e6, 125e6))
    (found,) = link.measured
    carried = found.at_rate(25e6)
    for curve in (carried.curve, dict(carried.ways)["beside"]):
        assert [curve.seconds(n) for n in (5e5, 8e6)] == pytest.approx([seconds(n, 25e6) for n in (5e5, 8e6)])
    assert dict(carried.ways)["stolen"] == dict(found.ways)["stolen"]
    assert (carried.kind, found.at_rate(125e6)) == ("fitted", found)
    line = Measured("all-reduce", span, Curve(2e-3, 1.5 / 125e6), rate_bytes_per_s=125e6)
    assert line.at_rate(25e6).curve.seconds(1e6) == pytest.approx(seconds(1e6, 25e6))
    assert FIT.at_rate(1e6) == FIT  # nobody said at what rate it was measured
