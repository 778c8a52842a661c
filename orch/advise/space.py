"""The stacks there are to choose from: one technique a slot as contracts allow, and neighbouring values of their knobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from orch import registry
from orch.errors import OrchError
from orch.recipe import Recipe
from orch.recipe.stacks import Stack
from orch.stack import DEFAULT_SCHEDULE, Member, arrange
from orch.technique import Knobs, Slot, Technique
from orch.units import Dimension, Quantity

# Filled as the compressor's own contract says: they change what is learned, hardly what a step takes; and what describes the
# surroundings of a step, of which nobody chooses.
_LEFT_TO_DEFAULTS = (Slot.FEEDBACK, Slot.EXCHANGE, Slot.INPUT)
# Tried with the fastest stacks of all else: each with each would be thousands.
_ADDED = (Slot.CODEC, Slot.ALL_TO_ALL)
# A knob is tried so many times larger and smaller: within these its best value costs little more than at its default.
STEPS = (0.25, 4.0)


@dataclass(frozen=True)
class Candidate:
    """A stack to try, how it is written in a recipe, whether the user's own has it by this name, and whether a knob of it
    was moved to try.
    """

    stack: Stack
    written: Mapping[str, Mapping[str, Any]]
    own: bool = False
    tuned: bool = False

    @property
    def name(self) -> str:
        """Its name: as the recipe has it, or its techniques with the knobs that are not at their defaults."""
        return self.stack.name


def own(recipe: Recipe) -> Iterator[Candidate]:
    """Yield the stacks that `recipe` has."""
    for stack in recipe.stacks.values():
        yield Candidate(stack, written(stack.members), own=True)


def singles(recipe: Recipe) -> Iterator[Candidate]:
    """Yield every technique as a stack of its own, with the recipe's knobs or the defaults; those of mixtures where the
    model has some.
    """
    mixtures = bool(recipe.model.profile(recipe.data).mixtures)
    for name in registry.techniques():
        technique = registry.technique(name)
        if technique.slot not in _LEFT_TO_DEFAULTS and (mixtures or not technique.slot.of_mixtures):
            yield from _stacked(recipe, [technique])


def combined(recipe: Recipe, names: Collection[str]) -> Iterator[Candidate]:
    """Yield every stack of two techniques or more, out of `names`, that contracts allow: at most one a slot."""
    left = (*_LEFT_TO_DEFAULTS, *_ADDED)
    slots: dict[Slot, list[Technique | None]] = {slot: [None] for slot in Slot if slot not in left}
    for name in names:
        technique = registry.technique(name)
        # An empty schedule is filled with the default one, so that one is not tried twice.
        if technique.slot in slots and name != DEFAULT_SCHEDULE:
            slots[technique.slot].append(technique)
    for chosen in product(*slots.values()):
        given = [technique for technique in chosen if technique is not None]
        if len(given) > 1:
            yield from _stacked(recipe, given)


def travelling(recipe: Recipe, candidate: Candidate, names: Collection[str]) -> Iterator[Candidate]:
    """Yield `candidate` with every other form and way, out of `names`, in which rows of mixtures may travel."""
    given = [member.technique for member in candidate.stack.members if member.given]
    options: list[list[Technique | None]] = [
        [None, *(one for one in map(registry.technique, names) if one.slot is slot)]
        for slot in _ADDED
        if slot not in {technique.slot for technique in given}
    ]
    for chosen in product(*options):
        more = [technique for technique in chosen if technique is not None]
        if more:
            yield from _stacked(recipe, [*given, *more])


def _stacked(recipe: Recipe, given: list[Technique]) -> Iterator[Candidate]:
    found = _arranged(recipe, [Member(technique, _config(recipe, technique)) for technique in given])
    if found is not None:
        yield _candidate(recipe, found)


def neighbours(recipe: Recipe, candidate: Candidate) -> Iterator[Candidate]:
    """Yield `candidate` with one knob at another value: each named one, or a few times the number it has."""
    for member in candidate.stack.members:
        for name, value in _values(member.config):
            settings = {key: _read(knob) for key, knob in (member.config.model_dump() | {name: value}).items()}
            try:
                changed = replace(member, config=type(member.config).model_validate(settings))
            except ValidationError:
                continue
            given = [changed if other is member else other for other in candidate.stack.members]
            found = _arranged(recipe, [replace(other, given=other.given or other is changed) for other in given])
            if found is not None:
                yield _candidate(recipe, found, candidate)


def _values(config: Knobs) -> Iterator[tuple[str, Any]]:
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if get_origin(field.annotation) is Literal:
            yield from ((name, other) for other in get_args(field.annotation) if other != value)
        elif _is_size(field, value):
            for step in STEPS:
                other = type(value)(value * step)
                if other != value and other > 0:
                    yield name, other


def _read(value: Any) -> Any:
    """Return a knob's value as its schema takes it back: SI already, where a unit would have to stand."""
    return Quantity(value) if isinstance(value, float) else value


