"""What a sweep varies: the section `sweep.over` with every path found, every range read, every condition known.

A range is given by the recipe or is a technique knob's own; a knob is varied only in the stacks that use its technique.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

from orch import registry
from orch.errors import OrchError, Position, did_you_mean, quoted
from orch.recipe.overrides import path_of
from orch.recipe.stacks import Stack
from orch.recipe.sweep import Over, Sweep
from orch.recipe.tree import Node, Path, dotted
from orch.units import BYTES, BYTES_PER_SECOND, FLOPS_PER_SECOND, FRACTION, SECONDS, SECONDS_PER_BYTE, Dimension

STACK = "stack"
# An open bound at 0 (a density in (0, 1]) has no least value: so many decades below the greatest are searched.
OPEN_DECADES = 4
_DIMENSIONS = (BYTES, SECONDS, BYTES_PER_SECOND, SECONDS_PER_BYTE, FLOPS_PER_SECOND)
_NOT_SWEPT = ("sweep", "orch", "name", "extends", "baseline", "stacks", "when", "seeds", "on")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One varied setting: `choices`, or a range from `low` to `high`. `unit` is written behind each number.

    `when` lists the conditions, (path, values), of which all must hold; the paths stand before this one in the space.
    """

    path: str
    keys: Path
    where: Position
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False
    unit: str = ""
    when: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def active(self, chosen: Mapping[str, Any]) -> bool:
        """Whether its conditions hold for what has been chosen before it."""
        return all(path in chosen and chosen[path] in values for path, values in self.when)

    def written(self, value: float) -> Any:
        """Return a number of its range as a recipe writes it."""
        number: float = round(value) if self.whole else value
        return f"{number!r}{self.unit}" if self.unit else number

    def ends(self) -> tuple[Any, ...]:
        """Return its choices, or the two ends of its range, as a recipe writes them."""
        return self.choices or (self.written(self.low), self.written(self.high))

    @property
    def count(self) -> int | None:
        """How many values it has, None where they cannot be counted."""
        if self.choices:
            return len(self.choices)
        step = self.step or (1.0 if self.whole and not self.log else None)
        return None if step is None else int((self.high - self.low) / step + 1e-9) + 1

    def steps(self) -> Iterator[Any]:
        """Yield all its values as a recipe writes them, one by one: there may be more than any memory holds."""
        if self.choices:
            yield from self.choices
            return
        for index in range(self.count or 0):
            yield self.written(self.low + index * (self.step or 1.0))

    def taken(self, value: Any) -> tuple[Any, ...]:
        """Return a value as it is when it has been chosen; nothing where it never is, or as one of endlessly many only."""
        if self.choices:
            return (value,) if value in self.choices else ()
        number = _number_in(self.unit, value)
        step = self.step or (1.0 if self.whole else None)
        if number is None or step is None or not self.low <= number <= self.high:
            return ()
        place = (number - self.low) / step
        return (self.written(self.low + round(place) * step),) if abs(place - round(place)) < 1e-6 else ()

    def to_json(self) -> dict[str, Any]:
        """Return what decides its values, to be compared with another invocation's."""
        what: dict[str, Any] = {"when": {path: list(values) for path, values in self.when}} if self.when else {}
        if self.choices:
            return {"choices": list(self.choices), **what}
        found = {"low": self.written(self.low), "high": self.written(self.high), "step": self.step, "log": self.log}
        return {**{key: value for key, value in found.items() if value not in (None, False)}, **what}


def _number_in(unit: str, value: Any) -> float | None:
    """Return a value as a number in a unit of SI; None for what is none."""
    dimension = next(dimension for dimension in (FRACTION, *_DIMENSIONS) if dimension.si == unit)
    if not unit and isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return dimension.parse(value) if _reads(dimension, value) else None


def space_of(tree: Node, sweep: Sweep, stacks: Mapping[str, Stack], baseline: str) -> tuple[Parameter, ...]:
    """Return what a sweep varies, conditions before what hangs on them. Raises OrchError (E24x) at the fault's place."""
    over = tree.find(("sweep", "over")) or tree
    found: dict[str, Parameter] = {}
    for path, spec in sweep.over.items():
        node = over.get(path) or over
        for parameter in _parameters(path, spec, node, stacks):
            if any(parameter.keys == other.keys for other in found.values()):
                message = f"sweep.over varies {parameter.path} twice"
                raise OrchError(message, code="E240", where=node.place, hint="keep one")
            found[parameter.path] = parameter
    if STACK not in found:
        found = {STACK: _only_stack(over, stacks, baseline), **found}
    chosen = found[STACK].choices
    ordered = _ordered([_conditioned(parameter, chosen, stacks) for parameter in found.values()], found)
    _refuse_dead(ordered)
    _refuse_twofold(ordered)
    return ordered


