"""The fields of a paper's file, and the page that lists its metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from orch.reproduce import schema
from orch.reproduce.schema import METRICS, Metric, PaperFile
from orch.reproduce.verdict import Outcome

CLAIMS = (Path(__file__).resolve().parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")


def test_every_metric_is_told() -> None:
    assert set(METRICS) == set(get_args(Metric))
    told = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", CLAIMS, flags=re.MULTILINE))
    assert {name for pair in told for name in pair if name} == set(METRICS)


def test_every_outcome_is_told() -> None:
    assert [outcome for outcome in Outcome if outcome is not Outcome.INVALID and str(outcome) not in CLAIMS] == []


def test_every_field_says_what_it_is() -> None:
    parts = [part for part in vars(schema).values() if isinstance(part, type) and issubclass(part, schema.Section)]
    assert PaperFile in parts
    for part in parts:
        for name, field in part.model_fields.items():
            assert field.description and not field.description.endswith("."), f"{part.__name__}.{name}"
