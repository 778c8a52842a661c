"""Grids: all layers at once are what each is by itself, whoever plans; what does not fit is left out; claims say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orch.errors import OrchError
from orch.experiment.predict import described, plan_stack
from orch.recipe import load as load_recipe
from orch.reproduce.document import reproduce
from orch.reproduce.grid import DRAWS, _Grid, evaluate_grid
from orch.reproduce.paper import Paper, load
from orch.simulate import simulate

RECIPE = """\
orch: 1
model: {use: moe-layers, num_layers: 2, seq_len: 64, hidden: 16, inner: 32, experts: 8, top_k: 2, capacity: 1.0, attention: true}
train: {batch_per_worker: 2, optimizer: {sgd: {lr: 0.1}}}
cluster:
  nodes: 2
  devices_per_node: 4
  device: {kind: gpu, name: none, rate: {fp32: 1GFLOP/s}, launch: 10us, memory_bandwidth: 1GB/s, memory: 500KB, source: an example}
  links:
    intra: {alpha: 5us, bandwidth: 100MB/s, source: an example}
    inter: {alpha: 20us, bandwidth: 50MB/s, source: an example}
stacks:
  whole: [naive-moe, wfbp]
  tutel: [tutel, wfbp]
  pipemoe: [pipemoe, s-sgd]
  schemoe: [schemoe, int8-rows, wfbp]
  two-level: {two-level-a2a: {}, pipemoe: {degree: 2}, wfbp: {}}
  fsmoe: [fsmoe, wfbp]
  bucketed: {bucketed: {cap: 2KiB, first_bucket: 1KiB}, naive-moe: {}}
baseline: whole
"""
PAPER = """\
orch: 1
paper: layers
title: A paper about layers
venue: nowhere
experiments:
  grid:
    recipe: recipe.yaml
    grid:
      source: guess
      where: made up
      axes:
        train.batch_per_worker: [1, 4]
        nothing: [{}, {}]
        model.hidden: [8, 64]
        model.capacity: [1.0, null]
claims:
  - {id: c1, says: faster, metric: speedup, of: pipemoe, over: whole, in: grid, aggregate: mean, published: 1.5, source: text}
  - {id: c2, says: always, metric: holds, of: pipemoe, over: whole, in: grid, aggregate: any, source: text}
"""
STACKS = ("bucketed", "fsmoe", "pipemoe", "schemoe", "tutel", "two-level", "whole")


@pytest.fixture
def paper(tmp_path: Path) -> Callable[..., Paper]:
    def written(*pairs: tuple[str, str]) -> Paper:
        text, recipe = PAPER, RECIPE
        for old, new in pairs:
            assert old in text or old in recipe
            text, recipe = text.replace(old, new), recipe.replace(old, new)
        (tmp_path / "recipe.yaml").write_text(recipe)
        (tmp_path / "layers.yaml").write_text(text)
        return load(tmp_path / "layers.yaml")

    return written


def test_every_layer_is_what_it_is_by_itself(paper: Callable[..., Paper]) -> None:
    found = evaluate_grid(paper(), "grid", STACKS)
    assert [draws.cell.name for draws in found] == [f"layer {number}" for number in range(16)]
    path = Path(paper().path.parent / "recipe.yaml")
    for number in (0, 7, 14):
        draws = found[number]
        recipe = load_recipe(
            path, [s.text.replace("None", "null").replace("F", "f").replace("T", "t") for s in draws.cell.settings]
        )
        for name in STACKS:
            plan, _ = plan_stack(recipe, name, described(recipe), timed=False)
            alone = simulate(plan, recipe.cluster).step_time_s
            step_s = draws.stacks[name].step_s
            assert step_s.shape == (DRAWS,)
            # Of a band around nominal costs; equal cuts of 840 positions stand for cuts of a few that differ by one.
            assert np.median(step_s) == pytest.approx(alone, rel=0.12), name
            assert step_s.min() < np.median(step_s) < step_s.max()


def test_planning_together_and_one_by_one_give_the_same(
    paper: Callable[..., Paper], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = evaluate_grid(paper(), "grid", ["tutel", "pipemoe"])

    def refuse(*_: object) -> None:
        raise ValueError("the truth value of an array is ambiguous")

    monkeypatch.setattr(_Grid, "_together", refuse)
    apart = evaluate_grid(paper(), "grid", ["tutel", "pipemoe"])
    for one, other in zip(together, apart, strict=True):
        for name in one.stacks:
            assert one.stacks[name].step_s == pytest.approx(other.stacks[name].step_s, rel=0.06)
            assert one.stacks[name].payload_bytes == pytest.approx(other.stacks[name].payload_bytes, rel=0.01)


def test_what_does_not_fit_is_left_out_and_claims_say_how_many_layers_they_are_about(
    paper: Callable[..., Paper],
) -> None:
    fits = paper(("      where: made up\n", "      where: made up\n      fits: true\n"))
    result = reproduce(fits)
    (first,) = result.claims[0].cells
    assert first.name.startswith("mean of 8 layers (from ")
    assert result.claims[1].cells[0].name == "any of 8 layers, 100% of which it holds for"
    nothing = paper(
        ("      where: made up\n", "      where: made up\n      fits: true\n"), ("memory: 500KB", "memory: 1KB")
    )
    with pytest.raises(OrchError, match="no layer of grid fits into memory"):
        reproduce(nothing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((", aggregate: mean", ""), "claim 'c1' is about every cell of a grid"),
        (
            ("metric: speedup", "metric: exposed_time"),
            "claim 'c1' asks for exposed_time, which is not computed on grids",
        ),
        (("    grid:\n", "    cells: {table: t}\n    grid:\n"), "has cells of a table and a grid"),
        (("model.hidden: [8, 64]", "model.width: [8, 64]"), "model.width"),
        (("model.hidden: [8, 64]", "model.hidden: [wide]"), r"layers.yaml:\d+:\d+: .*hidden"),
        (("model.hidden: [8, 64]", "model.hidden: [[8]]"), r"layers.yaml:\d+:\d+: .*hidden"),
        (("batch_per_worker: [1, 4]", "batch_per_worker: [1, 1.5]"), r"batch_per_worker=1.5: must be a whole number"),
        (
            ("batch_per_worker: [1, 4]", "batch_per_worker: [0]"),
            r"layers.yaml:\d+:\d+: .*must be a whole number, at least 1",
        ),
        (("batch_per_worker: [1, 4]", "batch_per_worker: [true, two]"), "must be a whole number"),
        (("nothing: [{}, {}]", f"nothing: {[1] * 5001}"), "the grid has 40,008 cells; at most 20,000 are run"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused(
    paper: Callable[..., Paper], change: tuple[str, str], message: str
) -> None:
    with pytest.raises(OrchError, match=message):
        reproduce(paper(change))
