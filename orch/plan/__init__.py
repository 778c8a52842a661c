"""The step plan as a value: tasks on streams, operations, the check that every pass must survive, and JSON."""

from orch.plan.buffers import ITEM_SIZE, Buffer, Group, Segment, Value
from orch.plan.check import PlanError, check
from orch.plan.diff import diff
from orch.plan.operations import (
    Aggregate,
    AllGather,
    AllGatherShards,
    AllReduce,
    Backward,
    Collective,
    Compute,
    Decode,
    Encode,
    Executor,
    Forward,
    Operation,
    ReduceScatter,
    Update,
)
from orch.plan.plan import COMPUTE, NET, Plan, Step, Task
from orch.plan.serialise import from_json, to_json

__all__ = [
    "COMPUTE",
    "ITEM_SIZE",
    "NET",
    "Aggregate",
    "AllGather",
    "AllGatherShards",
    "AllReduce",
    "Backward",
    "Buffer",
    "Collective",
    "Compute",
    "Decode",
    "Encode",
    "Executor",
    "Forward",
    "Group",
    "Operation",
    "Plan",
    "PlanError",
    "ReduceScatter",
    "Segment",
    "Step",
    "Task",
    "Update",
    "Value",
    "check",
    "diff",
    "from_json",
    "to_json",
]
