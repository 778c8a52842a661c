"""A RayJob for KubeRay: a Ray cluster of its own for one run, gone when the run is over.

Source of the fields: the custom resource definition of KubeRay 1.7.0 (ray.io/v1); a test holds the manifest against it.
"""

from __future__ import annotations

import importlib.metadata
import shlex
from typing import Any

from orch.errors import OrchError
from orch.launch.job import Job, known

SETTINGS = ("image", "claim", "memory", "namespace")
_RUNS = "/runs"
_HEAD = "127.0.0.1:6379"  # KubeRay leaves the port as Ray has it
_KEEP_S = 3600


def manifest(job: Job) -> dict[str, Any]:
    """Return the RayJob of a job. OrchError: a setting is unknown, or no image is named.

    Settings: `image` (with orch, the recipe and the project in it), `claim` (a volume claim that keeps the runs; without it
    they go with the head's pod), `memory` of a worker's pod, `namespace`.
    """
    settings = known(job, SETTINGS, "kuberay")
    if "image" not in settings:
        hint = "--job image=REGISTRY/IMAGE, with orch, the recipe and what it needs installed"
        raise OrchError("a RayJob needs an image to run", code="E727", hint=hint)
    # The entry point runs in the head's pod, where the control store is; several shells may read it on its way.
    entrypoint = shlex.join(("orch", *job.command, "--runs", _RUNS, "--on", _HEAD))
    metadata = {"name": f"orch-{job.name}", "labels": {"app.kubernetes.io/name": "orch"}}
    if "namespace" in settings:
        metadata["namespace"] = settings["namespace"]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": entrypoint,
            "submissionMode": "K8sJobMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEEP_S,
            "rayClusterSpec": {
                "rayVersion": _ray_version(),
                "authOptions": {"mode": "token"},
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _pod("head", job, head=True)},
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": job.nodes,
                        "minReplicas": job.nodes,
                        "maxReplicas": job.nodes,
                        "rayStartParams": {"num-cpus": str(job.per_node)},
                        "template": _pod("worker", job, head=False),
                    }
                ],
            },
        },
    }


def yaml_of(document: dict[str, Any]) -> str:
    """Return a manifest as YAML, ready for kubectl."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, width=120)
    return f"# kubectl create -f FILE; needs the KubeRay operator 1.5 or newer\n{text}"


def _pod(role: str, job: Job, *, head: bool) -> dict[str, Any]:
    wants: dict[str, str] = {"cpu": "1" if head else str(job.per_node)}
    if not head and "memory" in job.settings:
        wants["memory"] = job.settings["memory"]
    if not head and job.gpu:
        wants["nvidia.com/gpu"] = str(job.per_node)
    container: dict[str, Any] = {
        "name": f"ray-{role}",
        "image": job.settings["image"],
        "resources": {"requests": wants, "limits": dict(wants)},
    }
    spec: dict[str, Any] = {"containers": [container]}
    if head:  # the driver runs there and keeps the run; workers send it what they print
        claim = job.settings.get("claim")
        volume = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        container["volumeMounts"] = [{"name": "runs", "mountPath": _RUNS}]
        spec["volumes"] = [{"name": "runs", **volume}]
    return {"spec": spec}


def _ray_version() -> str:
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return "2.60.0"
