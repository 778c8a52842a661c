"""All that the author of a technique imports: the contract, the knobs, and what a pass may ask.

A technique is one pass over the step plan, `rewrite(plan, context, config) -> plan`, and a few facts about it. Making a
`Technique` registers nothing; the registry finds the value named `technique` in the module named like it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span
    from orch.models.profile import Mixture
    from orch.models.stage import Stage
    from orch.plan import Collective, Plan, Segment, Step, Task


class Form(StrEnum):
    """How a gradient looks on its way to the collective. ADDABLE is smaller, and an all-reduce can add it (low-rank
    factors, entries at places that all ranks share); SPARSE and QUANTISED need an exchange.
    """

    DENSE = "dense"
    SPARSE = "sparse"
    ADDABLE = "addable"
    QUANTISED = "quantised"


class Slot(Enum):
    """The part of a step that only one technique of a stack may take. Passes run in this order, so the order in which
    a recipe lists them means nothing."""

    COMPRESSOR = ("compressor", "what is sent in place of a dense gradient")
    FEEDBACK = ("feedback", "what happens to the part of a gradient that was not sent")
    EXCHANGE = ("exchange", "how payloads that no all-reduce can add are aggregated")
    SCHEDULE = ("schedule", "which gradients share a collective, and when it is sent")
    CODEC = ("codec", "how rows of a mixture-of-experts layer are written while they travel")
    ALL_TO_ALL = ("all-to-all", "by which way rows of a mixture-of-experts layer get from rank to rank")
    EXPERTS = ("experts", "how the tasks inside a mixture-of-experts layer are cut and ordered")
    INPUT = ("input", "how batches are read and copied to the device")
    SHARING = ("sharing", "how ranks that share samples meet behind attention")

    def __init__(self, label: str, summary: str) -> None:
        self.label = label
        self.summary = summary

    @property
    def rank(self) -> int:
        """Place in the order of passes."""
        return list(Slot).index(self)

    @property
    def of_mixtures(self) -> bool:
        """Whether only models with mixtures of experts have this part."""
        return self in (Slot.CODEC, Slot.ALL_TO_ALL, Slot.EXPERTS, Slot.SHARING)


class Knobs(BaseModel):
    """Base of a technique's Config: frozen, no unknown keys, every field made by one of the helpers below."""

    # Built when first used: who borrows a function of another technique's module needs no validator of its knobs.
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, strict=False, defer_build=True
    )


def choice(default: str, doc: str) -> Any:
    """A knob with a few named values; annotate it `Literal[...]`."""
    return Field(default, description=doc)


def count(default: int | None, doc: str, *, least: int = 0, most: int | None = None) -> Any:
    """A whole number; annotate it `int`."""
    return Field(default, description=doc, ge=least, le=most, strict=True)


def number(
    default: float, doc: str, *, least: float | None = None, most: float | None = None, above: float | None = None
) -> Any:
    """A plain number; annotate it `float`."""
    return Field(default, description=doc, ge=least, le=most, gt=above, strict=True)


def quantity(default: str | None, doc: str, *, least: float | None = None, most: float | None = None) -> Any:
    """A number with a unit; annotate it `Bytes`, `Seconds`, `Fraction` ... of `orch.units` and give the default as
    users write it.
    """
    return Field(default, description=doc, ge=least, le=most)


def fraction(default: float, doc: str, *, least: float = 0.0, most: float = 1.0, above: float | None = None) -> Any:
    """A share such as 0.001 or 0.1%; annotate it `Fraction` of `orch.units`."""
    return Field(default, description=doc, ge=least, le=most, gt=above, strict=True)


def flag(default: bool, doc: str) -> Any:
    """True or false; annotate it `bool`."""
    return Field(default, description=doc, strict=True)


@dataclass(frozen=True)
class Context:
    """What a pass may ask about the world it plans for. Pure: asking starts nothing."""

    cluster: Cluster
    world_size: int
    # Injected by the predictor, because the simulator stands above this module: start times with communication free, and
    # the seconds from a plan's first start to its last end.
    ready: Callable[[Plan, int], dict[str, float]]
    makespan: Callable[[Plan], float]
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # The gradients each module's forward needs, in forward order: (forward task name, parameters it reads).
    forward_reads: tuple[tuple[str, tuple[str, ...]], ...] = ()
    gradient_dtype: str = "fp32"
    # Of a model with mixtures: their sizes, the dense work that leads to each, and the samples of a worker.
    mixtures: tuple[Mixture, ...] = ()
    stages: tuple[Stage, ...] = ()
    batch: int = 1

    def numel(self, tensor: str) -> int:
        """Return the number of elements of parameter `tensor`."""
        return math.prod(self.parameters[tensor])

    def gradient_bytes(self, send: Task) -> int:
        """Return the bytes of the dense gradients that a send serves, however small its payload is."""
        op: Collective = send.op  # type: ignore[assignment]
        segments = op.buffer.segments
        if len(segments) == 1 and segments[0].is_gradient:
            return segments[0].nbytes
        if all(segment.is_gradient for segment in segments):
            return op.buffer.nbytes
        from orch.plan.buffers import ITEM_SIZE

        return ITEM_SIZE[self.gradient_dtype] * sum(self.numel(tensor) for tensor in op.tensors)

    def span(self, plan: Plan, task: Task) -> Span:
        """Return what part of the cluster the task's group covers."""
        return self.cluster.span(plan.groups[task.group].blocks[0])

    def ready_s(self, plan: Plan, step: int, tasks: Sequence[Task]) -> list[float]:
        """Return when each task could start if no collective took time, seconds from the start of the step."""
        starts = self.ready(plan, step)
        return [starts[task.name] for task in tasks]

    def makespan_s(self, plan: Plan, tasks: Sequence[Task]) -> float:
        """Return how long some tasks of a step take by themselves: whom they wait for besides has ended before."""
        from dataclasses import replace

        from orch.plan import Step

        names = {task.name for task in tasks}
        alone = [
            replace(task, after=tuple([name for name in task.after if name in names]), after_previous=(), lag=0)
            for task in tasks
        ]
        return self.makespan(replace(plan, steps=(Step(tuple(alone)),)))

    def collective_s(self, plan: Plan, task: Task) -> Callable[[Any], Any]:
        """Return the cost of the task's kind of collective as a function of payload bytes (broadcasts over arrays)."""
        span = self.span(plan, task)
        op: Collective = task.op  # type: ignore[assignment]
        return lambda nbytes: op.seconds_for(nbytes, self.cluster, span)


