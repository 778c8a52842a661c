"""What a cluster is and what its collectives cost: specifications and cost models, pure.

Names are found when they are asked for: who only validates a cluster file loads no cost model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch.cluster.basis import Bands, Basis
    from orch.cluster.build import load
    from orch.cluster.cluster import Cluster
    from orch.cluster.collectives import Level
    from orch.cluster.curves import Curve, Fastest
    from orch.cluster.device import Device
    from orch.cluster.link import FREE, Link, Links, Measured
    from orch.cluster.sharing import Overhead, Sharing
    from orch.cluster.span import Span
    from orch.cluster.spec import ClusterSpec

# Each in turn, until one has the name.
_MODULES = ("orch.cluster.link", "orch.cluster.cluster", "orch.cluster.build")

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


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                # Kept: some are asked for in the middle of what costs are made of.
                found = globals()[name] = getattr(module, name)
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
