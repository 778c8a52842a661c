"""Quantities: the unit is part of the value, SI in Python, refused when it is missing or could mean two things."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from orch.units import (
    BYTES,
    BYTES_PER_SECOND,
    FLOPS_PER_SECOND,
    SECONDS,
    SECONDS_PER_BYTE,
    Bytes,
    Dimension,
    Fraction,
    Quantity,
    Seconds,
    format_bytes,
    format_count,
    format_seconds,
    parse_fraction,
)

ALL = [BYTES, SECONDS, BYTES_PER_SECOND, SECONDS_PER_BYTE, FLOPS_PER_SECOND]


@pytest.mark.parametrize(
    ("dimension", "text", "value"),
    [
        (BYTES, "25MiB", 25 * 2**20),
        (BYTES, "1.5 GB", 1.5e9),
        (BYTES, "512B", 512),
        (BYTES, "1_000kB", 1e6),
        (SECONDS, "50us", 50e-6),
        (SECONDS, "50µs", 50e-6),
        (SECONDS, "50μs", 50e-6),
        (SECONDS, "2min", 120),
        (SECONDS, "1e-3s", 1e-3),
        (SECONDS, ".5ms", 0.5e-3),
        (BYTES_PER_SECOND, "200Mbit", 25e6),
        (BYTES_PER_SECOND, "200Mbit/s", 25e6),
        (BYTES_PER_SECOND, "12GB/s", 12e9),
        (SECONDS_PER_BYTE, "1.6ns/B", 1.6e-9),
        (FLOPS_PER_SECOND, "10TFLOP/s", 10e12),
    ],
)
def test_a_value_with_its_unit(dimension: Dimension, text: str, value: float) -> None:
    assert dimension.parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("dimension", "text", "message"),
    [
        (BYTES, 25, "25 is not a size; write a number with its unit, such as 25MiB"),
        (BYTES, "25", "25 has no unit; a size is written with one, such as 25MiB"),
        (BYTES, True, "true is not a size; write a number with its unit, such as 25MiB"),
        (BYTES, None, "nothing is not a size; write a number with its unit, such as 25MiB"),
        (BYTES, "", "'' is not a size; write a number with its unit, such as 25MiB"),
        (BYTES, "25Gb", "25Gb is ambiguous; write 25GB (bytes) or 25Gbit (bits)"),
        (BYTES, "25Mb", "25Mb is ambiguous; write 25MB (bytes) or 25Mbit (bits)"),
        (BYTES, "25mib", "'mib' is not a unit of a size; did you mean 25MiB?"),
        (BYTES, "25 meters", "'meters' is not a unit of a size; write for example 25MiB"),
        (BYTES, "MiB", "'MiB' is not a size; write a number with its unit, such as 25MiB"),
        (BYTES, "1e400MiB", "1e400MiB is too large for a size"),
        (BYTES, "-1MiB", "-1MiB is negative; a size is not"),
        (SECONDS, "5m", "5m is ambiguous; write 5ms (milliseconds) or 5min (minutes)"),
        (SECONDS, "5M", "5M is ambiguous; write 5ms (milliseconds) or 5min (minutes)"),
        (SECONDS, "5Gb", "'Gb' is not a unit of a time; write for example 50us"),
        (SECONDS, "nans", "'nans' is not a time; write a number with its unit, such as 50us"),
        (BYTES_PER_SECOND, "10Gbps", "10Gbps is ambiguous; write 10GB/s (bytes) or 10Gbit (bits)"),
        (BYTES_PER_SECOND, "10Gb/s", "10Gb/s is ambiguous; write 10GB/s (bytes) or 10Gbit (bits)"),
        (BYTES_PER_SECOND, "10GB", "10GB is an amount, not a rate; did you mean 10GB/s?"),
        (FLOPS_PER_SECOND, "10TFLOPS", "'TFLOPS' is not a unit of a compute rate; write for example 10TFLOP/s"),
    ],
)
def test_what_is_no_quantity_says_why(dimension: Dimension, text: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        dimension.parse(text)


@given(st.sampled_from(ALL), st.floats(1e-6, 1e9), st.data())
def test_any_number_with_any_unit_is_read(dimension: Dimension, number: float, data: st.DataObject) -> None:
    unit, factor = data.draw(st.sampled_from(sorted(dimension.units.items())))
    assert dimension.parse(f"{number!r}{unit}") == pytest.approx(number * factor, rel=1e-12)


@given(st.sampled_from(ALL), st.text(max_size=12))
def test_any_text_is_a_finite_number_or_a_sentence(dimension: Dimension, text: str) -> None:
    try:
        value = dimension.parse(text)
    except ValueError:
        return
    assert 0 <= value < math.inf


def test_reading_a_quantity_again_is_the_identity() -> None:
    value = Quantity(BYTES.parse("25MiB"))
    assert BYTES.parse(value) == value


@pytest.mark.parametrize(
    ("value", "fraction"),
    [(0.05, 0.05), ("5%", 0.05), ("0.05", 0.05), (1, 1.0), (0, 0.0), ("100%", 1.0), ("5 %", 0.05)],
)
def test_a_fraction(value: object, fraction: float) -> None:
    assert parse_fraction(value) == pytest.approx(fraction)


@pytest.mark.parametrize("value", [1.5, -0.1, "150%", True, "five", "", None, math.nan, math.inf, "nan", "%", "5"])
def test_what_is_no_fraction(value: object) -> None:
    with pytest.raises(ValueError, match="is not a fraction"):
        parse_fraction(value)


def test_fields_of_a_schema_read_units() -> None:
    class Link(BaseModel):
        latency: Seconds
        buffer: Bytes | None = None
        loss: Fraction = 0.0

    link = Link.model_validate({"latency": "50us", "buffer": "1KiB", "loss": "1%"})
    assert (link.latency, link.buffer, link.loss) == pytest.approx((50e-6, 1024.0, 0.01))
    with pytest.raises(ValidationError, match="5 is not a time"):
        Link.model_validate({"latency": 5})
    assert Link.model_json_schema()["properties"]["latency"]["examples"] == ["50us"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (format_seconds(0.0123), "12.3 ms"),
        (format_seconds(0.0), "0 s"),
        (format_seconds(1e-9), "1 ns"),
        (format_seconds(0.9999), "1 s"),
        (format_seconds(1234.0), "1234 s"),
        (format_seconds(-0.5), "-500 ms"),
        (format_seconds(math.inf), "inf s"),
        (format_bytes(25 * 2**20), "25 MiB"),
        (format_bytes(1000), "1000 B"),
        (format_bytes(1023.9), "1 KiB"),
        (format_bytes(0), "0 B"),
    ],
)
def test_quantities_for_people(text: str, shown: str) -> None:
    assert text == shown


@given(st.floats(1e-9, 1e15))
def test_what_is_shown_is_near_the_value(value: float) -> None:
    number, unit = format_seconds(value).split()
    assert float(number) * SECONDS.units[unit] == pytest.approx(value, rel=0.01)


def test_one_of_a_thing_is_one() -> None:
    assert [format_count(number, "worker") for number in (0, 1, 4)] == ["0 workers", "1 worker", "4 workers"]
