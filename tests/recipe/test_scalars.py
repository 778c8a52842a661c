"""The one typing rule: what an unquoted word means, in files and on the command line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.recipe.scalars import read_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Numbers that YAML 1.1 readers take as text.
        ("1e-3", 1e-3), ("1E-5", 1e-5), ("1e3", 1000.0), ("6.02e+23", 6.02e23), (".5", 0.5), ("5.", 5.0), ("-.5e1", -5.0),
        # Whole numbers.
        ("0", 0), ("-7", -7), ("+7", 7), ("1_000", 1000), ("0x10", 16), ("0o17", 15), ("0b101", 5), ("-0x1F", -31),
        # Two readers, two values: so these are text.
        ("010", "010"), ("-010", "-010"), ("00", "00"), ("01.5", "01.5"), ("0_1", "0_1"), ("1__0", "1__0"), ("_1", "_1"),
        # YAML 1.1's surprises are text.
        ("yes", "yes"), ("No", "No"), ("on", "on"), ("OFF", "OFF"), ("y", "y"), ("n", "n"), ("NO", "NO"), ("True", "True"),
        ("TRUE", "TRUE"), ("False", "False"), ("None", "None"), ("Null", "Null"), ("12:30:45", "12:30:45"), ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"), ("2026-01-01", "2026-01-01"), ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
        ("=", "="), ("<<", "<<"), ("1.2.3", "1.2.3"), ("1e", "1e"), ("e3", "e3"), ("0x", "0x"), ("0xg", "0xg"), ("1,000", "1,000"),
        ("nan", "nan"), ("inf", "inf"), ("NaN", "NaN"), ("Infinity", "Infinity"), ("+-1", "+-1"), ("1e1e1", "1e1e1"),
        ("\u0661", "\u0661"), ("1\u0660", "1\u0660"), ("25MiB", "25MiB"), ("5%", "5%"),
        # Words of YAML 1.2.
        ("true", True), ("false", False), ("null", None), ("~", None), ("", None),
        (".inf", math.inf), ("-.inf", -math.inf), ("+.INF", math.inf),
        ("1.10", 1.1),
    ],
)  # fmt: skip
def test_what_a_word_means(text: str, value: object) -> None:
    read = read_scalar(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_not_a_number(text: str) -> None:
    value = read_scalar(text)
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e400", "1e400 is larger than any number orch can hold"),
        ("-1e999", "-1e999 is larger than"),
        ("1e-400", "1e-400 is smaller than any number orch can hold"),
        ("9" * 500, "is a number of 500 characters, more than orch can hold"),
        ("9223372036854775808", "is larger than any whole number orch can hold"),
        ("-0x8000_0000_0000_0000", "is larger than any whole number"),
        ("9" * 390, "is larger than any whole number"),
        ("9" * 5000, "is a number of 5000 characters"),
        ("9" * 350 + ".5", "is larger than"),
    ],
)
def test_a_number_that_would_change_silently_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_scalar(text)


def test_zero_may_be_written_with_any_exponent() -> None:
    assert (read_scalar("0e-999"), read_scalar("0.000e5")) == (0.0, 0.0)


@given(st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1))
def test_every_whole_number_is_itself(value: int) -> None:
    assert read_scalar(str(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_itself(value: float) -> None:
    read = read_scalar(repr(value))
    assert isinstance(read, float)
    assert read == value


@given(st.text(max_size=20))
def test_any_text_is_text_or_a_value_or_a_sentence(text: str) -> None:
    try:
        value = read_scalar(text)
    except ValueError:
        return
    assert value is None or isinstance(value, (str, int, float, bool))
    assert not isinstance(value, str) or value == text
