"""How well a table is predicted: errors of what was not fitted, and whether the fastest stack is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orch.reproduce.judge import Judge
from orch.reproduce.paper import Paper
from orch.reproduce.predictions import predict_tables

Changed = Callable[..., Paper]
HEADER = "id,size,step,wfbp,one,other\n"


def test_errors_are_of_what_was_not_fitted(folder: Path, changed: Changed) -> None:
    # Ours: 11 and 9 s, 10 and 7 s.
    (folder / "times.csv").write_text(HEADER + "tiny/small,1,4,10,9,8\ntiny/fast,2,2,10,14,15\n")
    found = predict_tables(
        Judge(
            changed(("values: step_time", "values: step_time, also: [other]"), recipe=("tiny/fits/*", "tiny/fast/wfbp"))
        )
    )["times"]
    assert sorted(found.errors) == pytest.approx([0.0, 0.1, 0.5])
    assert (found.fitted, found.cells) == (1, 2)
    assert found.median_error == pytest.approx(0.1)
    # `one` is called fastest in both: it is in the first, though `other`, which is not simulated, is faster still.
    assert (found.best, found.best_of_all) == (1, 0)


def test_a_tie_is_right_either_way(folder: Path, changed: Changed) -> None:
    (folder / "times.csv").write_text(HEADER + "tiny/small,1,4,8.9,9,8.9\n")
    found = predict_tables(Judge(changed(("values: step_time", "values: step_time, also: [other]"))))["times"]
    assert (found.best, found.best_of_all, found.cells) == (1, 1, 1)
    assert "Fastest stack right (within 2%) in 1 of 1 cells" in str(found)


def test_a_paper_without_tables_predicts_none(changed: Changed) -> None:
    paper = changed(
        experiments="{small: {recipe: recipe.yaml}}",
        claims="[{id: x, says: y, metric: holds, of: one, over: wfbp, in: small, source: text}]",
    )
    assert predict_tables(Judge(paper)) == {}
