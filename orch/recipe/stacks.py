"""Stacks of techniques: who is in them, with which knobs, and whether they can work together.

A stack is a set. Passes run in the order of their slots; a slot that is left empty is filled as the others' `defaults`
say. A conflict is explained with the smallest change that removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orch import registry
from orch.errors import OrchError, quoted
from orch.recipe.faults import checked
from orch.recipe.schema import Train
from orch.recipe.tree import Node, mapping
from orch.technique import Form, Knobs, Technique


@dataclass(frozen=True, slots=True)
class Part:
    """One technique of a stack with its knobs; `implied` when another technique's defaults brought it in."""

    technique: Technique
    config: Knobs
    implied: bool = False

    @property
    def name(self) -> str:
        """Name of the technique."""
        return self.technique.name


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack: its parts in the order their passes run, and how it is trained."""

    name: str
    parts: tuple[Part, ...]
    train: Train

    @property
    def lossless(self) -> bool:
        """Whether every technique of it is equal to plain S-SGD within rounding."""
        return all(part.technique.lossless for part in self.parts)

    @property
    def techniques(self) -> tuple[str, ...]:
        """Names of its techniques, in the order their passes run."""
        return tuple(part.name for part in self.parts)


def build_parts(stack: str, members: Node, knobs: Node) -> tuple[Part, ...]:
    """Return the parts of one stack; `members` is {technique: {knob: value}}, `knobs` the recipe's `techniques`."""
    if not isinstance(members.value, Mapping) or not members.value:
        hint = "name at least one technique: orch list techniques"
        raise OrchError(f"the stack {quoted(stack)} is empty", code="E228", where=members.place, hint=hint)
    found = {name: registry.technique(name, node.place) for name, node in members.value.items()}
    _check_slots(found, members)
    implied = _implied(found, members)
    _check_excludes(stack, found | implied, members)
    parts = [
        Part(value, _config(stack, value, members.get(name), knobs.get(name)), implied=name in implied)
        for name, value in (found | implied).items()
    ]
    parts.sort(key=lambda part: part.technique.slot.rank)
    _check_forms(parts, members)
    return tuple(parts)


def knob_node(own: Node | None, shared: Node | None) -> Node | None:
    """Return the knobs of a technique as written: the stack's own over those of `techniques`."""
    if own is None or shared is None or not isinstance(shared.value, Mapping) or not isinstance(own.value, Mapping):
        return own or shared
    return mapping({**shared.value, **own.value}, own.where if own.value else shared.where, own.key_where)


def _config(stack: str, technique: Technique, own: Node | None, shared: Node | None) -> Knobs:
    node = knob_node(own, shared)
    if node is None:
        return technique.config()
    local = own is not None and bool(own.value)
    prefix = ("stacks", stack, technique.name) if local else ("techniques", technique.name)
    config: Knobs = checked(technique.config.model_validate, node, prefix, technique.config)
    return config


def _implied(found: Mapping[str, Technique], members: Node) -> dict[str, Technique]:
    """Return the techniques that fill the slots left empty, in slot order of those that ask for them."""
    taken = {technique.slot for technique in found.values()}
    implied: dict[str, Technique] = {}
    queue = sorted(found.values(), key=lambda technique: technique.slot.rank)
    while queue:
        asking = queue.pop(0)
        for name in asking.defaults:
            member = members.get(asking.name)
            value = registry.technique(name, member.place if member is not None else members.place)
            if value.slot not in taken:
                taken.add(value.slot)
                implied[name] = value
                queue.append(value)
    return implied


def _check_slots(found: Mapping[str, Technique], members: Node) -> None:
    holders: dict[object, str] = {}
    for name, technique in found.items():
        other = holders.setdefault(technique.slot, name)
        if other != name:
            node = members.get(name) or members
            message = f"{quoted(other)} and {quoted(name)} both fill slot {technique.slot.label}"
            raise OrchError(
                message, code="E225", where=node.place, hint=f"keep one, or make {quoted(name)} a stack of its own"
            )


def _check_excludes(stack: str, found: Mapping[str, Technique], members: Node) -> None:
    for name, technique in found.items():
        for other, reason in technique.excludes.items():
            if other in found:
                node = members.get(other) or members.get(name) or members
                message = f"{quoted(name)} cannot share a stack with {quoted(other)}: {reason}"
                hint = f"remove {quoted(other)} from {quoted(stack)}, or make it a stack of its own"
                raise OrchError(message, code="E226", where=node.place, hint=hint)


def _check_forms(parts: list[Part], members: Node) -> None:
    form, giver = Form.DENSE, "the workload"
    for part in parts:
        if form not in part.technique.needs:
            node = members.get(part.name) or members
            needed = " or ".join(sorted(need.value for need in part.technique.needs))
            message = f"{quoted(part.name)} needs {needed} gradients, but {giver} gives {form.value} ones"
            raise OrchError(message, code="E227", where=node.place, hint=f"remove {quoted(part.name)} or {giver}")
        if part.technique.gives is not None and part.technique.gives is not form:
            form, giver = part.technique.gives, quoted(part.name)