def _refuse_dead(ordered: Sequence[Parameter]) -> None:
    """Refuse a setting that no trial could have: its conditions, with those of what it hangs on, exclude one another."""
    needs: dict[str, dict[str, tuple[Any, ...]]] = {}
    for parameter in ordered:
        own = needs[parameter.path] = dict[str, tuple[Any, ...]]()
        inherited = (pair for path, _ in parameter.when for pair in needs[path].items())
        for path, values in (*parameter.when, *inherited):
            own[path] = tuple(value for value in values if value in own.get(path, values))
            if not own[path]:
                message = f"{parameter.path} is never varied: no value of {path} meets all its conditions"
                raise OrchError(message, code="E242", where=parameter.where, hint="loosen its `when`, or drop it")


def _refuse_twofold(parameters: Sequence[Parameter]) -> None:
    """Refuse a knob that is varied for all stacks and for one of them again: one of the two would change nothing."""
    for own in (parameter for parameter in parameters if parameter.keys[0] == "stacks"):
        for shared in (parameter for parameter in parameters if parameter.keys[0] == "techniques"):
            meets = own.keys[1] in dict(shared.when).get(STACK, (own.keys[1],))
            if own.keys[2:] == shared.keys[1:] and meets:
                message = f"{own.path} and {shared.path} vary one knob of stack {quoted(own.keys[1])}"
                hint = f"keep one, or have the other stacks wait: when: {{{STACK}: [NAME, ..]}}"
                raise OrchError(message, code="E240", where=own.where, hint=hint)


def _only_stack(over: Node, stacks: Mapping[str, Stack], baseline: str) -> Parameter:
    others = [name for name in stacks if name != baseline] or list(stacks)
    if len(others) > 1:
        message = f"sweep.over does not say which of the stacks {', '.join(others)} runs"
        raise OrchError(message, code="E240", where=over.place, hint="add stack: [NAME, ...], or stack: auto for all")
    return Parameter(STACK, (STACK,), over.place, choices=(others[0],))


def _parameters(path: str, spec: Over, node: Node, stacks: Mapping[str, Stack]) -> Iterator[Parameter]:
    if path == STACK:
        yield _stack(spec, node, stacks)
        return
    keys = path_of(path, node.place)
    if keys[0] in _NOT_SWEPT and not (keys[0] == "stacks" and len(keys) == 4):
        hint = "vary `stack`, knobs as techniques.NAME.KNOB, or settings of model, data, train, cluster, measure"
        raise OrchError(f"{keys[0]} cannot be varied", code="E240", where=node.place, hint=hint)
    if keys[0] == "techniques" and len(keys) < 3 and (spec.choices is not None or spec.low is not None):
        hint = "name a knob: techniques.NAME.KNOB; techniques.NAME: auto varies all of a technique's"
        raise OrchError(f"{path} is no single setting", code="E240", where=node.place, hint=hint)
    when = tuple((name, tuple(values)) for name, values in spec.when.items())
    if spec.choices is None and spec.low is None:
        yield from (replace(own, when=when) for own in _own(path, keys, node))
    elif spec.choices is not None:
        _refuse_twice(path, spec.choices, node)
        _refuse_endless(path, spec.choices, node)
        yield Parameter(path, keys, node.place, choices=tuple(spec.choices), when=when)
    else:
        yield replace(_range(path, keys, spec, node), when=when)


def _stack(spec: Over, node: Node, stacks: Mapping[str, Stack]) -> Parameter:
    if spec.low is not None or spec.when:
        raise OrchError("stack is varied by choices", code="E241", where=node.place, hint="write stack: [NAME, NAME]")
    names = tuple(stacks) if spec.choices is None else tuple(spec.choices)
    _refuse_twice(STACK, names, node)
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in stacks:
            where = (node.find(("choices", str(index))) or node).where
            hint = did_you_mean(str(name), stacks) or f"stacks: {', '.join(stacks)}"
            raise OrchError(f"{quoted(str(name))} is no stack of this recipe", code="E233", where=where, hint=hint)
    return Parameter(STACK, (STACK,), node.place, choices=names)


