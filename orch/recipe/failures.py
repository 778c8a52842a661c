"""The `faults` of a recipe: failures that a run or a simulation is to go through."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from orch.plan.fault import Fault
from orch.recipe.section import Section
from orch.units import BytesPerSecond, Fraction, Seconds

_STEP = Field(ge=0, description="the step of a stack's training, counted from 0, at whose beginning it happens")
_STACK = Field(default=None, description="only in the training of this stack; default: in every stack's")
_NODE = Field(ge=0, description="the node, counted from 0")
_FROM = Field(ge=0, description="the step of a stack's training, counted from 0, from whose beginning on it holds")
_UNTIL = Field(
    default=None, ge=1, description="the step at whose beginning it is over; default: the end of the training"
)
Rate = Annotated[BytesPerSecond, Field(gt=0)]


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


class _Lasting(Section):
    """What holds over some steps of a training, and is taken back between them and what other stacks train."""

    node: int = _NODE
    step: int = _FROM
    until: int | None = _UNTIL
    stack: str | None = _STACK

    @model_validator(mode="after")
    def _some_steps(self) -> Self:
        if self.until is not None and self.until <= self.step:
            raise ValueError(f"is over before it begins: until {self.until} is not above step {self.step}")
        return self


class SlowNode(_Lasting):
    """A node whose CPU is held back; needs --on emulate."""

    by: Annotated[float, Field(gt=1)] = Field(description="how many times as long its computing takes")


class DropRate(_Lasting):
    """A node of which packets are lost; needs --on emulate and a kernel with netem."""

    share: Annotated[Fraction, Field(gt=0, lt=1)] = Field(description="share of the packets it sends that are lost: 1%")


class LinkRate(_Lasting):
    """A node whose link has another rate; needs --on emulate."""

    bandwidth: Rate | None = Field(default=None, description="rate of its link in both directions")
    egress: Rate | None = Field(default=None, description="rate at which it sends")
    ingress: Rate | None = Field(default=None, description="rate at which it receives")

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.bandwidth is None) == (self.egress is None and self.ingress is None):
            raise ValueError("must hold bandwidth, or egress, ingress or both")
        return self


class FaultEntry(Section):
    """Exactly one fault."""

    kill_rank: KillRank | None = Field(default=None, description="kill a worker: {rank: 2, step: 31}")
    kill_node: KillNode | None = Field(default=None, description="kill all workers of a node: {node: 1, step: 31}")
    cut_link: CutLink | None = Field(default=None, description="cut a node off: {node: 1, step: 31, lasts: 3s}")
    slow_node: SlowNode | None = Field(
        default=None, description="hold a node's CPU back: {node: 3, by: 2, step: 20, until: 40}"
    )
    drop_rate: DropRate | None = Field(
        default=None, description="lose a share of a node's packets: {node: 1, share: 1%, step: 20, until: 40}"
    )
    link_rate: LinkRate | None = Field(
        default=None, description="change a node's rates: {node: 1, bandwidth: 20Mbit, step: 20, until: 40}"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"must hold exactly one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def fault(self) -> Fault:
        """The fault as a value."""
        if self.kill_rank is not None:
            return Fault("kill-rank", self.kill_rank.rank, self.kill_rank.step, stack=self.kill_rank.stack)
        if self.kill_node is not None:
            return Fault("kill-node", self.kill_node.node, self.kill_node.step, stack=self.kill_node.stack)
        if self.cut_link is not None:
            return Fault("cut-link", self.cut_link.node, self.cut_link.step, self.cut_link.lasts, self.cut_link.stack)
        if self.slow_node is not None:
            one = self.slow_node
            return Fault("slow-node", one.node, one.step, stack=one.stack, until=one.until, amount=one.by)
        if self.drop_rate is not None:
            lossy = self.drop_rate
            return Fault("drop-rate", lossy.node, lossy.step, stack=lossy.stack, until=lossy.until, amount=lossy.share)
        rates = self.link_rate
        assert rates is not None
        return Fault(
            "link-rate",
            rates.node,
            rates.step,
            stack=rates.stack,
            until=rates.until,
            egress_bytes_per_s=rates.egress or rates.bandwidth,
            ingress_bytes_per_s=rates.ingress or rates.bandwidth,
        )
