"""What of a run that was cut short can be compared."""

from __future__ import annotations

from dataclasses import replace

from orch.experiment.outcome import Outcome, Trained
from orch.experiment.predict import predict


def trained(stack: str, blocks: int, seed: int = 0) -> Trained:
    """One step of warm-up, then three a block."""
    steps = 1 + 3 * blocks
    return Trained(
        stack, seed,
        losses=[2.0] * steps, clock_s=[0.1 * (step + 1) for step in range(steps)], block_times_s=[0.1] * blocks,
        judged=[(0.0, 2.0, 0.1)] * (blocks + 1), payload_bytes=[8.0] * blocks,
    )  # fmt: skip


def outcome_of(recipe, *runs: Trained) -> Outcome:
    return Outcome(recipe, predict(recipe), list(runs))


def test_a_finished_run_is_kept_whole(tiny) -> None:
    runs = [trained(stack, 2) for stack in ("plain", "merged", "small")]
    assert outcome_of(tiny(), *runs).comparable().trained == runs


def test_only_blocks_that_all_stacks_have_are_kept(tiny) -> None:
    outcome = outcome_of(tiny(), trained("plain", 2), trained("merged", 1), trained("small", 2))
    assert outcome.comparable().trained == [trained(stack, 1) for stack in ("plain", "merged", "small")]
    assert len(outcome.of("plain")[0].block_times_s) == 2  # what was found itself is left alone


def test_a_seed_that_has_hardly_begun_does_not_spoil_the_others(tiny) -> None:
    first = [trained(stack, 2) for stack in ("plain", "merged", "small")]
    second = [replace(trained(stack, blocks, seed=1)) for stack, blocks in (("plain", 1), ("merged", 0), ("small", 0))]
    assert outcome_of(tiny(), *first, *second).comparable().trained == first


def test_where_a_stack_has_no_block_there_is_nothing(tiny) -> None:
    assert outcome_of(tiny(), trained("plain", 1), trained("merged", 0), trained("small", 0)).comparable() is None
    assert outcome_of(tiny()).comparable() is None
