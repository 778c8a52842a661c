"""Power-SGD: send a rank-r approximation P Q^T of each gradient matrix, found by one step of power iteration. Lossy.

Helps: large matrices (transformers, linear layers) on slow links; its payloads can be all-reduced. Does not: models
of small or 1-D tensors; fast links; its two all-reduces depend on one another, so only the first hides under backward.
Source: Vogels et al., NeurIPS 2019 (arXiv:1905.13727). The error is taken from the AGGREGATED approximation, as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orch.plan import COMPUTE, AllReduce, Buffer, Decode, Encode, Executor, Plan, Segment, Step, Task, Value
from orch.technique import Context, Form, Knobs, Slot, Technique, count, dense_sends, number

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span

OWNER = "power-sgd"


class Config(Knobs):
    """The rank of the approximation, and which matrices are worth it."""

    rank: int = count(
        4, "rank of the approximation, at most each matrix's dims (papers: 4 CNN, 32 transformer)", least=1
    )
    min_compression_rate: float = number(
        1.0, "a matrix is sent dense unless P and Q together are this many times smaller", least=0.0
    )


@dataclass(frozen=True, slots=True)
class Matrix(Value):
    """A gradient seen as [n, m], its first dim by all others, with the rank r of its approximation."""

    n: int
    m: int
    r: int

    @staticmethod
    def of(shape: Sequence[int], rank: int) -> Matrix | None:
        """Return the matrix of a tensor of `shape`, or None for one without two dims."""
        if len(shape) < 2:
            return None
        n, m = shape[0], math.prod(shape[1:])
        return Matrix(n, m, min(rank, n, m)) if n * m else None

    def product_s(self, cluster: Cluster) -> float:
        """Return the seconds of one matrix product of n m r multiply-adds, all operands read or written once."""
        moved = 4.0 * (self.n * self.m + (self.n + self.m) * self.r)
        seconds: float = cluster.device.compute_s(2.0 * self.n * self.m * self.r, moved)
        return seconds

    def orthonormal_s(self, cluster: Cluster, rows: int) -> float:
        """Return the seconds of the QR of a factor [rows, r]: 2 rows r^2 FLOP (ACP-SGD brief, section 3)."""
        seconds: float = cluster.device.compute_s(2.0 * rows * self.r**2, 8.0 * rows * self.r)
        return seconds


def p_of(tensor: str) -> str:
    """Return the name of the segment that carries P [n, r]."""
    return f"{tensor}:p"


def q_of(tensor: str) -> str:
    """Return the name of the segment that carries Q [m, r]."""
    return f"{tensor}:q"


def kept_factor(executor: Executor, owner: str, name: str, rows: int, r: int) -> Any:
    """Return the factor [rows, r] kept under `name`; the first one is normal and equal on every rank."""

    def make() -> Any:
        from techniques.compression.power_sgd_kernels import factor

        return factor(rows, r, executor.generator(f"{owner}/{name}"))

    return executor.state(owner, name, make)


@dataclass(frozen=True, slots=True)
class EncodeP(Encode):
    """P = M Q with the Q of the previous step: M [n, m] -> P [n, r]."""

    matrix: Matrix

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return self.matrix.product_s(cluster)

    def run(self, executor: Executor) -> None:
        from techniques.compression.power_sgd_kernels import as_matrix

        shape = self.matrix
        right = kept_factor(executor, OWNER, q_of(self.tensor), shape.m, shape.r)
        left = as_matrix(executor.gradient(self.tensor)) @ right
        executor.segment(p_of(self.tensor)).copy_(left.flatten())

    @property
    def state_bytes(self) -> int:
        return 4 * self.matrix.r * self.matrix.m


@dataclass(frozen=True, slots=True)
class EncodeQ(Encode):
    """Orthonormalise the mean P, then Q = M^T P: M [n, m] -> Q [m, r]."""

    matrix: Matrix

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return self.matrix.orthonormal_s(cluster, self.matrix.n) + self.matrix.product_s(cluster)

    def run(self, executor: Executor) -> None:
        from techniques.compression.power_sgd_kernels import as_matrix, orthonormal

        segment = executor.segment(p_of(self.tensor))
        left = orthonormal(segment.view(self.matrix.n, self.matrix.r))
        segment.copy_(left.flatten())
        right = as_matrix(executor.gradient(self.tensor)).T @ segment.view(self.matrix.n, self.matrix.r).float()
        executor.segment(q_of(self.tensor)).copy_(right.flatten())


@dataclass(frozen=True, slots=True)
class Reconstruct(Decode):
    """The gradient is P Q^T with the mean Q, which also warm-starts the next step: P [n, r], Q [m, r] -> [n, m]."""

    matrix: Matrix
    knows_sent: ClassVar[bool] = True

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return self.matrix.product_s(cluster)

    def run(self, executor: Executor) -> None:
        from techniques.compression.power_sgd_kernels import product

        shape = self.matrix
        right = executor.segment(q_of(self.tensor)).view(shape.m, shape.r)
        left = executor.segment(p_of(self.tensor)).view(shape.n, shape.r)
        kept_factor(executor, OWNER, q_of(self.tensor), shape.m, shape.r).copy_(right)
        executor.set_gradient(self.tensor, product(left, right))

    def subtract_sent(self, executor: Executor, accumulated: Any) -> None:
        accumulated -= executor.gradient(self.tensor)

    def subtract_sent_s(self, cluster: Cluster, span: Span) -> float:
        numel = self.matrix.n * self.matrix.m
        seconds: float = cluster.device.compute_s(float(numel), 12.0 * numel)
        return seconds


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Replace the all-reduce of each worthwhile matrix by encode, P, orthonormalise, Q, decode."""
    return plan.each_step(lambda step: _low_rank(step, context, config))


