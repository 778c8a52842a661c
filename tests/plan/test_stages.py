"""What a stage's micro-batch costs, and what is handed over."""

import pytest

from orch.cluster import Cluster, Device, Level, Link, Links, Span
from orch.plan.stages import LOSS, PIPELINE, HandOver, StageBackward, StageForward, TakeLoss

DEVICE = Device("gpu", "example", {"fp32": 100.0}, memory_bytes_per_s=1e30, launch_s=0.5)
WHERE = Cluster("example", 1, 4, DEVICE, Links(Link(Level(1.0, 0.25))))
PAIR = Span(2, 1, 2)


@pytest.mark.parametrize("kind", [StageForward, StageBackward])
def test_micro_batches_share_the_work_and_each_starts_its_kernels(kind: type) -> None:
    whole = kind(PIPELINE, 400.0, 0.0, micro_batches=1, kernels=3)
    part = kind(PIPELINE, 400.0, 0.0, micro_batches=4, kernels=3)
    assert whole.cost_s(WHERE, PAIR) == pytest.approx(
        4.0 + DEVICE.launch_s + 1.5 - DEVICE.launch_s, abs=DEVICE.launch_s
    )
    assert part.cost_s(WHERE, PAIR) == pytest.approx((whole.cost_s(WHERE, PAIR) - 1.5) / 4 + 1.5)
    measured = kind(PIPELINE, 0.0, 0.0, "fp32", 5.5, micro_batches=4, kernels=3)
    assert measured.cost_s(WHERE, PAIR) == pytest.approx(1.0 + 1.5)


def test_a_hand_over_is_one_message_to_each_other_rank() -> None:
    op = HandOver(HandOver.buffer_of("activations", 8, "bf16"))
    assert (op.nbytes, op.tensors) == (16, ())
    assert op.cost_s(WHERE, PAIR) == pytest.approx(1.0 + 16 * 0.25)
    told = HandOver(HandOver.buffer_of("loss", 1, "fp32"), LOSS, root=3)
    assert told.cost_s(WHERE, Span(4, 1, 4)) == pytest.approx(3 * (1.0 + 4 * 0.25))
    assert TakeLoss(PIPELINE, 0.0, 0.0).cost_s(WHERE, PAIR) == 0.0
