"""What a recipe wants of whoever starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.launch import WAYS, job_of
from orch.recipe import load


def test_a_job_is_as_large_as_the_recipes_cluster() -> None:
    overrides = ["cluster.nodes=3", "name=My first_run"]
    job = job_of(
        load("resnet50-v100", overrides), "resnet50-v100", overrides, Path("/runs"), ["time=1:00:00", "gres=gpu:4"]
    )
    assert (job.nodes, job.per_node, job.gpu, job.name) == (3, 4, True, "my-first-run")
    assert job.command == ("run", "resnet50-v100", "cluster.nodes=3", "name=My first_run")
    assert job.settings == {"time": "1:00:00", "gres": "gpu:4"}


@pytest.mark.parametrize("text", ["time", "=1", "time=", "a b=1", "time=1\n2"])
def test_a_setting_is_a_key_and_a_value(text: str) -> None:
    with pytest.raises(OrchError, match="is no KEY=VALUE"):
        job_of(load("quickstart", []), "quickstart", [], Path("/runs"), [text])


def test_the_ways_that_submit() -> None:
    assert WAYS == ("slurm", "kuberay")
