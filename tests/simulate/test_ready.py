"""What planners are told: start times with communication free, forward included."""

from orch.simulate import ready_times
from orch.testing.small import cluster, profile
from orch.workload import data_parallel


def test_sends_are_ready_when_their_backward_ends():
    model = profile([(4,), (1,), (1,)], [2.0, 1.0, 3.0], [1.0, 1.0, 1.0])
    plan = data_parallel(model, 2, 1)
    starts = ready_times(plan, 0, cluster(2, alpha_s=100.0))
    assert [starts[f"all_reduce.l{layer}.weight"] for layer in (3, 2, 1)] == [6.0, 7.0, 9.0]
    assert starts["update"] == 9.0
    assert starts["forward.l2"] == 1.0
