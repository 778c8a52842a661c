"""Every stack that contracts allow, in real processes of odd worlds: conformance, exactness, equal ranks, resume."""

import pytest

from orch import registry
from orch.errors import OrchError
from orch.stack import Member, arrange, is_lossless
from orch.technique import Slot
from orch.testing import contract
from orch.testing.contract import WORLDS, Subject
from orch.testing.small import member

# Knobs that make small tensors show what a technique does.
KNOBS = {
    "acp-sgd": {"rank": 2, "min_compression_rate": 0.5},
    "bucketed": {"cap": "60B", "first_bucket": "8B"},
    "dear": {"bucket": "60B"},
    "power-sgd": {"rank": 2, "min_compression_rate": 0.5},
    "top-k": {"density": 0.3},
    "torch-ddp": {"bucket_cap": "60B", "first_bucket": "8B"},
}


def techniques(slot: Slot) -> list[str]:
    return sorted(name for name in registry.techniques() if registry.technique(name).slot is slot)


def with_knobs(name: str) -> Member:
    return member(registry.technique(name), **KNOBS.get(name, {}))


def allowed(names: list[str]) -> bool:
    try:
        arrange([with_knobs(name) for name in names], registry.technique)
    except OrchError:
        return False
    return True


def stacks() -> list[list[str]]:
    """Every schedule alone, with every compressor, and with every feedback of it."""
    choices = [
        [schedule, *compressor, *feedback]
        for schedule in techniques(Slot.SCHEDULE)
        for compressor in ([], *([name] for name in techniques(Slot.COMPRESSOR)))
        for feedback in ([], ["no-feedback"])
    ]
    return [names for names in choices if allowed(names)]


def stacks_of(world_size: int) -> list[list[str]]:
    """All stacks in worlds of 2 and 3; in others each schedule alone and each compressor once, to keep it short."""
    everything = stacks()
    if world_size in (2, 3):
        return everything
    chosen = [["dear", "acp-sgd"], ["mg-wfbp", "top-k"], ["bucketed", "power-sgd"], ["wfbp", "acp-sgd", "no-feedback"]]
    return [names for names in everything if len(names) == 1 or names in chosen]


def test_every_technique_is_in_some_stack():
    defaults = {"all-gather", "error-feedback"}
    # Those of mixtures have nothing to do in a model without any: tests/runtime/test_mixture.py runs them. Those of input
    # are for plans only: no run does what they say.
    slots = {name: registry.technique(name).slot for name in registry.techniques()}
    known = {name for name, slot in slots.items() if not slot.of_mixtures and slot is not Slot.INPUT}
    assert {name for names in stacks() for name in names} | defaults == known


@pytest.mark.slow
@pytest.mark.parametrize("world_size", WORLDS)
def test_stacks_in_real_processes(world_size):
    from orch.testing import real

    broken = []
    with real.make_gang("processes", world_size) as gang:
        for names in stacks_of(world_size):
            first, *beside = [with_knobs(name) for name in names]
            subject = Subject(first.technique, KNOBS.get(first.name, {}), tuple(beside))
            job = real.job_of(subject.plan(world_size), contract.model(), subject.members, 5)
            try:
                real.check_real(gang, job, is_lossless(subject.members))
            except AssertionError as error:
                broken.append(f"{'+'.join(names)}: {error}")
    assert broken == []


@pytest.mark.slow
@pytest.mark.parametrize("names", stacks(), ids="+".join)
def test_stacks_on_lockstep_ranks(names):
    first, *beside = [with_knobs(name) for name in names]
    findings = contract.prove(first.technique, KNOBS.get(first.name, {}), (3, 8), beside)
    assert [finding for finding in findings if not finding.holds] == []
