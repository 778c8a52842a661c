"""Loads of experts as figures of a run."""

from orch.experiment import expert_load
from orch.models.load import Load
from orch.track.steps import Value

LOADS = {"blocks.1.moe": Load((6, 2, 0), 2), "blocks.3.moe": Load((1, 1, 1))}


def test_what_is_written_is_read_again_beside_other_figures() -> None:
    values = [
        *expert_load.to_values(4, 0.5, LOADS),
        Value(4, 0.5, "val_loss", 1.0),
        *expert_load.to_values(8, 1.0, {"blocks.1.moe": Load((0, 0, 8))}),
    ]
    assert expert_load.from_values(values) == [(4, 0.5, LOADS), (8, 1.0, {"blocks.1.moe": Load((0, 0, 8))})]
    named = {value.name: value.value for value in values[:12]}
    assert named["load_imbalance.blocks.1.moe"] == 2.25
    assert named["drop_rate.blocks.1.moe"] == 0.2


def test_the_figure_has_shares_and_the_document_the_last_block() -> None:
    loads = [(4, 0.5, LOADS), (8, 1.0, {"blocks.1.moe": Load((0, 0, 8))})]
    rows = list(expert_load.rows_of("naive", 3, loads))
    assert rows[0] == ("naive", 3, "blocks.1.moe", 4, 0.5, 0, 0.75, 2.25, 0.2)
    assert len(rows) == 9
    assert expert_load.summary(loads) == {"blocks.1.moe": {"load_imbalance": 3.0, "drop_rate": 0.0}}
    assert expert_load.summary([]) == {}
