"""What a figure rests on: how it reads, which of two is weaker, how bands widen."""

import pytest

from orch.cluster.basis import Basis


@pytest.mark.parametrize(
    ("basis", "text"),
    [
        (Basis("measured"), "measured"),
        (Basis("fitted", 2.0), "fitted, extrapolated 2 times"),
        (Basis("nameplate", 47.683), "nameplate, extrapolated 47.7 times"),
    ],
)
def test_it_reads_well(basis, text):
    assert str(basis) == text


def test_a_band_widens_by_a_quarter_with_every_doubling():
    assert [Basis("fitted", times).widened(0.2) for times in (1, 2, 16)] == pytest.approx([0.2, 0.25, 0.4])
