"""A plain step's layers as chains: which plain tasks become which dense ones, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orch.errors import OrchError
from orch.models.profile import Mixture
from orch.models.stage import Stage
from orch.plan.chain import Chain, Chained
from orch.plan.dense import TOKENS, Attend, AttendBackward, Gate, GateBackward
from orch.plan.experts import Expert, ExpertBackward, RecodeRows, Rows
from orch.plan.operations import Backward, Compute, Forward
from orch.plan.plan import Step, Task


def chained(step: Step, stages: Sequence[Stage], mixtures: Sequence[Mixture], batch: int, axis: str) -> Chained:
    """Return a plain step with its layers as chains, to be cut along `axis`: TOKENS of a sample or SAMPLES of the `batch`.

    Raises OrchError (E414) where a model does not say what of it may be cut, or where the plan cannot be walked so: cut
    already, or with other work between layers.
    """
    if not stages or len(stages) != len(mixtures):
        raise OrchError(
            "the dense work between mixtures cannot be cut: the model does not say which of it belongs together", code="E414",
            hint="its gates may look at all tokens, or it is no model of orch's own",
        )  # fmt: skip
    if axis == TOKENS and not all(stage.causal for stage in stages):
        raise OrchError("tokens cannot be cut: each looks at later ones too in this model", code="E414",
                        hint="take a model that predicts the next token, or cut along samples")  # fmt: skip
    tokens, samples = stages[0].tokens, batch
    units, each = (tokens, samples) if axis == TOKENS else (samples, tokens)
    drawn = _Drawn(step, stages, units, axis)
    forward, backward = drawn.forward(), drawn.backward()
    ordered = axis == TOKENS
    chains = (
        Chain(False, units, ordered, tuple(map(tuple, forward)), tuple(mixtures), each),
        Chain(True, units, ordered, tuple(map(tuple, backward)), tuple(mixtures[::-1]), each),
    )
    return Chained(step, *chains, drawn.became)


@dataclass
class _Gathered:
    """The plain tasks that become one."""

    ops: list[Compute]
    names: list[str]
    after: dict[str, None]
    previous: dict[str, None]


class _Drawn:
    """Turns the plain tasks of a step into those of chains."""

    def __init__(self, step: Step, stages: Sequence[Stage], units: int, axis: str) -> None:
        self.step, self.stages, self.units, self.axis = step, stages, units, axis
        self.became: dict[str, tuple[str, ...]] = {}
        self.rows: dict[tuple[str, bool], list[Task]] = {}
        for task in step:
            op: Any = task.op
            if op.in_layer:
                self.rows.setdefault((op.module, _backwards(op)), []).append(task)
                self.became[task.name] = (task.name,)
        known = {stage.mixture for stage in stages}
        for (module, _), tasks in self.rows.items():
            if module not in known:
                raise OrchError(f"task {tasks[0].name!r} is inside layers and none that a chain has", code="E414",
                                hint="ranks that share attention cannot be walked in a chain")  # fmt: skip
            if sum(isinstance(task.op, Expert | ExpertBackward) for task in tasks) != 1:
                raise OrchError("layers were cut before they could be walked as a chain", code="E414")

    def forward(self) -> list[list[Task]]:
        layers: list[list[Task]] = []
        for stage in self.stages:
            name = stage.mixture
            found = self._gathered(stage, Forward)
            before = (layers[-1][-1].name,) if layers else ()
            attend = _task(
                f"attend.{name}", found["attend"], before, Attend, name, len(stage.attend), self._square(stage)
            )
            gate = _task(f"gate.{name}", found["gate"], (f"attend.{name}",), Gate, name, len(stage.gate), None)
            first, *rest = self.rows[name, False]
            tasks = [attend, gate, replace(first, after=(*first.after, gate.name)), *rest]
            layers.append([self._sized(task) for task in tasks])
        return layers

    def backward(self) -> list[list[Task]]:
        layers: list[list[Task]] = []
        for stage in reversed(self.stages):
            name = stage.mixture
            found = self._gathered(stage, Backward)
            ready = self._ready(stage)
            first, *rest = self.rows[name, True]
            if layers:
                first = replace(first, after=(*first.after, layers[-1][-1].name))
            names = (f"gate_backward.{name}", f"attend_backward.{name}")
            gate = _task(names[0], found["gate"], (rest[-1].name,), GateBackward, name, 2 * len(stage.gate), None)
            attend = _task(names[1], found["attend"], (names[0],), AttendBackward, name, 2 * len(stage.attend),
                           self._square(stage))  # fmt: skip
            gate, attend = (
                replace(task, op=replace(task.op, ready=ready[part]))  # type: ignore[call-arg]
                for task, part in ((gate, "gate"), (attend, "attend"))
            )
            layers.append([self._sized(task) for task in (first, *rest, gate, attend)])
        return layers

    def _square(self, stage: Stage) -> float:
        return stage.quadratic if self.axis == TOKENS else 0.0

    def _sized(self, task: Task) -> Task:
        op = task.op
        if isinstance(op, Gate | GateBackward):
            return replace(task, op=replace(op, units=self.units, last=self.units))
        if isinstance(op, Attend | AttendBackward):
            return replace(task, op=replace(op, units=self.units, last=self.units, axis=self.axis))
        return task

    def _gathered(self, stage: Stage, kind: type[Compute]) -> dict[str, _Gathered]:
        """Return what of `kind` the plain plan has for each part of a stage, and note what became of it."""
        found = {part: _Gathered([], [], {}, {}) for part in ("attend", "gate")}
        suffix = "_backward" if kind is Backward else ""
        for task in self.step:
            op: Any = task.op
            if not isinstance(op, kind) or op.in_layer:
                continue
            part = stage.part_of(op.module)
            owners = {stage.part_of(tensor.rpartition(".")[0]) for tensor in op.tensors}
            if part is None and owners <= {None}:
                continue
            if part is None or None in owners:
                raise OrchError(f"task {task.name!r} computes for layers and for what stands around them", code="E414")
            gathered = found[part]
            gathered.ops.append(op)
            gathered.names.append(task.name)
            gathered.after.update(dict.fromkeys(task.after))
            gathered.previous.update(dict.fromkeys(task.after_previous))
            parts = sorted({part, *(owner for owner in owners if owner is not None)})
            self.became[task.name] = tuple(f"{one}{suffix}.{stage.mixture}" for one in parts)
        return found

    def _ready(self, stage: Stage) -> dict[str, tuple[str, ...]]:
        """Return the gradients of each part, in the order in which the plain plan has them."""
        found: dict[str, list[str]] = {"attend": [], "gate": []}
        for task in self.step.of(Backward):
            if task.op.in_layer:
                continue
            for tensor in task.op.tensors:
                part = stage.part_of(tensor.rpartition(".")[0])
                if part is not None:
                    found[part].append(tensor)
        return {part: tuple(tensors) for part, tensors in found.items()}


def _backwards(op: Any) -> bool:
    return op.kind.endswith("_backward") or (isinstance(op, Rows | RecodeRows) and op.part.endswith("_backward"))


def _task(
    name: str, found: _Gathered, before: tuple[str, ...], kind: Any, module: str, products: int, square: float | None
) -> Task:
    ops = found.ops
    seconds = sum(op.seconds for op in ops if op.seconds is not None)
    measured = bool(ops) and all(op.seconds is not None for op in ops)
    more = {} if square is None else {"quadratic": square}
    op = kind(
        module,
        sum(op.flops for op in ops),
        sum(op.moved_bytes for op in ops),
        ops[0].dtype if ops else "fp32",
        seconds if measured else None,
        products=products,
        stands_for=tuple(found.names),
        **more,
    )
    return Task(name, op, after=(*found.after, *before), after_previous=tuple(found.previous))
