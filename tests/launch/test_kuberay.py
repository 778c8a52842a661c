"""The RayJob manifest, held against the part of KubeRay's own definition that it uses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orch.errors import OrchError
from orch.launch import Job, kuberay
from tests.launch.conftest import Said

SCHEMA = json.loads((Path(__file__).parent / "rayjob_schema.json").read_text(encoding="utf-8"))
ALL = {"image": "reg/orch:1", "claim": "results", "memory": "64Gi", "namespace": "team"}


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "name": "mine", "nodes": 3, "per_node": 4, "gpu": True, "command": ("run", "mine", "stacks.a=[dear, top-k]"),
        "runs": Path("runs"), "settings": {"image": "reg/orch:1"},
    }  # fmt: skip
    return Job(**(values | changes))


@pytest.mark.parametrize("settings", [{"image": "reg/orch:1"}, ALL])
@pytest.mark.parametrize("gpu", [False, True])
def test_the_manifest_is_what_kuberay_defines(settings: dict[str, str], gpu: bool) -> None:
    text = kuberay.yaml_of(kuberay.manifest(job(settings=settings, gpu=gpu)))
    jsonschema.validate(yaml.safe_load(text), SCHEMA)
    assert "&id" not in text


def test_the_schema_would_notice() -> None:
    right = kuberay.manifest(job(settings=ALL))
    for change in (
        lambda d: d["spec"].update(submisionMode="K8sJobMode"),
        lambda d: d["spec"].update(backoffLimit="0"),
        lambda d: d["spec"]["rayClusterSpec"].pop("headGroupSpec"),
        lambda d: d["spec"]["rayClusterSpec"]["authOptions"].update(mode="tokens"),
        lambda d: d["spec"]["rayClusterSpec"]["workerGroupSpecs"][0].pop("maxReplicas"),
        lambda d: d["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda d: d["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0].pop("name"),
        lambda d: d["metadata"].update(name="x" * 48),
    ):
        wrong = copy.deepcopy(right)
        change(wrong)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_it_asks_for_the_cluster_of_the_recipe() -> None:
    spec = kuberay.manifest(job(settings=ALL))["spec"]
    assert spec["entrypoint"] == "orch run mine 'stacks.a=[dear, top-k]' --runs /runs --on 127.0.0.1:6379"
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["replicas"], workers["rayStartParams"]) == (3, {"num-cpus": "4"})
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "64Gi", "nvidia.com/gpu": "4"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {
        "num-cpus": "0"
    }  # workers of the run never share the driver's pod
    (volume,) = cluster["headGroupSpec"]["template"]["spec"]["volumes"]
    assert volume == {"name": "runs", "persistentVolumeClaim": {"claimName": "results"}}
    assert cluster["authOptions"] == {"mode": "token"}


def test_what_is_missing_or_unknown_is_said() -> None:
    with pytest.raises(OrchError, match="a RayJob needs an image to run; --job image=REGISTRY/IMAGE"):
        kuberay.manifest(job(settings={}))
    with pytest.raises(
        OrchError, match=r"--job imgae: kuberay has no such setting; did you mean image\?; kuberay has image, claim"
    ):
        kuberay.manifest(job(settings={"imgae": "x"}))


def test_it_is_printed_and_never_submitted(orch: Callable[..., Said]) -> None:
    arguments = ["run", "quickstart", "--on", "kuberay", "--job", "image=reg/orch:1"]
    done = orch(*arguments, "--print")
    assert done.code == 0, done.err
    jsonschema.validate(yaml.safe_load(done.out), SCHEMA)
    refused = orch(*arguments)
    assert refused.code == 2
    assert refused.err.startswith("--on kuberay prints a manifest; submitting is kubectl's; add --print")
