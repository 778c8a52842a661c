"""The step plan as a value: tasks on streams, operations, the check that every pass must survive, and JSON."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    Fixed,
    Forward,
    Operation,
    ReduceScatter,
    Update,
)
from orch.plan.plan import COMPUTE, NET, Plan, Step, Task
from orch.plan.serialise import from_json, to_json

if TYPE_CHECKING:
    from orch.plan.chain import Chain, Chained, bounds
    from orch.plan.chaining import chained
    from orch.plan.chunk import Chunk
    from orch.plan.crossing import COUNTS, RELAYED, Crossing, cells, crossings, cut_crossings, recut
    from orch.plan.dense import SAMPLES, TOKENS, Attend, AttendBackward, Gate, GateBackward
    from orch.plan.experts import (
        ACROSS,
        FAR,
        INSIDE,
        NEAR,
        WHOLE,
        AllToAll,
        Expert,
        ExpertBackward,
        GatherRows,
        Order,
        OrderBackward,
        PackRows,
        RecodeRows,
        Restore,
        RestoreBackward,
        Rows,
        ScatterRows,
        UnpackRows,
    )
    from orch.plan.packed import SIZES, RowSizes
    from orch.plan.shadows import AddShadows, ReturnGradients, ShadowBackward, ShadowExperts, ShareExpert
    from orch.plan.sharing import Join, Meet, Project, SumRows, meeting

# Only plans of mixtures need these modules: they are loaded when a name of theirs is asked for.
_MIXTURES = (
    "orch.plan.crossing",
    "orch.plan.experts",
    "orch.plan.chunk",
    "orch.plan.dense",
    "orch.plan.chain",
    "orch.plan.chaining",
    "orch.plan.packed",
    "orch.plan.shadows",
    "orch.plan.sharing",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, _MIXTURES):
            if hasattr(module, name):
                # Kept: some are asked for in the middle of what costs are made of.
                found = globals()[name] = getattr(module, name)
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ACROSS",
    "COMPUTE",
    "COUNTS",
    "FAR",
    "INSIDE",
    "ITEM_SIZE",
    "NEAR",
    "NET",
    "RELAYED",
    "SAMPLES",
    "SIZES",
    "TOKENS",
    "WHOLE",
    "AddShadows",
    "Aggregate",
    "AllGather",
    "AllGatherShards",
    "AllReduce",
    "AllToAll",
    "Attend",
    "AttendBackward",
    "Backward",
    "Buffer",
    "Chain",
    "Chained",
    "Chunk",
    "Collective",
    "Compute",
    "Crossing",
    "Decode",
    "Encode",
    "Executor",
    "Expert",
    "ExpertBackward",
    "Fixed",
    "Forward",
    "Gate",
    "GateBackward",
    "GatherRows",
    "Group",
    "Join",
    "Meet",
    "Operation",
    "Order",
    "OrderBackward",
    "PackRows",
    "Plan",
    "PlanError",
    "Project",
    "RecodeRows",
    "ReduceScatter",
    "Restore",
    "RestoreBackward",
    "ReturnGradients",
    "RowSizes",
    "Rows",
    "ScatterRows",
    "Segment",
    "ShadowBackward",
    "ShadowExperts",
    "ShareExpert",
    "Step",
    "SumRows",
    "Task",
    "UnpackRows",
    "Update",
    "Value",
    "bounds",
    "cells",
    "chained",
    "check",
    "crossings",
    "cut_crossings",
    "diff",
    "from_json",
    "meeting",
    "recut",
    "to_json",
]
