"""Operations between ranks that share a sample: what each computed of it is added up, gathered, or given back in shares.

They stand where a layer meets the ranks that share its work: behind attention whose heads are split, behind a mixture that
each entered with some of the tokens. The compute stream comes to a `Meet`, where a collective gets what it hands over, and
goes on at a `Join` with what the ranks made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, cast

from orch.plan.experts import Rows
from orch.plan.operations import Compute, Executor, part_s
from orch.plan.plan import COMPUTE, Task

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span


class Meeting(Protocol):
    """Where ranks that share a sample meet, as it runs in one step on this rank."""

    def join(self) -> None: ...

    def project(self, begin: int, end: int) -> None: ...


class MeetingExecutor(Executor, Protocol):
    """What a `Join` asks of the runtime."""

    def layer(self, name: str) -> Meeting:
        """Return the meeting `name` as it runs in this step."""


@dataclass(frozen=True, slots=True)
class SumRows(Rows):
    """Every rank of the group hands over a part of a sum, and ends with the sum."""

    kind: ClassVar[str] = "sum_rows"

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.all_reduce_s(nbytes, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return 2.0 * (span.size - 1) / span.size * self.nbytes


@dataclass(frozen=True, slots=True)
class Meet(Compute):
    """Come to a meeting, with what this rank made. It costs nothing. `backward`: with gradients."""

    kind: ClassVar[str] = "meet"
    in_layer: ClassVar[bool] = True
    backward: bool = False

    @classmethod
    def at(cls, module: str, *, backward: bool) -> Self:
        """Return the operation at the meeting `module`."""
        return cls(module, 0.0, 0.0, backward=backward)

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Join(Meet):
    """Go on with what the ranks made together; it costs nothing but the wait."""

    kind: ClassVar[str] = "join"

    def run(self, executor: Executor) -> None:
        cast(MeetingExecutor, executor).layer(self.module).join()


@dataclass(frozen=True, slots=True)
class Project(Compute):
    """A part of the product in front of a sum, over the rows at `begin` to `end` of `positions`. `flops`, `moved_bytes` and
    `seconds` are those of all; every part starts a kernel.
    """

    kind: ClassVar[str] = "project"
    in_layer: ClassVar[bool] = True
    positions: int = 1
    begin: int = 0
    end: int = 1

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        start_up_s, whole_s = cluster.device.launch_s, self.seconds
        if whole_s is None:
            whole_s = start_up_s + cluster.device.compute_s(self.flops, self.moved_bytes, self.dtype)
        return part_s(whole_s, (self.end - self.begin) / self.positions, start_up_s)

    def run(self, executor: Executor) -> None:
        cast(MeetingExecutor, executor).layer(self.module).project(self.begin, self.end)


def meeting(op: Rows, stream: str, group: str, after: tuple[str, ...]) -> list[Task]:
    """Return the tasks of a meeting at module `op.module`, whose collective is `op`."""
    (whole,) = op.buffer.segments
    backward = op.part.endswith("_backward")
    suffix = "_backward" if backward else ""
    met, joined = (f"{verb}{suffix}.{op.module}" for verb in ("meet", "join"))
    return [
        Task(met, Meet.at(op.module, backward=backward), COMPUTE, after),
        Task(whole.name, op, stream, (met,), group=group),
        Task(joined, Join.at(op.module, backward=backward), COMPUTE, (whole.name,)),
    ]
