"""The benchmark of mixtures on links: its recipe is whole, and its bars say what was measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import bench_moe_links
from orch.experiment.predict import predict
from orch.recipe import load

OPTIONS = argparse.Namespace(
    cluster="emulated-4x200mbit",
    stacks=["pipemoe", "two-chunks", "fsmoe+int8"],
    hidden=256,
    layers=1,
    batch=256,
    blocks=4,
    steps=3,
    capacity=1.0,
)


def test_the_recipe_is_one_in_which_overlap_pays(tmp_path: Path) -> None:
    path = tmp_path / "moe.yaml"
    path.write_text(bench_moe_links.recipe(OPTIONS), encoding="utf-8")
    recipe = load(path)
    assert list(recipe.stacks) == ["naive", "pipemoe", "two-chunks", "fsmoe+int8"]
    assert predict(recipe).speedup("pipemoe") > bench_moe_links.FASTER


def stack(ratio: float, error: float = 0.0, *, lossless: bool = True) -> dict[str, Any]:
    return {
        "speedup": {"median": ratio, "lo": 0.9 * ratio, "hi": 1.1 * ratio}, "step_time_s": {"median": 1.0 / ratio},
        "predicted_step_time_s": (1.0 + error) / ratio, "prediction_error": error, "lossless": lossless,
        "payload_bytes_per_worker": 2048.0, "peak_memory_bytes": 1 << 20,
    }  # fmt: skip


def test_bars_speak_of_the_fastest_exact_schedule() -> None:
    stacks = {
        "naive": stack(1.0),
        "tutel": stack(1.2),
        "fsmoe": stack(1.4, 0.12),
        "fsmoe+int8": stack(1.9, lossless=False),
    }
    cell = {"cluster": "emulated-4x200mbit", "began": "now", "load": 0.1, "stacks": stacks}
    text, met = bench_moe_links.told(cell)
    assert not met
    assert "met    best exact schedule, fsmoe: 1.40 times as fast as naive [1.26, 1.54], bar 1.25" in text
    assert "MISSED its prediction is +12.0 % off, bar 10 %" in text
    assert "met    best schedule, fsmoe+int8: 1.90 times as fast as naive [1.71, 2.09], bar 1.25" in text
    assert any(line.split()[:2] == ["fsmoe+int8", "526"] and line.endswith("lossy") for line in text.splitlines())
    assert bench_moe_links.told(cell | {"stacks": stacks | {"fsmoe": stack(1.4, -0.04)}})[1]
