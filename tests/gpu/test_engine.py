"""The engine on CUDA with NCCL: the same parameters as on the host, stamps from events."""

from __future__ import annotations

import pytest
import torch

from orch.runtime.base import Setup
from orch.runtime.clock import CudaClock
from orch.runtime.engine import PlanEngine
from orch.runtime.optimizers import optimizer_factory
from tests.runtime.models import build
from tests.runtime.test_engine import SGD, loss_of, plan_of, reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]


def test_one_device_trains_like_the_host() -> None:
    model = build("plain").cuda()
    engine = PlanEngine(plan_of("plain", 1, 1), model, Setup(optimizer_factory(SGD)), {})
    for step in range(4):
        engine.train_step(lambda module, step=step: loss_of(lambda inputs: module(inputs.cuda()).cpu(), 0, step))
    found = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(found, reference("plain", 1), rtol=1e-4, atol=1e-5)
    assert engine.differences() == []
    assert engine.record.timeline().step_time_s > 0.0


def test_events_are_read_on_the_hosts_clock() -> None:
    clock = CudaClock()
    first = clock.now()
    torch.zeros(1 << 20, device="cuda").add_(1)
    second = clock.now()
    assert clock.seconds(first) <= clock.seconds(second)