def _with_unit(field: FieldInfo, value: Any) -> Any:
    """Return a knob's value as a recipe has it."""
    metadata = [*field.metadata, *(item for part in get_args(field.annotation) for item in get_args(part))]
    dimension = next((item for item in metadata if isinstance(item, Dimension)), None)
    return (
        value
        if dimension is None or not isinstance(value, float)
        else f"{value!r}{dimension.si}"
        if dimension.si
        else value
    )


def _is_size(field: FieldInfo, value: object) -> bool:
    """Whether a knob holds a number that may be a few times larger or smaller. A ratio of 1 is a limit: a fourth of it
    means something else.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and value != 1.0
    return number and any(isinstance(rule, annotated_types.Ge | annotated_types.Gt) for rule in field.metadata)


def _arranged(recipe: Recipe, members: list[Member]) -> tuple[Member, ...] | None:
    try:
        found = arrange(members, registry.technique)
    except OrchError:
        return None
    if recipe.layout.cuts and not all(member.technique.for_stages for member in found):
        return None
    return tuple(m if m.given else replace(m, config=_config(recipe, m.technique)) for m in found)


def _config(recipe: Recipe, technique: Technique) -> Knobs:
    try:
        return technique.config.model_validate(recipe.spec.techniques.get(technique.name, {}))
    except ValidationError:
        return technique.config()


def _candidate(recipe: Recipe, members: tuple[Member, ...], of: Candidate | None = None) -> Candidate:
    given = [member for member in members if member.given]
    label = "+".join(member.name for member in given)
    if of is not None and of.own:
        label = of.name
    changed = [
        f"{name}={_shown(value)}"
        for member in given
        for name, value in _differences(
            member, _config(recipe, member.technique) if of is None else _before(of, member)
        )
    ]
    name = f"{label} {' '.join(changed)}" if changed else label
    return Candidate(
        Stack(name, members, recipe.train, recipe.baseline.capacity), written(members), tuned=of is not None
    )


def _before(of: Candidate, member: Member) -> Knobs:
    return next(other.config for other in of.stack.members if other.name == member.name)


def _differences(member: Member, usual: Knobs) -> list[tuple[str, Any]]:
    mine, other = member.config.model_dump(), usual.model_dump()
    return [(name, value) for name, value in mine.items() if value != other[name]]


def _shown(value: object) -> str:
    if isinstance(value, float) and value >= 2**10 and value % 2**10 == 0:
        return f"{value / 2**20:g}MiB" if value >= 2**20 else f"{value / 2**10:g}KiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def written(members: Sequence[Member]) -> dict[str, dict[str, Any]]:
    """Return a stack as a recipe may write it: given techniques with the knobs that are not at the defaults."""
    return {
        member.name: {
            name: _with_unit(type(member.config).model_fields[name], value)
            for name, value in _differences(member, member.technique.config())
        }
        for member in members
        if member.given or _differences(member, member.technique.config())
    }
