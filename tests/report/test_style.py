"""Units and colours."""

from __future__ import annotations

import pytest

from orch.report import style


@pytest.mark.parametrize(("seconds", "unit"), [(3.0, "s"), (0.5, "ms"), (0.001, "µs")])
def test_an_axis_of_time_has_readable_numbers(seconds: float, unit: str) -> None:
    scale, found = style.unit_of(seconds)
    assert found == unit
    assert 1 <= seconds * scale < 2000


def test_bytes_and_bits() -> None:
    assert style.bytes_unit(5 * 2**20)[1] == "MiB"
    assert style.bytes_unit(100)[1] == "B"
    assert [style.bits(value) for value in (1.27e12, 1e10, 2.5e8, 3e3, 5.0)] == [
        "1.27 Tbit/s",
        "10 Gbit/s",
        "250 Mbit/s",
        "3 kbit/s",
        "5 bit/s",
    ]


def test_a_stack_keeps_its_colour_and_two_streams_differ() -> None:
    assert style.colours(["a", "b", "a"]) == {"a": style.STACKS[0], "b": style.STACKS[1]}
    found = style.class_colours(["compute", "exposed net.inter", "exposed net.intra"])
    assert len(set(found.values())) == 3


def test_cells_are_numbers_or_nothing() -> None:
    rows = style.rows_of("a,b\n1.5,\n")
    assert (style.number(rows[0]["a"]), style.number(rows[0]["b"])) == (1.5, None)
