"""The link benchmark: its recipes are whole, its cells are found again, its bars say what was measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_links
from orch.recipe import load

OPTIONS = argparse.Namespace(blocks=6, steps=10)


@pytest.mark.parametrize("model", bench_links.MODELS)
def test_every_recipe_is_one_that_orch_accepts(model: str, tmp_path: Path) -> None:
    for half, stacks in bench_links.STACKS.items():
        path = tmp_path / f"{half}.yaml"
        path.write_text(bench_links.recipe("emulated-4x200mbit", model, stacks, OPTIONS), encoding="utf-8")
        assert list(load(path).stacks) == list(stacks)


def stack(ratio: float, *, lossless: bool = True, reached: float | None = 2.0) -> dict[str, Any]:
    return {
        "speedup": {"median": ratio, "lo": 0.9 * ratio, "hi": 1.1 * ratio}, "step_time_s": {"median": 0.1 / ratio},
        "predicted_step_time_s": 0.1, "prediction_error": 0.0, "time_to_target_s": reached,
        "payload_bytes_per_worker": 2048.0, "lossless": lossless,
    }  # fmt: skip


def cell(model: str, half: str, **stacks: dict[str, Any]) -> bench_links.Cell:
    about = {"cluster": "emulated-4x200mbit", "model": model, "half": half, "crashed": {}, "load": 1.0, "began": "now"}
    return about | {"blocks": 6, "steps": 10, "stacks": {name.replace("_", "-"): one for name, one in stacks.items()}}


def test_a_cell_that_is_done_is_found_again_and_half_a_line_is_not(tmp_path: Path) -> None:
    done = cell("few-large", "lossy", ddp=stack(1.0))
    other = done | {"model": "transformer", "steps": 99}
    path = tmp_path / "kept.jsonl"
    assert bench_links.kept(path, OPTIONS) == {}
    path.write_text("\n".join([json.dumps(done), json.dumps(other), '{"cluster": "emul']), encoding="utf-8")
    assert bench_links.kept(path, OPTIONS) == {("emulated-4x200mbit", "few-large", "lossy"): done}


def test_bars_say_what_was_measured() -> None:
    lossless = cell("few-large", "lossless", ddp=stack(1.0), bucketed=stack(0.95), dear=stack(1.2))
    lossy = cell("few-large", "lossy", ddp=stack(1.0), acp_sgd=stack(9.0, lossless=False, reached=None))
    text, met = bench_links.told({(one["cluster"], one["model"], one["half"]): one for one in (lossless, lossy)}, 18)
    assert not met
    assert "MISSED few-large on emulated-4x200mbit: bucketed 1.053 of ddp [0.957, 1.170], bar 1.03" in text
    assert "met    few-large on emulated-4x200mbit: best lossless stack, dear, 1.20 times as fast as ddp, bar 1" in text
    assert "acp-sgd 9.00 times as fast a step, bar 4; to the loss: acp-sgd never, ddp 2.00 s" in text
    assert text.endswith("2 cells of 18")
