"""Where ranks that share samples meet in the plain plan: around attention, forward and backward, whole tokens or shares."""

from __future__ import annotations

import pytest

from orch.models.catalogue import model
from orch.plan import GatherRows, Join, Meet, ScatterRows, SumRows, check
from orch.simulate import simulate
from orch.testing import mixture
from orch.workload import Layout, mixture_training

CHOSEN = model("char-moe")
PROFILE = CHOSEN.profile(CHOSEN.knobs(num_layers=2, hidden=16, num_heads=4, seq_len=8, vocab=12))


def plan(world: int, experts: int, tensor: int, tokens: str = "whole", batch: int = 2):
    return check(mixture_training(PROFILE, Layout(world, experts, 1, tensor, tokens), batch), finished=True)


def test_whole_tokens_are_added_up_behind_attention_and_their_gradients_in_front() -> None:
    drawn = plan(4, 2, 2)
    sums = drawn.steps[0].of(SumRows)
    assert [task.name for task in sums] == [
        "sum.blocks.0.out", "sum.blocks.1.out", "sum_backward.blocks.1.qkv", "sum_backward.blocks.0.qkv"
    ]  # fmt: skip
    for task in sums:
        assert (task.group, task.stream, task.op.nbytes) == ("tensor", "net.intra", 4 * 2 * 8 * 16)
    # Nothing else is told: tokens are the same on all ranks.
    assert not drawn.steps[0].of(GatherRows)
    before = {task.name: task.after for task in drawn.steps[0]}
    assert before["meet.blocks.0.out"] == ("forward.blocks.0.out",)
    assert before["join_backward.blocks.0.qkv"] == ("sum_backward.blocks.0.qkv",)


def test_shares_of_tokens_are_gathered_in_front_of_attention_and_given_back_behind() -> None:
    step = plan(4, 2, 2, "shares").steps[0]
    names = [task.name for task in step if isinstance(task.op, GatherRows | ScatterRows)]
    assert names == [
        f"{what}.blocks.{block}.{part}"
        for block, what, part in (
            (0, "gather", "qkv"), (0, "scatter", "out"), (1, "gather", "qkv"), (1, "scatter", "out"),
            (1, "gather_backward", "out"), (1, "scatter_backward", "qkv"),
            (0, "gather_backward", "out"), (0, "scatter_backward", "qkv"),
        )
    ]  # fmt: skip
    order = [task.name for task in step]
    assert order.index("join_backward.blocks.1.out") + 1 == order.index("backward.blocks.1.out")


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_gradients_go_to_those_that_hold_them(tensor: int) -> None:
    groups = {task.name: task.group for task in plan(4, 4, tensor).steps[0] if task.name.startswith("all_reduce.")}
    shared = groups.get("all_reduce.blocks.0.qkv.weight")
    assert shared == {1: "world", 2: "shards", 4: None}[tensor]
    assert groups["all_reduce.blocks.0.out.bias"] == "world"
    held = plan(4, 4, tensor).groups
    assert [len(held[name].blocks) for name in ("tensor", "shards") if name in held] == {1: [], 2: [2, 2], 4: [1]}[
        tensor
    ]


def test_a_step_takes_what_is_met_beside_what_is_computed() -> None:
    where = mixture.cluster(4, alpha_s=0.5, rate_flops=1e9, all_reduce=(0.25, 0.0))
    drawn, alone = plan(4, 1, 4), plan(4, 1, 1)
    assert {type(task.op) for task in drawn.steps[0] if task.op.kind in ("meet", "join")} == {Meet, Join}
    assert simulate(drawn, where).step_time_s > 4 * 0.25
    assert simulate(alone, where).step_time_s < simulate(drawn, where).step_time_s + 4 * 0.25


def test_ranks_that_share_a_sample_read_one_batch() -> None:
    assert [Layout(8, 2, 2, tensor).readers for tensor in (1, 2, 4)] == [8, 4, 2]
