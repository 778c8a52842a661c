"""Workloads draw the plain plan of a step: what must happen, and only the order that the data demands."""

from orch.workload.data_parallel import data_parallel, forward_reads, retimed, without_peers
from orch.workload.layout import Layout
from orch.workload.mixture import mixture_training

__all__ = ["Layout", "data_parallel", "forward_reads", "mixture_training", "retimed", "without_peers"]
