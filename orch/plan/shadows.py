"""Experts whose weights travel in place of rows: every rank gets a copy, and computes its own rows there (shadow experts).

A hot expert's weights may be fewer bytes than the rows that would go to it, and its owner would compute for all others. Copies
are of one step: weights go out before forward, gradients of copies come back in backward and are added to the owner's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from orch.plan.experts import Rows
from orch.plan.operations import Compute, Executor

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span


class ShadowLayer(Protocol):
    """A mixture some of whose experts have copies in this step."""

    def shadow(self) -> None: ...

    def shadow_backward(self) -> None: ...

    def add_shadows(self) -> None: ...


class _Layers(Executor, Protocol):
    def layer(self, name: str) -> ShadowLayer: ...


@dataclass(frozen=True, slots=True)
class ShareExpert(Rows):
    """The weights of expert `expert`, which the rank at place `root` of the group holds, to every rank of it.

    `whole`: the bytes of rows that a rank would hand over in the layer's exchanges if no expert had copies.
    """

    kind: ClassVar[str] = "share_expert"
    expert: int = 0
    root: int = 0
    whole: int = 0

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.broadcast_s(nbytes, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return (span.size - 1) / span.size * self.nbytes


@dataclass(frozen=True, slots=True)
class ReturnGradients(ShareExpert):
    """The gradients of all copies of an expert, added up where it lives."""

    kind: ClassVar[str] = "return_gradients"

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.reduce_s(nbytes, span)
        return seconds


@dataclass(frozen=True, slots=True)
class ShadowExperts(Compute):
    """The copies on this rank, over its own rows for them."""

    kind: ClassVar[str] = "expert"
    in_layer: ClassVar[bool] = True

    def run(self, executor: Executor) -> None:
        cast(_Layers, executor).layer(self.module).shadow()


@dataclass(frozen=True, slots=True)
class ShadowBackward(Compute):
    """Backward of `ShadowExperts`: gradients of rows, and of the copies."""

    kind: ClassVar[str] = "expert_backward"
    in_layer: ClassVar[bool] = True

    def run(self, executor: Executor) -> None:
        cast(_Layers, executor).layer(self.module).shadow_backward()


@dataclass(frozen=True, slots=True)
class AddShadows(Compute):
    """The owner adds to its expert's gradients those of the copies."""

    kind: ClassVar[str] = "add_shadows"

    def run(self, executor: Executor) -> None:
        cast(_Layers, executor).layer(self.module).add_shadows()