Rewrite = Callable[["Plan", Context, Any], "Plan"]
ALL_FORMS = frozenset(Form)


@dataclass(frozen=True)
class Technique:
    """A pass over the step plan and its contract.

    `needs` are the forms it can work on, `gives` the form it leaves (None: what it found). `defaults` name the
    techniques that take slots which a stack with this one leaves empty. `excludes` names techniques that cannot share
    a stack with it, each with the reason. `lossless` means equal to plain S-SGD within floating-point tolerance;
    where knobs decide that, `exact(config)` does and `lossless` speaks for the defaults. One that `splits_capacity` lets parts of
    a batch fill experts by themselves: where these have a capacity other tokens are dropped, and it is not lossless.
    `engine` is `module:Class` of a runtime that replaces the plan's own one (torch's DDP drives its collectives
    itself). `source` is the paper or project, as users would cite it. `settings(config)` yields the configs among which its
    own planner chooses the one with the shortest step: so thousands of layers can be planned at once, not one by one.
    `planned_only(config)` says why a stack with these knobs can be planned but not run; "" where it can. One that is
    `for_stages` works where each stage of a pipeline sends gradients of its own.
    """

    name: str
    slot: Slot
    rewrite: Rewrite
    source: str
    lossless: bool
    config: type[Knobs] = Knobs
    needs: frozenset[Form] = ALL_FORMS
    gives: Form | None = None
    defaults: tuple[str, ...] = ()
    excludes: dict[str, str] = field(default_factory=dict)
    engine: str | None = None
    settings: Callable[[Any], Iterable[Any]] | None = None
    exact: Callable[[Any], bool] | None = None
    splits_capacity: bool = False
    planned_only: Callable[[Any], str] | None = None
    for_stages: bool = False

    def is_lossless(self, config: Knobs) -> bool:
        """Return whether it is lossless with these knobs."""
        return self.lossless if self.exact is None else self.exact(config)


def at_least_one(value: float) -> int:
    """Return max(1, floor(value)): the paper-wide rule for how many entries a density keeps."""
    return max(1, math.floor(value))


def dense_sends(step: Step) -> Iterator[tuple[Task, Segment]]:
    """Yield the all-reduces that carry one dense gradient each, as compressors find them, with that gradient."""
    from orch.plan import AllReduce

    for task in step:
        if isinstance(task.op, AllReduce) and len(task.op.buffer.segments) == 1:
            segment = task.op.buffer.segments[0]
            if segment.is_gradient:
                yield task, segment


def fuse_each_wave(plan: Plan, group: Callable[[Plan, int, Sequence[Task]], Sequence[int]]) -> Plan:
    """Return the plan with every wave of collectives fused as `group(plan, step, sends)` says.

    `group` returns, for one run of sends of equal kind, dtype, role and group, the index after the last member of each
    bucket, ascending and ending in len(sends). Bucket order is launch order.
    """
    from dataclasses import replace

    steps: list[Step] = []
    for index, step in enumerate(step.by_wave() for step in plan.steps):
        buckets: list[Sequence[Task]] = []
        for run in fusible_runs(step):
            begin = 0
            for end in group(plan, index, run):
                buckets.append(run[begin:end])
                begin = end
        steps.append(step.fuse(buckets))
    return replace(plan, steps=tuple(steps))


def fusible_runs(step: Step) -> list[Sequence[Task]]:
    """Return the collectives of each wave, in launch order, cut into runs whose members one collective can carry."""
    runs: list[Sequence[Task]] = []
    for wave in step.waves():
        by_key: dict[object, list[Task]] = {}
        for task in wave:
            op: Collective = task.op  # type: ignore[assignment]
            segments = op.buffer.segments
            dtypes: object = None
            if op.kind != "all_gather":
                dtypes = segments[0].dtype if len(segments) == 1 else frozenset(s.dtype for s in segments)
            key = (type(op), task.role, task.group, task.stream, task.lag, dtypes)
            if key in by_key:
                by_key[key].append(task)
            else:
                by_key[key] = [task]
        runs.extend(by_key.values())
    return runs
