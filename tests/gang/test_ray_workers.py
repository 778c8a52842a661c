"""A Ray of several nodes on this machine, unequal by their labels: joined by its address, each rank where it belongs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.gang import end_all, make_gang
from tests.gang import functions
from tests.gang.test_ray_local import temp  # noqa: F401 - a fixture

# Three nodes: two of one CPU, one of two; ended with its standard input.
NODES = """
import sys
from ray.cluster_utils import Cluster
options = dict(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=options | dict(labels={"kind": "old"}))
cluster.add_node(**options, labels={"kind": "new", "rack": "a"})
cluster.add_node(num_cpus=2, object_store_memory=80_000_000, labels={"kind": "new", "rack": "b"})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def nodes(temp: Path) -> Iterator[str]:  # noqa: F811
    end_all()
    (temp / "ray").mkdir()  # where this Ray leaves a mark that `ray.init` without an address would follow
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "TMPDIR": str(temp)}
    with (temp / "stderr").open("w") as stderr:
        cluster = subprocess.Popen(
            [sys.executable, "-c", NODES],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        assert cluster.stdout is not None
        address = next((line.strip() for line in cluster.stdout if ":" in line and " " not in line.strip()), "")
        assert address, (temp / "stderr").read_text()
        yield address
        end_all()
        cluster.communicate("", timeout=60)


@pytest.mark.slow
def test_ranks_go_to_the_nodes_whose_labels_the_cluster_names(nodes: str) -> None:
    old, new_a, new_b = {"kind": "old"}, {"kind": "new", "rack": "a"}, {"kind": "new", "rack": "b"}
    for order in ([{"rack": "b"}, old, {"rack": "a"}], [old, {"rack": "a"}, {"kind": "new", "rack": "b"}]):
        with make_gang(nodes, 3, per_node=1, labels=order) as gang:
            assert gang.call(functions.all_reduce) == [6.0] * 3
            carried = gang.call(functions.node_labels)
        assert carried == [next(one for one in (old, new_a, new_b) if want.items() <= one.items()) for want in order]
    expected = (
        r"^2 nodes are to carry kind=old; 1 of 3 does; ray start --labels kind=old, or change labels of the cluster"
    )
    with pytest.raises(OrchError, match=expected):
        make_gang(nodes, 2, per_node=1, labels=[old] * 2)
    with pytest.raises(
        OrchError, match=r"^4 workers want 2 nodes with 2 CPUs each; the cluster has 3 nodes with 2, 1, 1 CPUs"
    ):
        make_gang(nodes, 4, per_node=2)
