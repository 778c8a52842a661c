"""The contract suite: every technique that ships keeps it, and doubles that break one part each are rejected for that
part.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from orch import registry
from orch.plan import AllReduce, Encode, Update
from orch.technique import Form, Knobs, Slot, Technique, dense_sends
from orch.testing.contract import WORLDS, Finding, TechniqueContract, prove
from orch.testing.small import member

# Knobs that matter on small tensors, beside every technique's defaults.
KNOBS = {
    "top-k": [{"density": 0.3}, {"density": 1.0}, {"density": 0.2, "min_numel": 6}],
    "acp-sgd": [{"rank": 1}, {"rank": 2, "min_compression_rate": 0.0}],
    "power-sgd": [{"rank": 1}, {"rank": 2, "min_compression_rate": 0.0}],
    "bucketed": [{"cap": "40B", "first_bucket": "4B"}, {"cap": "0B"}],
    "torch-ddp": [{"bucket_cap": "40B", "first_bucket": "4B"}, {"hook": "bf16"}],
    "mg-wfbp": [{"planner": "greedy"}, {"min_bucket": "50B"}, {"alpha": "1ms", "beta": "1ns/B"}],
    "dear": [{"bucket": "0B"}, {"bucket": "100B", "prefetch": 1}, {"prefetch": 2, "bucket": "0B"}],
    "bytescheduler": [{"partition": "12B", "credit": "8B"}, {"partition": "20B", "through": "parameter-server"}],
    "error-feedback": [{"decay": 1.0}],
}
CASES = [(name, knobs) for name in sorted(registry.techniques()) for knobs in [{}, *KNOBS.get(name, [])]]


@pytest.mark.parametrize(("name", "knobs"), CASES, ids=[f"{name}-{knobs}" for name, knobs in CASES])
def test_every_technique_that_ships_keeps_the_contract(name, knobs):
    worlds = WORLDS if not knobs else (2, 5)
    assert [finding for finding in prove(registry.technique(name), knobs, worlds) if not finding.holds] == []


class TestInherited(TechniqueContract):
    """What an author writes."""

    technique = registry.technique("dear")
    knobs: ClassVar = {"bucket": "60B"}
    beside = (member(registry.technique("acp-sgd"), rank=1),)
    worlds = (1, 3)


def broken_checks(technique, **knobs):
    return {finding.check for finding in prove(technique, knobs, worlds=(1, 3)) if not finding.holds}


def double(rewrite, **changes):
    facts = {"name": "double", "slot": Slot.SCHEDULE, "source": "made up", "lossless": True} | changes
    return Technique(rewrite=rewrite, **facts)


def only_update(plan, context, config):
    """Update without waiting for anything, with nothing sent."""
    tasks = lambda step: tuple(replace(t, after=()) for t in step if not isinstance(t.op, AllReduce))  # noqa: E731
    return plan.each_step(lambda step: replace(step, tasks=tasks(step)))


def test_sending_nothing_is_found():
    assert {"plan", "ranks agree", "exactness"} <= broken_checks(double(only_update))


def test_a_lost_update_is_found():
    def rewrite(plan, context, config):
        return plan.each_step(lambda step: replace(step, tasks=tuple(t for t in step if not isinstance(t.op, Update))))

    findings = [finding for finding in prove(double(rewrite), worlds=(2,)) if not finding.holds]
    assert any("is not updated exactly once" in finding.message for finding in findings)


def test_a_pass_that_differs_each_time_is_found():
    count = iter(range(1000))

    def rewrite(plan, context, config):
        return replace(plan, name=f"{plan.name}{next(count)}")

    assert "plan" in broken_checks(double(rewrite))


@dataclass(frozen=True, slots=True)
class Halve(Encode):
    """A compressor that halves what is sent and claims to be lossless; it also forgets to say what it costs."""

    def run(self, executor):
        executor.gradient(self.tensor).mul_(0.5)


def halving(plan, context, config):
    def step(step):
        changes = {}
        for task, gradient in dense_sends(step):
            encode = replace(task, name=f"encode.{gradient.tensor}", op=Halve(gradient.tensor), stream="compute")
            changes[task.name] = (encode, replace(task, after=(encode.name,)))
        return step.replace(changes)

    return plan.each_step(step)


def test_a_lossy_technique_that_claims_otherwise_is_found():
    assert broken_checks(double(halving, slot=Slot.COMPRESSOR)) == {"costs", "exactness"}


@dataclass(frozen=True, slots=True)
class Private(Halve):
    """An encoder that keeps state where no checkpoint sees it, different on every rank."""

    def run(self, executor):
        SECRETS[executor.rank] = SECRETS.get(executor.rank, 0.0) + 1.0
        executor.gradient(self.tensor).mul_(1.0 / SECRETS[executor.rank])

    def cost_s(self, cluster, span):
        return 0.0


SECRETS: dict[int, float] = {}


def test_state_that_no_checkpoint_sees_is_found():
    def rewrite(plan, context, config):
        SECRETS.clear()
        new = halving(plan, context, config)
        swap = lambda t: replace(t, op=Private(t.op.tensor)) if isinstance(t.op, Halve) else t  # noqa: E731
        return new.each_step(lambda step: replace(step, tasks=tuple(swap(t) for t in step)))

    assert "resume" in broken_checks(double(rewrite, slot=Slot.COMPRESSOR, lossless=False))


def test_lost_mass_is_found():
    # Forgetting half of every residual is what `decay` says, and what the conservation of mass catches.
    feedback = registry.technique("error-feedback")
    assert broken_checks(feedback, decay=0.5) == {"exactness"}


def test_facts_are_checked():
    class Loose(Knobs):
        model_config = {"extra": "ignore", "frozen": False}
        size: int = 3

    technique = double(lambda plan, context, config: plan, name="Not_A_Name", config=Loose)
    (facts,) = [f for f in prove(technique, worlds=()) if f.check == "facts"]
    assert "name 'Not_A_Name' is not lower-case-with-dashes" in facts.message
    technique = replace(technique, name="fine")
    (facts,) = [f for f in prove(technique, worlds=()) if f.check == "facts"]
    assert facts.message == "knob 'size' has no description"


def test_importing_torch_is_found():
    pytest.importorskip("torch")
    from orch.testing import lockstep

    technique = double(lockstep.distance, gives=Form.DENSE)
    (imports,) = [f for f in prove(technique, worlds=()) if f.check == "imports"]
    assert imports.message.startswith("importing orch.testing.lockstep loads torch")


def test_a_finding_says_whether_it_holds():
    assert Finding("plan", 3).holds
    assert not Finding("plan", 3, "broken").holds
