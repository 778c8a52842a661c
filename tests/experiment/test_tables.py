"""The table a run ends with: honest, and never wider than a terminal."""

from __future__ import annotations

from copy import deepcopy

import pytest

from orch.commands._output import table
from orch.experiment.tables import WIDTH, footnotes, next_steps, table_of

STACK = {
    "step_time_s": {"median": 0.0205, "lo": 0.02, "hi": 0.021},
    "predicted_step_time_s": 0.0226,
    "prediction_error": 0.1,
    "speedup": {"over": "ddp", "median": 1.0, "lo": 1.0, "hi": 1.0, "level": 0.95, "n": 8, "method": "m", "distinguishable": False},
    "loss": {"first": 2.3, "last": 0.4},
    "accuracy": 0.95,
    "at_equal_time": {"seconds": 1.5, "loss": 0.5, "accuracy": 0.9},
    "time_to_target_s": None,
    "payload_bytes_per_worker": 171_752.0,
    "wire_bytes_per_worker": 257_628.0,
    "note": "",
    "lossless": True,
    "conformant": True,
}  # fmt: skip


def results_of(**stacks: dict[str, object]) -> dict[str, object]:
    return {
        "experiment": "quick", "mode": "measured", "workers": 4, "baseline": "ddp",
        "ceiling": {"step_time_s": 0.01, "speedup": 2.1},
        "median_prediction_error": 0.1, "notes": [], "stacks": {"ddp": deepcopy(STACK), **stacks},
    }  # fmt: skip


def faster(**changes: object) -> dict[str, object]:
    gain = STACK["speedup"] | {"median": 1.352, "lo": 1.33, "hi": 1.374, "distinguishable": True}
    return deepcopy(STACK) | {"speedup": gain} | changes


def noisy() -> dict[str, object]:
    note = "not distinguishable (n=8; a 1 % gain would need about 60 blocks)"
    gain = STACK["speedup"] | {"median": 1.02, "lo": 0.9, "hi": 1.1}
    return deepcopy(STACK) | {"speedup": gain, "note": note, "lossless": False}


def test_a_row_says_each_figure_with_its_unit() -> None:
    headers, rows = table_of(results_of(dear=faster()))
    assert headers == ["stack", "step time", "gain", "predicted", "payload", "on the wire", "loss", "accuracy", ""]
    assert rows[0][:3] == ["ddp", "20.5 ms", "baseline"]
    assert rows[1] == [
        "dear", "20.5 ms", "1.35 [1.33, 1.37]", "22.6 ms (+10 %)", "168 KiB", "252 KiB", "0.500", "0.900", "exact",
    ]  # fmt: skip


def test_what_cannot_be_told_apart_gets_no_number() -> None:
    document = results_of(acp=noisy())
    row = table_of(document)[1][1]
    assert row[2] == "not distinguishable"
    assert row[-1] == "lossy"
    assert "acp: not distinguishable (n=8; a 1 % gain would need about 60 blocks)" in footnotes(document)


def test_curves_that_are_not_known_at_that_time_are_a_dash() -> None:
    unknown = faster(at_equal_time={"seconds": 1.5, "loss": None, "accuracy": None})
    assert table_of(results_of(dear=unknown))[1][1][6:8] == ["-", "-"]


def test_time_to_target_stands_there_when_a_stack_has_reached_it() -> None:
    headers, rows = table_of(results_of(dear=faster(time_to_target_s=1.25)))
    place = headers.index("to target")
    assert [row[place] for row in rows] == ["never", "1.25 s"]


@pytest.mark.parametrize("name", ["dear", "mg-wfbp+acp-sgd+a-name-that-somebody-found-clear" * 2])
def test_it_fits_a_terminal_whatever_names_stacks_have(name: str) -> None:
    document = results_of(**{name: faster(time_to_target_s=1.25), "other": noisy()})
    lines = table(*table_of(document)).splitlines() + footnotes(document)
    assert max(len(line) for line in lines if not line.startswith(name)) <= WIDTH
    assert len(lines[3]) <= WIDTH


def test_below_stands_what_the_figures_are() -> None:
    text = "\n".join(footnotes(results_of(dear=faster()) | {"notes": ["a remark"]}))
    assert "measured on 4 workers: medians of 8 blocks; gain over ddp is paired per block" in text
    assert "after 1.5 s of each stack's own training" in text
    assert "if communication were free: 10 ms a step, 2.10 times as fast as ddp (both predicted)" in text
    assert "median prediction error 10 %" in text
    assert "a remark" in text


def test_a_simulated_table_shows_ranges_and_no_training() -> None:
    stack = faster(loss=None, accuracy=None, at_equal_time=None, prediction_error=None, note="rests on made up links")
    stack["speedup"] |= {"lo": None, "hi": None, "n": 0, "distinguishable": None}
    document = results_of() | {
        "mode": "simulated", "ceiling": {"step_time_s": 0.01, "speedup": 2.05}, "stacks": {"ddp": stack, "dear": stack},
    }  # fmt: skip
    headers, rows = table_of(document)
    assert headers == ["stack", "step time", "range", "gain", "payload", "on the wire", ""]
    assert rows[1][:4] == ["dear", "20.5 ms", "20 ms - 21 ms", "1.35"]
    notes = footnotes(document)
    assert notes[-1] == "rests on made up links"
    assert any("nothing was run" in line for line in notes)


def test_next_steps_name_the_run_and_commands_that_work() -> None:
    document = results_of(**{"mg wfbp": faster()}) | {"run_dir": "runs/quick/x"}
    lines = next_steps(document, "quickstart")
    assert lines[1] == "run: runs/quick/x"
    assert "orch plan quickstart --diff ddp 'mg wfbp'" in lines[-1]
    assert next_steps(results_of(), "quickstart") == []
