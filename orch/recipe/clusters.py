"""A cluster file by itself, by name or by path, with the same messages as inside a recipe."""

from __future__ import annotations

from pathlib import Path

from orch import registry
from orch.cluster import Cluster
from orch.cluster.build import build
from orch.cluster.spec import ClusterSpec
from orch.recipe.faults import checked
from orch.recipe.references import resolve
from orch.recipe.source import read_file


def load_cluster(cluster: str) -> Cluster:
    """Return the cluster of that name (orch list clusters), or of the YAML file at that path. OrchError: it is none."""
    if cluster.endswith(registry.SUFFIXES) or "/" in cluster:
        path = registry.expanded(cluster)
    else:
        path = registry.find_file("clusters", cluster)
    spec: ClusterSpec = checked(ClusterSpec.model_validate, resolve(read_file(Path(path))), (), ClusterSpec)
    return build(spec, Path(path).stem)
