"""Pairwise: every exchange of rows pair by pair, counts as they are."""

import pytest

from orch.cluster import Cluster, Device, Level, Link, Links
from orch.plan import COUNTS, AllToAll, check
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import pairwise_a2a


def test_only_rows_go_pair_by_pair_at_one_start_up_a_step() -> None:
    device = Device("gpu", "example", {"fp32": 1e30}, memory_bytes_per_s=1e30)
    where = Cluster("example", 4, 1, device, Links(None, Link(Level(1e-3, 1e-6))))
    model = mixture.layers()
    plain = mixture_training(model, Layout(4, 4), 1)
    plan = check(pairwise_a2a.rewrite(plain, small.context(model, where), pairwise_a2a.Config()), finished=True)
    for task in plan.steps[0].of(AllToAll):
        assert isinstance(task.op, AllToAll)
        assert task.op.algorithm == ("" if task.op.part == COUNTS else "pairwise")
        if task.op.part == "dispatch":
            assert task.op.cost_s(where, where.world) == pytest.approx(3e-3 + 0.75 * task.op.nbytes * 1e-6)
