"""Workloads draw the plain plan of a step: what must happen, and only the order that the data demands."""

from orch.workload.data_parallel import data_parallel, forward_reads

__all__ = ["data_parallel", "forward_reads"]
