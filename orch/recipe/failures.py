"""The `faults` of a recipe: failures that a run or a simulation is to go through."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from orch.plan.fault import Fault
from orch.recipe.section import Section
from orch.units import Seconds

_STEP = Field(ge=0, description="the step of a stack's training, counted from 0, at whose beginning it happens")
_STACK = Field(default=None, description="only in the training of this stack; default: in every stack's")
_NODE = Field(ge=0, description="the node, counted from 0")


class KillRank(Section):
    """A worker that is killed."""

    rank: Annotated[int, Field(ge=0)] = Field(description="the worker's number")
    step: int = _STEP
    stack: str | None = _STACK


class KillNode(Section):
    """A node of which every worker is killed."""

    node: int = _NODE
    step: int = _STEP
    stack: str | None = _STACK


class CutLink(Section):
    """A node that nothing reaches for a while; needs --on emulate."""

    node: int = _NODE
    step: int = _STEP
    lasts: Annotated[Seconds, Field(gt=0)] = Field(description="how long: 3s")
    stack: str | None = _STACK


class FaultEntry(Section):
    """Exactly one fault."""

    kill_rank: KillRank | None = Field(default=None, description="kill a worker: {rank: 2, step: 31}")
    kill_node: KillNode | None = Field(default=None, description="kill all workers of a node: {node: 1, step: 31}")
    cut_link: CutLink | None = Field(default=None, description="cut a node off: {node: 1, step: 31, lasts: 3s}")

    @model_validator(mode="after")
    def _one(self) -> FaultEntry:
        if len(self.model_fields_set) != 1:
            raise ValueError("must hold exactly one of kill_rank, kill_node, cut_link")
        return self

    @property
    def fault(self) -> Fault:
        """The fault as a value."""
        if self.kill_rank is not None:
            return Fault("kill-rank", self.kill_rank.rank, self.kill_rank.step, stack=self.kill_rank.stack)
        if self.kill_node is not None:
            return Fault("kill-node", self.kill_node.node, self.kill_node.step, stack=self.kill_node.stack)
        assert self.cut_link is not None
        return Fault("cut-link", self.cut_link.node, self.cut_link.step, self.cut_link.lasts, self.cut_link.stack)
