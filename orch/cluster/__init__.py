"""What a cluster is and what its collectives cost: specifications and cost models, pure."""

from orch.cluster.basis import Bands, Basis
from orch.cluster.cluster import Cluster
from orch.cluster.collectives import Level
from orch.cluster.curves import Curve, Fastest
from orch.cluster.device import Device
from orch.cluster.link import FREE, Link, Links, Measured
from orch.cluster.sharing import Overhead, Sharing
from orch.cluster.span import Span
from orch.cluster.spec import ClusterSpec, load

__all__ = [
    "FREE",
    "Bands",
    "Basis",
    "Cluster",
    "ClusterSpec",
    "Curve",
    "Device",
    "Fastest",
    "Level",
    "Link",
    "Links",
    "Measured",
    "Overhead",
    "Sharing",
    "Span",
    "load",
]
