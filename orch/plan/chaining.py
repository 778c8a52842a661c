"""A plain step's layers as chains: which plain tasks become which dense ones, and what waits for what.

Where ranks share samples, dense work is in pieces between the places at which they meet; the collective of each meeting stands
between two pieces, on its own stream, and is cut as attention is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orch.errors import OrchError
from orch.models.profile import Mixture
from orch.models.stage import Stage
from orch.plan.chain import Chain, Chained
from orch.plan.dense import TOKENS, Attend, AttendBackward, Gate, GateBackward
from orch.plan.experts import Expert, ExpertBackward, RecodeRows, Rows
from orch.plan.operations import Backward, Compute, Forward
from orch.plan.plan import Step, Task
from orch.plan.sharing import Meet


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
    """The plain tasks that become one: a piece of attention's part, or what chooses experts."""

    ops: list[Compute] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    after: dict[str, None] = field(default_factory=dict)
    previous: dict[str, None] = field(default_factory=dict)
    # Whether attention itself is in it, and the gradients that exist after it.
    attends: bool = False
    ready: list[str] = field(default_factory=list)


@dataclass
class _Stretch:
    """The dense work of a stage, forward or backward: pieces of attention's part in the order they run, the collective behind
    each but the last, or (backward) also before the first, and what chooses experts.
    """

    gate: _Gathered = field(default_factory=_Gathered)
    pieces: list[_Gathered] = field(default_factory=lambda: [_Gathered()])
    meetings: list[Task] = field(default_factory=list)


