"""Loads of experts: what they come to, and sums over steps and ranks."""

from orch.models.load import Load, added


def test_an_even_load_is_one_and_one_expert_with_all_is_their_number() -> None:
    assert (Load((3, 3, 3)).imbalance, Load((9, 0, 0)).imbalance, Load((0, 0)).imbalance) == (1.0, 3.0, 1.0)
    assert (Load((3, 1), 4).drop_rate, Load((0, 0)).drop_rate) == (0.5, 0.0)


def test_loads_add_up_by_mixture() -> None:
    assert added([{"a": Load((1, 2), 3)}, {}, {"a": Load((10, 20)), "b": Load((5,), 1)}]) == {
        "a": Load((11, 22), 3),
        "b": Load((5,), 1),
    }
