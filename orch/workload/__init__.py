"""Workloads draw the plain plan of a step: what must happen, and only the order that the data demands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orch.workload.data_parallel import data_parallel, forward_reads, retimed, without_peers
from orch.workload.layout import Layout

if TYPE_CHECKING:
    from orch.workload.mixture import mixture_training
    from orch.workload.pipeline import cuts_of, pipeline_training

__all__ = [
    "Layout",
    "cuts_of",
    "data_parallel",
    "forward_reads",
    "mixture_training",
    "pipeline_training",
    "retimed",
    "without_peers",
]


def __getattr__(name: str) -> Any:
    if name == "mixture_training":  # loaded when a mixture is drawn
        from orch.workload.mixture import mixture_training

        return mixture_training
    if name in ("cuts_of", "pipeline_training"):
        from orch.workload import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
