"""Figures of a sweep: the CSV says what the trials said, importance is worked out by hand, and all of it can be drawn."""

from __future__ import annotations

import csv
import io

import pytest

from orch.sweep import figures
from orch.sweep.figures import _measure, apart, draw, importance, number_of, texts, words
from orch.sweep.metrics import Objective, Sought
from orch.sweep.results import document
from orch.sweep.study import About, Record

ONE = Sought((Objective("step_time", False),))
TWO = Sought((Objective("step_time", False), Objective("payload", False)))


def record(number: int, time: float | None, stack: str, lr: float = 0.1) -> Record:
    values = {} if time is None else {"step_time": time, "payload": 10.0 - time}
    params = {"stack": stack, "train.lr": lr, **({"cap": f"{number}B"} if stack == "b" else {})}
    state = "complete" if time is not None else "infeasible"
    return Record(number, state, params, About(state, values, mode="simulated"))


RECORDS = [record(0, 3.0, "a"), record(1, 1.0, "b"), record(2, None, "a"), record(3, 3.0, "a"), record(4, 1.0, "b")]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_history_has_the_best_so_far() -> None:
    found = rows(texts(document("s", "simulated", RECORDS, ONE, {}))["history"])
    assert [row["best"] for row in found] == ["3.0", "1.0", "1.0", "1.0", "1.0"]
    assert [row["state"] for row in found][2] == "infeasible"
    assert found[2]["step_time_s"] == ""


def test_importance_is_the_share_that_a_setting_explains_alone() -> None:
    found = importance(document("s", "simulated", RECORDS, ONE, {}))
    assert found["stack"] == (pytest.approx(1.0), 4)
    assert "train.lr" not in found  # it took one value
    mixed = [record(0, 1.0, "a"), record(1, 3.0, "a"), record(2, 5.0, "b"), record(3, 7.0, "b")]
    share, trials = importance(document("s", "simulated", mixed, ONE, {}))["stack"]
    assert (share, trials) == (pytest.approx(16 / 20), 4)


def test_a_front_is_marked() -> None:
    found = rows(texts(document("s", "simulated", RECORDS, TWO, {}))["pareto"])
    assert [(row["trial"], row["front"]) for row in found] == [("0", "1"), ("1", "1"), ("3", "0"), ("4", "0")]
    assert "pareto" not in texts(document("s", "simulated", RECORDS, ONE, {}))


def test_a_sweep_without_a_complete_trial_has_no_figure() -> None:
    assert texts(document("s", "simulated", RECORDS[2:3], ONE, {})) == {}


def test_every_figure_is_drawn(tmp_path) -> None:
    pairs = [{"number": 0, "predicted": 2.5, "measured": 3.0}, {"number": 1, "predicted": 1.0, "measured": 1.0}]
    agreed = {"agreement": {"objective": "step_time_s", "trials": pairs}}
    made = texts(document("s", "measured", RECORDS, TWO, agreed))
    assert rows(made["agreement"])[0] == {"trial": "0", "predicted step_time_s": "2.5", "measured step_time_s": "3.0"}
    for name, text in made.items():
        (tmp_path / f"{name}.csv").write_text(text)
    written = draw(tmp_path, "s")
    assert {path.stem for path in written} == set(made)
    assert all(path.stat().st_size > 5000 for path in written)


@pytest.mark.parametrize(
    ("name", "values", "words_", "ticks"),
    [
        ("step_time_s", [0.013, 0.014], "step time", {"13 ms", "14 ms"}),
        ("step_time_s", [0.0134, 0.075], "step time", {"20 ms", "50 ms"}),
        ("payload_bytes", [2.0**20, 2.0**21], "payload", set()),
        ("throughput_samples_per_s", [100.0, 900.0], "throughput", {"200/s", "500/s"}),
        ("val_loss", [1.0, 1.5], "val loss", {"1", "1.5"}),
    ],
)
def test_an_axis_has_words_and_numbers_with_their_unit(
    name: str, values: list[float], words_: str, ticks: set[str]
) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot(values, values, "o")
    _measure(axes.yaxis, name, values)
    figure.canvas.draw() if hasattr(figure.canvas, "draw") else None
    found = {text.get_text() for text in axes.yaxis.get_ticklabels()}
    assert words(name) == words_
    assert ticks <= found
    assert not any("10^" in text for text in found)


def test_labels_of_an_axis_do_not_meet() -> None:
    places = {"1": 0.0, "2": 0.01, "5": 0.3, "6": 0.34, "9": 0.97, "10": 1.0}
    assert list(apart(places)) == ["1", "5", "10"]
    assert apart({"a": 0.0}) == {"a": 0.0}


@pytest.mark.parametrize(
    ("value", "number"), [(1, 1.0), ("64B", 64.0), ("1e-3s", 0.001), ("exact", None), (True, None), (None, None)]
)
def test_a_setting_as_a_number(value, number) -> None:
    assert number_of(value) == number


@pytest.mark.parametrize(
    ("values", "scale"), [([1.0, 4.9], "linear"), ([1.0, 2.0, 5.1], "log"), ([0.0, 9.0], "linear")]
)
def test_a_few_slow_trials_do_not_make_the_others_one_line(values: list[float], scale: str) -> None:
    assert figures._scale(values) == scale
