"""Error feedback: where it stands in a plan, and what decay does."""

import torch

from orch.testing.lockstep import Lockstep
from orch.testing.small import cluster, member, planned, profile
from techniques.compression import acp_sgd, all_gather, error_feedback, power_sgd, top_k
from techniques.schedules import bucketed, wfbp

LOOKUP = {t.name: t for t in (all_gather.technique, bucketed.technique, error_feedback.technique)}


def chain(compressor, **knobs):
    model = profile([(8, 8)], [1.0])
    plan = planned(model, cluster(2), [member(compressor, **knobs), member(wfbp.technique)], LOOKUP)
    return [task.name.split(".")[0] for task in plan.steps[0]][2:-1]


def test_it_compensates_first_and_retains_once_it_is_known_what_was_sent():
    assert chain(top_k.technique) == ["compensate", "encode", "retain", "all_gather", "decode"]
    # The local product must be read before the all-reduce overwrites it, the aggregate after it.
    assert chain(acp_sgd.technique, rank=1) == ["compensate", "encode_p", "retain", "all_reduce_p", "decode_p"]
    power = ["compensate", "encode_p", "all_reduce_p", "encode_q", "all_reduce_q", "decode", "retain"]
    assert chain(power_sgd.technique, rank=1) == power


def test_decay_fades_old_errors():
    gradient = torch.tensor([4.0, 1.0])
    model = profile([(2,)], [1.0])
    stack = [member(top_k.technique, density=0.5), member(error_feedback.technique, decay=0.5)]
    ranks = Lockstep(planned(model, cluster(2), stack, LOOKUP), model, differentiate=lambda *_: gradient).run(3)
    # 1, then 1 + 1/2, then 1 + 3/4.
    assert ranks.ranks[0].kept["error-feedback", "l1.weight"].tolist() == [0.0, 1.75]


def test_it_keeps_a_value_a_parameter():
    model = profile([(8, 8), (3,)], [1.0, 1.0])
    plan = planned(model, cluster(2), [member(top_k.technique)], LOOKUP)
    assert sum(task.op.state_bytes for task in plan.steps[0]) == 4 * (64 + 3)
