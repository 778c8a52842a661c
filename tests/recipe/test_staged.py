"""Stages of a pipeline in a recipe: what they mean, and each way in which they cannot be had, at its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orch.errors import OrchError
from orch.recipe import load

MLP = ("model={use: mlp, widths: [64, 64, 64]}",)
STACKS = ("stacks={gpipe: [wfbp]}", "baseline=gpipe")
STAGES = (*MLP, *STACKS)


def test_neighbours_hold_a_stage_each_and_micro_batches_are_as_many(tmp_path: Path) -> None:
    recipe = load("quickstart", [*STAGES, "parallel={pipeline: 2}"])
    layout = recipe.layout
    assert [cut.modules for cut in layout.cuts] == [("hidden.0", "hidden.1"), ("hidden.2", "head")]
    assert (layout.micro_batches, layout.readers) == (2, 2)
    assert load("quickstart", [*STAGES, "parallel={pipeline: 1}"]).layout.cuts == ()
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(recipe.resolved()), encoding="utf-8")
    assert load(again).layout == layout
    whole = load(
        "quickstart",
        [*STAGES, "parallel={pipeline: 4, micro_batches: 8}", "train={global_batch: 32, optimizer: {sgd: {lr: 0.1}}}"],
    )
    assert (whole.batch_per_worker("gpipe"), whole.layout.micro_batches) == (32, 8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["parallel={pipeline: 3}"], "override 4: parallel={pipeline: 3}: a pipeline of 3 stages does not fill 4 ranks"),
        (["parallel={pipeline: 8}"], "model mlp has 4 parts, which make no 8 stages; parallel.pipeline=4 at most"),
        (["parallel={pipeline: 2, tensor: 2}"], "parallel.tensor does not go together with stages of a pipeline"),
        (["parallel={micro_batches: 2}"], "parallel.micro_batches without stages for them to go through"),
        (["parallel={pipline: 2}"], "unknown key 'pipline' in parallel; did you mean pipeline?"),
        (["parallel={pipeline: 2, micro_batches: 5}"], "quickstart.yaml:7:21: a batch of 32 makes no 5 micro-batches of one size"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_where_it_is_written(overrides: list[str], message: str) -> None:
    with pytest.raises(OrchError) as caught:
        load("quickstart", [*STAGES, *overrides])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*MLP, "stacks={gpipe: [dear]}"], "'dear' is not for the stages of a pipeline; those that are: bucketed"),
        ([*MLP, "stacks={gpipe: [torch-ddp]}"], "'torch-ddp' is not for the stages of a pipeline"),
        (["model=gpt2", "data=null", STACKS[0]], "model gpt2 is not parts one after another that could be stages"),
        (["model=char-moe", "data=pydoc_text", STACKS[0]], "stages of a pipeline and experts do not go together yet"),
    ],
)
def test_models_and_techniques_that_are_not_for_stages_are_named(overrides: list[str], message: str) -> None:
    with pytest.raises(OrchError) as caught:
        load("quickstart", [*overrides, "baseline=gpipe", "parallel={pipeline: 2}"])
    assert message in str(caught.value)