def _refuse_twice(path: str, choices: Sequence[Any], node: Node) -> None:
    for index, value in enumerate(choices):
        if any(type(value) is type(other) and value == other for other in choices[:index]):
            where = (node.find(("choices", str(index))) or node).where
            raise OrchError(f"{path} has the choice {value!r} twice", code="E241", where=where, hint="keep one")


def _refuse_endless(path: str, choices: Sequence[Any], node: Node) -> None:
    for index, value in enumerate(choices):
        if isinstance(value, float) and not math.isfinite(value):
            where = (node.find(("choices", str(index))) or node).where
            raise OrchError(f"{path} has a choice that is no finite number", code="E241", where=where, hint="drop it")


def _range(path: str, keys: Path, spec: Over, node: Node) -> Parameter:
    """Return a range of numbers, or of quantities, whose ends then have units of one kind."""

    def fault(message: str, key: str, hint: str) -> OrchError:
        return OrchError(f"{path}: {message}", code="E241", where=(node.get(key) or node).where, hint=hint)

    ends = {key: getattr(spec, key) for key in ("low", "high", "step") if getattr(spec, key) is not None}
    dimension = next((d for d in _DIMENSIONS if all(_reads(d, value) for value in ends.values())), None)
    numbers: dict[str, float] = {}
    for key, value in ends.items():
        if dimension is not None:
            numbers[key] = dimension.parse(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[key] = value
        elif isinstance(value, str) and _reads(FRACTION, value):
            numbers[key] = FRACTION.parse(value)
        else:
            hint = "write numbers, or quantities of one kind such as 32KiB and 4MiB; names are choices: [a, b]"
            words = ", ".join(f"{key} {json.dumps(value).strip(chr(34))}" for key, value in ends.items())
            raise fault(f"{words}: these do not make a range", key, hint)
        if not math.isfinite(numbers[key]):
            raise fault(f"{key} is no finite number", key, "a range has two ends")
    low, high, step = numbers["low"], numbers["high"], numbers.get("step")
    whole = dimension is BYTES or all(type(value) is int for value in ends.values())
    if not low < high:
        single = "a single value is no range: set it in the recipe"
        raise fault("high must be above low", "high", single if low == high else "swap them")
    if not math.isfinite(high - low):
        raise fault("the range is wider than any number", "high", "use log: true, or nearer ends")
    if spec.log and low <= 0:
        raise fault("a logarithmic range begins above 0", "low", "give a low above 0, or drop log")
    if spec.log and step is not None:
        raise fault("a logarithmic range has no step", "step", "drop one of them")
    if step is not None and not 0 < step <= high - low:
        raise fault("step must be above 0 and at most high - low", "step", "")
    if step is not None:
        high = low + step * int((high - low) / step + 1e-9)
    unit = dimension.si if dimension is not None else ""
    return Parameter(path, keys, node.place, low=low, high=high, step=step, log=spec.log, whole=whole, unit=unit)


def _reads(dimension: Dimension, value: object) -> bool:
    try:
        dimension.parse(value)
    except ValueError:
        return False
    return True


def _own(path: str, keys: Path, node: Node) -> Iterator[Parameter]:
    """Yield the knob at `keys`, or all knobs of the technique there, with the ranges that the technique itself states."""
    if keys[0] != "techniques" or len(keys) not in (2, 3):
        hint = f"give choices or a range: {path}: {{low: .., high: ..}}"
        raise OrchError(f"{path} has no range of its own", code="E241", where=node.place, hint=hint)
    fields = registry.technique(keys[1], node.place).config.model_fields
    wanted = list(fields) if len(keys) == 2 else [keys[2]]
    for name in wanted:
        if name not in fields:
            hint = did_you_mean(name, fields) or f"its knobs: {', '.join(fields)}"
            raise OrchError(f"{keys[1]} has no knob {quoted(name)}", code="E210", where=node.place, hint=hint)
        found = _own_range(dotted((*keys[:2], name)), (*keys[:2], name), fields[name], node.place)
        if found is not None:
            yield found
        elif len(keys) == 3:
            hint = "give choices or a range: {low: .., high: ..}"
            raise OrchError(f"{path} has no bounds of its own", code="E241", where=node.place, hint=hint)


def _own_range(path: str, keys: Path, field: Any, where: Position) -> Parameter | None:
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return Parameter(path, keys, where, choices=get_args(annotation))
    if annotation is bool:
        return Parameter(path, keys, where, choices=(False, True))
    bounds = {
        name: getattr(item, name) for item in field.metadata for name in ("ge", "gt", "le", "lt") if hasattr(item, name)
    }
    high = bounds.get("le")
    if high is None or annotation not in (int, float):
        return None
    dimension = next((item for item in field.metadata if isinstance(item, Dimension)), None)
    unit = dimension.si if dimension is not None else ""
    if bounds.get("gt") == 0 and annotation is float:
        return Parameter(path, keys, where, low=high / 10**OPEN_DECADES, high=high, log=True, unit=unit)
    low = bounds.get("ge")
    if low is None or not low < high:
        return None
    return Parameter(path, keys, where, low=low, high=high, whole=annotation is int, unit=unit)


def _conditioned(parameter: Parameter, chosen: Sequence[str], stacks: Mapping[str, Stack]) -> Parameter:
    """Return a knob with the condition that the stack uses it: elsewhere it would change nothing."""
    keys = parameter.keys
    if keys[0] == "techniques" and len(keys) > 1:
        users = tuple(name for name in chosen if keys[1] in stacks[name].techniques)
        if not users:
            known = registry.technique(keys[1], parameter.where)
            message = f"{parameter.path} is varied, but no stack of the sweep uses {known.name}"
            raise OrchError(message, code="E224", where=parameter.where, hint="name it in a stack, or drop it")
    elif keys[0] == "stacks":
        if keys[1] not in chosen:
            message = f"{parameter.path} is varied, but the sweep never runs stack {quoted(keys[1])}"
            raise OrchError(message, code="E233", where=parameter.where, hint=did_you_mean(keys[1], chosen))
        users = (keys[1],)
    else:
        return parameter
    for path, values in parameter.when:
        if path == STACK and not set(values) & set(users):
            message = f"{parameter.path} waits for stack {quoted(str(values[0]))}, which has no such knob"
            hint = f"stacks that have it: {', '.join(users)}"
            raise OrchError(message, code="E242", where=parameter.where, hint=hint)
    return parameter if len(users) == len(chosen) else replace(parameter, when=((STACK, users), *parameter.when))


def _as_taken(parameter: Parameter, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(taken for value in values for taken in parameter.taken(value))


def _never(parameter: Parameter, other: Parameter, value: Any) -> OrchError:
    """Return what to say of a condition on a value that another setting never has."""
    message = f"{parameter.path} waits for {other.path} to be {value!r}, which "
    if other.choices:
        words, hint = "is none of its choices", f"choices: {', '.join(map(str, other.choices))}"
    elif other.count is None and not other.whole:
        words, hint = "a range of any values hardly ever is", "give that range a step, or choices"
    else:
        ends = " to ".join(map(str, other.ends()))
        words, hint = "is no value of its range", f"{ends}" + (f" in steps of {other.step:g}" if other.step else "")
    return OrchError(message + words, code="E242", where=parameter.where, hint=hint)


def _ordered(parameters: Sequence[Parameter], known: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    """Return parameters so that each stands behind those its conditions name; the stack first."""
    left = sorted(parameters, key=lambda parameter: parameter.path != STACK)
    done: dict[str, Parameter] = {}
    for parameter in left:
        for path, values in parameter.when:
            if path not in known:
                hint = did_you_mean(path, known) or f"varied are: {', '.join(known)}"
                message = f"{parameter.path} hangs on {path}, which the sweep does not vary"
                raise OrchError(message, code="E242", where=parameter.where, hint=hint)
            if odd := [value for value in values if not known[path].taken(value)]:
                raise _never(parameter, known[path], odd[0])
    left = [
        replace(one, when=tuple((path, _as_taken(known[path], values)) for path, values in one.when)) for one in left
    ]
    while left:
        ready = [p for p in left if all(path in done for path, _ in p.when)]
        if not ready:
            names = ", ".join(parameter.path for parameter in left)
            raise OrchError(f"the conditions of {names} lead in a circle", code="E242", where=left[0].where)
        done |= {parameter.path: parameter for parameter in ready}
        left = [parameter for parameter in left if parameter.path not in done]
    return tuple(done.values())
