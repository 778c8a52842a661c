"""Workers killed while models are shared out over them, by heads, experts or chains of layers: the same parameters. Long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.test_kills import orch, prints_of
from tests.runtime.test_keep import check_shared

pytestmark = pytest.mark.long
RECIPE = """\
orch: 1
name: shared
model: {use: char-moe, experts: 4, hidden: 32, num_layers: 4, seq_len: 16}
data: pydoc_text
train: {batch_per_worker: 4, optimizer: {adamw: {lr: 2e-3}}, checkpoint: {every: 4}}
cluster: {use: local-4, devices_per_node: WORLD}
parallel: {tensor: SHARERS}
stacks:
  naive: [naive-moe]
  mast: {mast: {degree_dense: 4, degree: 2, degree_dense_backward: 2, degree_backward: 4, order: default}, dear: {}}
  sp-moe: {sp-moe: {degree_dense: 4, degree: 2, degree_dense_backward: 2, degree_backward: 4, policy: fifo}}
  MORE
baseline: naive
measure: {blocks: 2, steps: 4, warmup: 2}
"""
PARM = "s1: {parm: {schedule: s1}, wfbp: {}}\n  s2: {parm: {schedule: s2, gathers: 2}, acp-sgd: {}}"


@pytest.mark.parametrize(("world", "sharers"), [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
def test_a_killed_worker_changes_no_parameter(tmp_path: Path, world: int, sharers: int) -> None:
    """What all ranks hold is compared; a step later it hangs on every expert and every head. Degrees are given: those chosen by
    what each run measures would add gradients up in other parts.
    """
    text = RECIPE.replace("WORLD", str(world)).replace("SHARERS", str(sharers))
    recipe = tmp_path / "shared.yaml"
    recipe.write_text(
        text.replace("MORE", PARM if sharers > 1 else "pipemoe: {pipemoe: {degree: 3, degree_backward: 2}}"),
        encoding="utf-8",
    )
    whole = prints_of(orch(recipe, tmp_path / "whole", "processes"))
    killed = orch(recipe, tmp_path / "killed", "processes", f"faults=[{{kill_rank: {{rank: {world - 1}, step: 6}}}}]")
    assert prints_of(killed) == whole
    assert killed.stderr.count("making the gang anew") == len(whole)


def test_four_ranks_that_hold_different_parts_go_on_bit_for_bit(tmp_path: Path) -> None:
    check_shared(4, tmp_path)
