"""The part of a cluster file that says in what single nodes differ from the others."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orch.units import BytesPerSecond, Fraction, Seconds

Bandwidth = Annotated[BytesPerSecond, Field(gt=0)]
Delay = Annotated[Seconds, Field(ge=0)]
Label = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")]
Labels = dict[Label, Label]
Loss = Annotated[Fraction, Field(ge=0, lt=1)]


class UnequalSpec(BaseModel):
    """What one node differs in; whatever is left out is as the cluster's links and device say."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    bandwidth: Bandwidth | None = Field(None, description="rate of its link in both directions")
    egress: Bandwidth | None = Field(None, description="rate at which it sends")
    ingress: Bandwidth | None = Field(None, description="rate at which it receives")
    delay: Delay | None = Field(None, description="how much later what it sends arrives, one way")
    loss: Loss | None = Field(None, description="share of the packets it sends that are lost")
    speed: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = Field(
        None, description="speed factor of its devices; 0.5 is half as fast"
    )
    labels: Labels | None = Field(
        None, description="what the Ray node that is taken for it must carry, over the cluster's"
    )

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.bandwidth is not None and (self.egress is not None or self.ingress is not None):
            raise ValueError("gives bandwidth and a direction of its own; keep bandwidth, or egress and ingress")
        if all(value is None for value in self.model_dump().values()):
            raise ValueError(
                "says nothing; give bandwidth, egress, ingress, delay, loss, speed or labels, or leave the node out"
            )
        return self

    @property
    def of_the_link(self) -> bool:
        """Whether it says anything of the network."""
        return any(value is not None for value in (self.bandwidth, self.egress, self.ingress, self.delay, self.loss))
