"""Lockstep ranks: their arithmetic by hand, and the traps they set for broken plans."""

from dataclasses import replace

import pytest
import torch

from orch.plan import AllGatherShards, AllReduce, Plan, ReduceScatter, Step, Update
from orch.testing.lockstep import Lockstep, distance, drawn
from orch.testing.small import cluster, member, planned, profile
from orch.workload import data_parallel
from techniques.schedules import bucketed, dear

MODEL = profile([((3, 2), (5,)), (1,)], [1.0, 1.0], [1.0, 1.0])


def dear_plan(world):
    return planned(MODEL, cluster(world), [member(dear.technique, bucket="0B")], {"bucketed": bucketed.technique})


def test_one_step_is_sgd_on_the_mean_gradient():
    ranks = Lockstep(data_parallel(MODEL, 3, 1), MODEL, lr=0.5).run(1)
    start = drawn((1,), "parameter l2.weight")
    mean = sum(distance(rank, 0, "l2.weight", start) for rank in range(3)) / 3
    for rank in ranks.ranks:
        torch.testing.assert_close(rank.parameters["l2.weight"], start - 0.5 * mean)
        torch.testing.assert_close(rank.applied["l2.weight"], mean)
    torch.testing.assert_close(ranks.gradients["l2.weight"], 3 * mean)


def test_lossless_plans_end_with_equal_bits():
    plain, split = (Lockstep(plan, MODEL).run(4) for plan in (data_parallel(MODEL, 4, 1), dear_plan(4)))
    for name, value in plain.ranks[0].parameters.items():
        assert torch.equal(split.ranks[0].parameters[name], value)


def test_an_update_that_comes_after_its_forward_shows():
    late = dear_plan(2)
    (step,) = late.steps
    updates = [task for task in step if isinstance(task.op, Update)]
    rest = [task for task in step if not isinstance(task.op, Update)]
    broken = replace(late, steps=(Step((*rest, *updates)),))
    good, bad = (Lockstep(plan, MODEL).run(3).ranks[0].parameters["l1.0.weight"] for plan in (late, broken))
    assert not torch.equal(good, bad)


def test_who_reads_beyond_his_shard_reads_nan():
    (step,) = dear_plan(2).steps
    swap = {AllGatherShards: [], ReduceScatter: None}
    tasks = [task for task in step if type(task.op) not in swap or swap[type(task.op)] is None]
    tasks = [replace(task, after=(), after_previous=()) for task in tasks]
    ranks = Lockstep(Plan.of("torn", 2, tasks), MODEL).run(1)
    flats = ranks.ranks[0].flats.values()
    assert all(flat.isnan().any() for flat in flats)


def test_operations_may_not_send_by_themselves():
    ranks = Lockstep(data_parallel(MODEL, 2, 1), MODEL)
    (op, *_) = [task.op for task in ranks.plan.steps[0].of(AllReduce)]
    with pytest.raises(TypeError, match="no task of the plan"):
        ranks.ranks[0].collective(op)


def test_only_whole_steps_can_be_kept():
    ranks = Lockstep(dear_plan(2), MODEL)
    ranks._one()
    with pytest.raises(ValueError, match="flush"):
        ranks.snapshot()
    ranks.flush()
    assert ranks.snapshot().step == 1


def test_threads_are_given_back():
    before = torch.get_num_threads()
    Lockstep(data_parallel(MODEL, 2, 1), MODEL).run(1)
    assert torch.get_num_threads() == before
