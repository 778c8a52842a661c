"""Parts of a block that was cut are one block again."""

from orch.runtime.block import Block, joined


def test_parts_are_joined_in_order_and_weighted_by_steps() -> None:
    one = Block((3.0, 2.0), (0.1, 0.2), ("odd",), 90.0, peak_bytes=7)
    two = Block((1.0,), (0.3,), (), 30.0, peak_bytes=None)
    assert joined([one, two]) == Block((3.0, 2.0, 1.0), (0.1, 0.2, 0.3), ("odd",), 70.0, peak_bytes=7)
    assert joined([two]).peak_bytes is None
