"""Streams that share, by hand: compute slowed while the network is busy, in two variants at once."""

from __future__ import annotations

import numpy as np

from orch.simulate.fluid_variants import boundaries
from orch.simulate.simulator import Row


def test_compute_runs_slower_only_while_the_network_is_busy() -> None:
    # Compute 2 s, then 4 s of it beside a message of 2 s: at half speed 1 s of work is done meanwhile, 3 s are left.
    step = [Row(0, 2.0, (), (), 0), Row(1, 2.0, (0,), (), 0), Row(0, 4.0, (), (), 0), Row(0, 1.0, (1,), (), 0)]
    found = boundaries([step], [False, True], (np.array([1.0, 2.0]), 1.0), 2)
    np.testing.assert_allclose(found, [[7.0, 8.0], [14.0, 16.0]])


def test_seconds_may_differ_between_variants_too() -> None:
    step = [Row(0, np.array([1.0, 3.0]), (), (), 0), Row(1, 5.0, (0,), (), 0), Row(0, 1.0, (1,), (), 0)]
    np.testing.assert_allclose(boundaries([step], [False, True], (1.0, 1.0), 1), [[7.0, 9.0]])


def test_a_first_step_has_nothing_to_finish() -> None:
    step = [Row(0, 1.0, (), (), 1), Row(0, 2.0, (), (0,), 0)]
    np.testing.assert_allclose(boundaries([step], [False], (1.0, 1.0), 3), [[2.0], [5.0], [8.0]])