def _low_rank(step: Step, context: Context, config: Config) -> Step:
    changes: dict[str, Sequence[Task]] = {}
    for task, gradient in dense_sends(step):
        matrix = Matrix.of(context.parameters[gradient.tensor], config.rank)
        if matrix is not None and _worth_it(matrix, config.min_compression_rate):
            changes[task.name] = _chain(task, gradient, matrix)
    return step.replace(changes).by_wave()


def _worth_it(matrix: Matrix, least: float) -> bool:
    return matrix.n * matrix.m > least * (matrix.n + matrix.m) * matrix.r


def _chain(send: Task, gradient: Segment, matrix: Matrix) -> list[Task]:
    tensor, dtype = gradient.tensor, gradient.dtype
    p = Segment(p_of(tensor), matrix.n * matrix.r, dtype, tensor)
    q = Segment(q_of(tensor), matrix.m * matrix.r, dtype, tensor)
    chain = [Task(f"encode_p.{tensor}", EncodeP(tensor, matrix), COMPUTE, send.after)]
    chain.append(factor_send(send, f"all_reduce_p.{tensor}", p, chain[-1].name))
    chain.append(Task(f"encode_q.{tensor}", EncodeQ(tensor, matrix), COMPUTE, (chain[-1].name,)))
    chain.append(factor_send(send, f"all_reduce_q.{tensor}", q, chain[-1].name))
    chain.append(Task(f"decode.{tensor}", Reconstruct(tensor, matrix), COMPUTE, (chain[-1].name,)))
    return chain


def factor_send(send: Task, name: str, factor: Segment, *after: str) -> Task:
    """Return the all-reduce of a factor in place of `send`."""
    op = AllReduce(Buffer(name, (factor,)))
    return Task(name, op, send.stream, after, role=send.role, group=send.group)


technique = Technique(
    name="power-sgd",
    slot=Slot.COMPRESSOR,
    rewrite=rewrite,
    source="arXiv:1905.13727",
    lossless=False,
    config=Config,
    needs=frozenset({Form.DENSE}),
    gives=Form.ADDABLE,
    defaults=("error-feedback",),
)
