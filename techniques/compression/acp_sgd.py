"""ACP-SGD: send P on one step and Q on the next, so that each step has one all-reduce a bucket, as S-SGD has. Lossy.

Helps: what Power-SGD helps, and hides under backward besides. Does not: models of small or 1-D tensors; fast links;
momentum near 0.9, which at a low rank makes much of gradients that error feedback delayed, and learns slowly at first.
Source: Zhang et al., ICDCS 2023. The error is taken from the LOCAL product, before the all-reduce, as in the authors'
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from orch.plan import COMPUTE, Decode, Encode, Executor, Plan, Segment, Step, Task
from orch.technique import Context, Form, Knobs, Slot, Technique, count, dense_sends, number
from techniques.compression.power_sgd import Matrix, factor_send, kept_factor, p_of, q_of

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span

OWNER = "acp-sgd"
Side = Literal["p", "q"]


class Config(Knobs):
    """The rank of the approximation, and which matrices are worth it."""

    rank: int = count(
        4, "rank of the approximation, at most each matrix's dims (papers: 4 CNN, 32 transformer)", least=1
    )
    min_compression_rate: float = number(
        1.0, "a matrix is sent dense unless a step's factor is this many times smaller", least=0.0
    )


@dataclass(frozen=True, slots=True)
class Project(Encode):
    """Orthonormalise the factor of the step before and project on it. Side p: Q, then P = M Q; side q: P, then Q =
    M^T P.
    """

    matrix: Matrix
    side: Side
    knows_sent: ClassVar[bool] = True

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        rows = self.matrix.m if self.side == "p" else self.matrix.n
        return self.matrix.orthonormal_s(cluster, rows) + self.matrix.product_s(cluster)

    def run(self, executor: Executor) -> None:
        from techniques.compression.power_sgd_kernels import as_matrix, orthonormal

        basis = self._basis(executor)
        basis.copy_(orthonormal(basis))
        gradient = as_matrix(executor.gradient(self.tensor))
        projected = (gradient if self.side == "p" else gradient.T) @ basis
        self._segment(executor).copy_(projected)

    def subtract_sent(self, executor: Executor, accumulated: Any) -> None:
        from techniques.compression.power_sgd_kernels import product

        mine, basis = self._segment(executor), self._basis(executor)
        sent = product(mine, basis) if self.side == "p" else product(basis, mine)
        accumulated -= sent.view(accumulated.shape)

    def subtract_sent_s(self, cluster: Cluster, span: Span) -> float:
        return self.matrix.product_s(cluster)

    @property
    def state_bytes(self) -> int:
        return 4 * self.matrix.r * (self.matrix.n + self.matrix.m)

    def _basis(self, executor: Executor) -> Any:
        return _kept(executor, self.tensor, self.matrix, "q" if self.side == "p" else "p")

    def _segment(self, executor: Executor) -> Any:
        return _sent(executor, self.tensor, self.matrix, self.side)


@dataclass(frozen=True, slots=True)
class Rebuild(Decode):
    """The gradient is P Q^T with the mean of the factor just sent, which is kept for the next step: -> [n, m]."""

    matrix: Matrix
    side: Side

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return self.matrix.product_s(cluster)

    def run(self, executor: Executor) -> None:
        from techniques.compression.power_sgd_kernels import product

        kept = _kept(executor, self.tensor, self.matrix, self.side)
        kept.copy_(_sent(executor, self.tensor, self.matrix, self.side))
        other = _kept(executor, self.tensor, self.matrix, "q" if self.side == "p" else "p")
        executor.set_gradient(self.tensor, product(kept, other) if self.side == "p" else product(other, kept))


def _name(tensor: str, side: Side) -> str:
    return p_of(tensor) if side == "p" else q_of(tensor)


def _kept(executor: Executor, tensor: str, matrix: Matrix, side: Side) -> Any:
    rows = matrix.n if side == "p" else matrix.m
    return kept_factor(executor, OWNER, _name(tensor, side), rows, matrix.r)


def _sent(executor: Executor, tensor: str, matrix: Matrix, side: Side) -> Any:
    return executor.segment(_name(tensor, side)).view(-1, matrix.r)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Make the period even: P on even steps, Q on odd ones, for all matrices alike; 1-D tensors travel along
    densely.
    """
    repeats = 1 if plan.period % 2 == 0 else 2
    steps = plan.steps * repeats
    sides: tuple[Side, Side] = ("p", "q")
    new = tuple(_projected(step, sides[index % 2], context, config) for index, step in enumerate(steps))
    return plan if new == steps else replace(plan, steps=new)


def _projected(step: Step, side: Side, context: Context, config: Config) -> Step:
    sends = [(task, gradient, _matrix(gradient, context, config)) for task, gradient in dense_sends(step)]
    if not any(matrix for _, _, matrix in sends):
        return step
    changes: dict[str, Sequence[Task]] = {}
    for task, gradient, matrix in sends:
        # P steps and Q steps have other buckets, and a buffer's name stands for one layout: dense sends are renamed
        # too.
        name = f"all_reduce_{side}.{gradient.tensor}"
        dense = factor_send(task, name, gradient, *task.after)
        changes[task.name] = (dense,) if matrix is None else _chain(task, name, gradient, matrix, side)
    return step.replace(changes).by_wave()


def _matrix(gradient: Segment, context: Context, config: Config) -> Matrix | None:
    matrix = Matrix.of(context.parameters[gradient.tensor], config.rank)
    if matrix is None:
        return None
    # One factor a step: half of what Power-SGD sends (min_compression_rate of the authors' reference package).
    sent = (matrix.n + matrix.m) * matrix.r / 2
    return matrix if matrix.n * matrix.m > config.min_compression_rate * sent else None


def _chain(send: Task, name: str, gradient: Segment, matrix: Matrix, side: Side) -> list[Task]:
    tensor = gradient.tensor
    numel = (matrix.n if side == "p" else matrix.m) * matrix.r
    encode = Task(f"encode_{side}.{tensor}", Project(tensor, matrix, side), COMPUTE, send.after)
    factor = Segment(_name(tensor, side), numel, gradient.dtype, tensor)
    reduce = factor_send(send, name, factor, encode.name)
    return [encode, reduce, Task(f"decode_{side}.{tensor}", Rebuild(tensor, matrix, side), COMPUTE, (name,))]


technique = Technique(
    name="acp-sgd",
    slot=Slot.COMPRESSOR,
    rewrite=rewrite,
    source="Zhang et al., ICDCS 2023",
    lossless=False,
    config=Config,
    needs=frozenset({Form.DENSE}),
    gives=Form.ADDABLE,
    defaults=("error-feedback",),
)
