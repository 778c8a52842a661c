"""What ends a run: a rank that did something else than its plan, a rank that holds something else than the others."""

from __future__ import annotations

import pytest

from orch.errors import RunError
from orch.experiment.checks import refuse_differences, refuse_unequal
from orch.runtime.block import Block

GOOD, BAD = Block((), (), (), 0.0), Block((), (), ("task x ran twice", "task y did not run"), 0.0)


def test_the_first_rank_that_differs_is_named_with_the_first_of_its_sentences() -> None:
    assert refuse_differences("stack a", [GOOD, GOOD]) is None
    with pytest.raises(RunError, match=r"^stack a: rank 1 did not run its plan: task x ran twice \(and 1 more\)"):
        refuse_differences("stack a", [GOOD, BAD])


def test_a_rank_with_other_parameters_is_named() -> None:
    assert refuse_unequal("stack a", ["x", "x"]) is None
    with pytest.raises(RunError, match=r"^stack a: after training, rank 2 holds other parameters than rank 0"):
        refuse_unequal("stack a", ["x", "x", "y"])
