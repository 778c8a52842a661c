"""JSON of ours: strict, truthful about NaN and infinities, and replaced in one step."""

import json
import math
import os
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.track import encoding

WORDS = st.sampled_from(["NaN", "Infinity", "-Infinity", "'NaN", "''-Infinity", "'", "nan", "'x"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | WORDS
TREES = st.recursive(SCALARS, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=4), t, max_size=3))


@given(TREES)
def test_everything_comes_back_and_any_json_reader_can_read_it(tree):
    text = encoding.dumps(tree)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    json.loads(text, parse_constant=refuse)
    assert encoding.loads(text) == tree


def test_nan_stays_nan_and_float_reads_it():
    text = encoding.dumps({"loss": math.nan, "best": -math.inf, "name": "NaN"})
    assert text == '{"loss": "NaN", "best": "-Infinity", "name": "\'NaN"}'
    assert math.isnan(encoding.loads(text)["loss"])
    assert float(json.loads(text)["best"]) == -math.inf


def test_values_of_other_kinds_become_data():
    numpy = pytest.importorskip("numpy")

    @dataclass
    class Pair:
        a: float
        b: tuple

    value = {1: Pair(numpy.float32(0.5), (numpy.int64(3), {"z", "a"})), "p": encoding.Path("x/y")}
    assert encoding.loads(encoding.dumps(value)) == {"1": {"a": 0.5, "b": [3, ["a", "z"]]}, "p": "x/y"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "results.json"
    encoding.write_json(target, {"a": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        encoding.write_json(target, {"a": 2})
    assert encoding.read_json(target) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"a": '])
def test_a_damaged_file_reads_as_empty(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    assert encoding.read_json(tmp_path / "x.json") == {}


def test_a_written_file_can_be_read_by_others(tmp_path):
    mask = os.umask(0o022)
    try:
        encoding.write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(mask)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_half_a_line_costs_no_other(tmp_path):
    path = tmp_path / "lines.jsonl"
    encoding.append_line(path, {"number": 0})
    with path.open("ab") as file:
        file.write('{"number": 1, "text": "ä'.encode()[:-1])  # a full disk cuts where it likes
    encoding.append_line(path, {"number": 2})
    assert [line["number"] for line in encoding.read_lines(path)] == [0, 2]