class _Drawn:
    """Turns the plain tasks of a step into those of chains."""

    def __init__(self, step: Step, stages: Sequence[Stage], units: int, axis: str) -> None:
        self.step, self.stages, self.units, self.axis = step, stages, units, axis
        self.became: dict[str, tuple[str, ...]] = {}
        self.rows: dict[tuple[str, bool], list[Task]] = {}
        self.met: dict[tuple[str, bool], Task] = {}
        for task in step:
            op: Any = task.op
            if op.in_layer:
                self.rows.setdefault((op.module, _backwards(op)), []).append(task)
                self.became[task.name] = (task.name,)
        known = {stage.mixture for stage in stages}
        for (module, backward), tasks in list(self.rows.items()):
            if module in known:
                if sum(isinstance(task.op, Expert | ExpertBackward) for task in tasks) != 1:
                    raise OrchError("layers were cut before they could be walked as a chain", code="E414")
                continue
            met = next((task for task in tasks if isinstance(task.op, Rows)), None)
            if met is None or not any(module in stage.attend for stage in stages):
                raise OrchError(f"task {tasks[0].name!r} is inside layers and none that a chain has", code="E414",
                                hint="parts of tokens that ranks take into a layer cannot be walked in a chain")  # fmt: skip
            self.met[module, backward] = met
            self.became.update((task.name, (met.name,)) for task in tasks)

    def forward(self) -> list[list[Task]]:
        layers: list[list[Task]] = []
        for stage in self.stages:
            name = stage.mixture
            found = self._stretch(stage, Forward)
            before = (layers[-1][-1].name,) if layers else ()
            tasks = self._attending(stage, found, Attend, before)
            tasks.append(_task(f"gate.{name}", found.gate, (tasks[-1].name,), Gate, name, len(stage.gate)))
            first, *rest = self.rows[name, False]
            tasks += [replace(first, after=(*first.after, tasks[-1].name)), *rest]
            layers.append([self._sized(task) for task in tasks])
        return layers

    def backward(self) -> list[list[Task]]:
        layers: list[list[Task]] = []
        for stage in reversed(self.stages):
            name = stage.mixture
            found = self._stretch(stage, Backward)
            first, *rest = self.rows[name, True]
            if layers:
                first = replace(first, after=(*first.after, layers[-1][-1].name))
            gate = _task(f"gate_backward.{name}", found.gate, (rest[-1].name,), GateBackward, name, 2 * len(stage.gate))
            tasks = [first, *rest, gate, *self._attending(stage, found, AttendBackward, (gate.name,))]
            layers.append([self._sized(task) for task in tasks])
        return layers

    def _attending(self, stage: Stage, found: _Stretch, kind: Any, before: tuple[str, ...]) -> list[Task]:
        """Return the pieces of attention's part, and the collectives between them."""
        backward = kind is AttendBackward
        modules = len(stage.attend) * (2 if backward else 1)
        whole = sum(len(piece.ops) for piece in found.pieces)
        square = self._square(stage) * sum(op.flops for piece in found.pieces for op in piece.ops)
        attending = sum(piece.attends for piece in found.pieces) or 1
        last = len(found.pieces) - 1
        tasks: list[Task] = []
        for number, piece in enumerate(found.pieces):
            # What begins with a meeting, or ends with one before experts are chosen, has nothing in front of it or behind.
            if piece.ops or not last or number != (0 if backward else last):
                flops = sum(op.flops for op in piece.ops)
                quadratic = min(1.0, square / attending / flops) if flops and (piece.attends or not last) else 0.0
                place = last - number if backward else number
                name = f"{'attend_backward' if backward else 'attend'}{place if last else ''}.{stage.mixture}"
                products = modules if not last else round(modules * len(piece.ops) / whole)
                made = _task(name, piece, before, kind, stage.mixture, products, quadratic=quadratic)
                tasks.append(replace(made, op=replace(made.op, piece=place)))  # type: ignore[call-arg]
                before = (name,)
            if number < len(found.meetings):
                tasks.append(replace(found.meetings[number], after=before))
                before = (tasks[-1].name,)
        return tasks

    def _square(self, stage: Stage) -> float:
        return stage.quadratic if self.axis == TOKENS else 0.0

    def _sized(self, task: Task) -> Task:
        op = task.op
        if isinstance(op, Gate | GateBackward):
            return replace(task, op=replace(op, units=self.units, last=self.units))
        if isinstance(op, Attend | AttendBackward):
            return replace(task, op=replace(op, units=self.units, last=self.units, axis=self.axis))
        return task

    def _stretch(self, stage: Stage, kind: type[Compute]) -> _Stretch:
        """Return what of `kind` the plain plan has for a stage, and note what became of it."""
        found = _Stretch()
        backward = kind is Backward
        suffix = "_backward" if backward else ""
        enters = {module for (module, back) in self.met if back}
        into: list[tuple[str, _Gathered | None, set[str | None]]] = []
        for task in self.step:
            op: Any = task.op
            if isinstance(op, Rows) and self.met.get((op.module, backward)) is task and op.module in stage.attend:
                found.meetings.append(task)
                found.pieces.append(_Gathered())
            if not isinstance(op, kind) or op.in_layer:
                continue
            part = stage.part_of(op.module)
            owners = {stage.part_of(tensor.rpartition(".")[0]) for tensor in op.tensors}
            if part is None and owners <= {None}:
                continue
            if part is None or None in owners:
                raise OrchError(f"task {task.name!r} computes for layers and for what stands around them", code="E414")
            gathered = found.gate if part == "gate" else found.pieces[-1]
            gathered.ops.append(op)
            gathered.names.append(task.name)
            gathered.after.update(dict.fromkeys(task.after))
            gathered.previous.update(dict.fromkeys(task.after_previous))
            gathered.attends |= op.module in enters or "#" in op.module
            for tensor in op.tensors:
                owner = found.gate if stage.part_of(tensor.rpartition(".")[0]) == "gate" else found.pieces[-1]
                owner.ready.append(tensor)
            into.append((task.name, None if part == "gate" else gathered, owners))
        last = len(found.pieces) - 1
        for name, piece, owners in into:
            # Identity: pieces may be equal.
            place = next((n for n, one in enumerate(found.pieces) if one is piece), 0)
            number = "" if not last else str(last - place if backward else place)
            parts = sorted({"gate" if piece is None else "attend", *(owner for owner in owners if owner is not None)})
            names = {"attend": f"attend{suffix}{number}", "gate": f"gate{suffix}"}
            self.became[name] = tuple(f"{names[part]}.{stage.mixture}" for part in parts)
        return found


def _backwards(op: Any) -> bool:
    if isinstance(op, Meet):
        return op.backward
    return op.kind.endswith("_backward") or (isinstance(op, Rows | RecodeRows) and op.part.endswith("_backward"))


def _task(
    name: str, found: _Gathered, before: tuple[str, ...], kind: Any, module: str, products: int, **more: Any
) -> Task:
    ops = found.ops
    seconds = sum(op.seconds for op in ops if op.seconds is not None)
    measured = bool(ops) and all(op.seconds is not None for op in ops)
    if found.ready:
        more["ready"] = tuple(found.ready)
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
