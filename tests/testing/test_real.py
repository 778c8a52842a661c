"""The contract on real processes: a good technique passes, and ranks that leave the plan or differ are named."""

from dataclasses import replace

import pytest

from orch import registry
from orch.stack import is_lossless
from orch.testing import contract, real
from orch.testing.small import member


@pytest.fixture(scope="module")
def gang():
    with real.make_gang("processes", 2) as workers:
        yield workers


def job(name, **knobs):
    subject = contract.Subject(registry.technique(name), knobs)
    made = real.job_of(subject.plan(2), contract.model(), subject.members, 4)
    return made, is_lossless(subject.members)


@pytest.mark.parametrize(
    ("name", "knobs"), [("dear", {"bucket": "60B"}), ("top-k", {"density": 0.3}), ("torch-ddp", {})]
)
def test_good_techniques_pass(gang, name, knobs):
    real.check_real(gang, *job(name, **knobs))
    outcome = gang.call(real.train, job(name, **knobs)[0])[0]
    assert outcome.differences == []
    assert outcome.payload_bytes > 0


def test_a_result_that_is_not_the_plans_is_found(gang):
    made, _ = job("wfbp")
    other = contract.Subject(
        registry.technique("top-k"), {"density": 0.1}, (member(registry.technique("no-feedback")),)
    )
    lossy = replace(made, plan=other.plan(2))
    real.check_real(gang, lossy, lossless=False)
    with pytest.raises(AssertionError, match="away from what the plan computes"):
        real.check_real(_Shortened(gang), made, lossless=True)


class _Shortened:
    """A gang that trains a step less than it is told."""

    def __init__(self, gang):
        self._gang = gang

    def call(self, function, told):
        return self._gang.call(function, replace(told, steps=told.steps - 1))
