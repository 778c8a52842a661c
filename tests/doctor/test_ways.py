"""Which values of --on work here."""

from __future__ import annotations

import pytest

from orch.doctor import ways as module
from orch.doctor.network import Shaping
from orch.doctor.software import Loaded
from orch.doctor.ways import ways
from orch.launch import WAYS as SUBMITTED
from orch.recipe.schema import WAYS

HERE = Loaded("torch", {}), Loaded("ray", {})


def test_every_way_that_a_recipe_may_name_is_judged() -> None:
    assert [way.name for way in ways(*HERE, Shaping(None))] == [*WAYS, *SUBMITTED, "ADDRESS"]


def test_without_ray_only_what_needs_none_works() -> None:
    found = {way.name: way for way in ways(HERE[0], Loaded("ray", {}, "not installed"), Shaping(None))}
    assert {name for name, way in found.items() if way.works and name not in ("slurm", "kuberay")} == {
        "inline", "processes", "torchrun",
    }  # fmt: skip
    assert (found["local"].about, found["local"].fix) == ("ray: not installed", "pip install 'orch[run]'")


def test_without_torch_no_worker_can_be_made_here() -> None:
    found = ways(Loaded("torch", {}, "not installed"), HERE[1], Shaping(None))
    assert not any(way.works for way in found if way.name not in ("slurm", "kuberay"))


def test_emulation_says_what_is_missing() -> None:
    assert module._emulate(Shaping(("no tc", "apt-get install iproute2"))) == module.Way(
        "emulate", False, "no tc", "apt-get install iproute2"
    )
    assert module._emulate(Shaping(None, ("delay",))) is None


def test_what_cannot_be_submitted_can_still_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    way = module._submits("slurm", "sbatch")
    assert way is not None
    assert way.about == "no sbatch here: --print shows what would be submitted"
