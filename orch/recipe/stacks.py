"""The stacks of a recipe: names and knobs become members, and the contracts of `orch.stack` say whether they fit.

A fault is placed at the technique that has to go or change. Knobs of `techniques` also reach a technique that only
fills an empty slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orch import registry
from orch.errors import OrchError, quoted
from orch.recipe.faults import checked
from orch.recipe.schema import Train
from orch.recipe.tree import Node, mapping
from orch.stack import Member, arrange, engine, is_lossless
from orch.technique import Knobs, Technique


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack: its members in the order their passes run, and how it is trained."""

    name: str
    members: tuple[Member, ...]
    train: Train
    # Whether experts of its model have a capacity.
    capacity: bool = False

    @property
    def techniques(self) -> tuple[str, ...]:
        """Names of its techniques, in the order their passes run; those that only fill a slot included."""
        return tuple(member.name for member in self.members)

    @property
    def lossless(self) -> bool:
        """Whether it is equal to plain S-SGD within rounding, with the knobs it has."""
        other_drops = self.capacity and any(member.technique.splits_capacity for member in self.members)
        return is_lossless(self.members) and not other_drops

    @property
    def engine(self) -> str | None:
        """`module:Class` of the runtime that a member brings in place of the plan's own, or None."""
        return engine(self.members)


def build_members(stack: str, names: Node, knobs: Node) -> tuple[Member, ...]:
    """Return the members of one stack; `names` is {technique: {knob: value}}, `knobs` the recipe's `techniques`.

    Raises OrchError at the name or knob that is at fault.
    """
    if not isinstance(names.value, Mapping) or not names.value:
        hint = "name at least one technique: orch list techniques"
        raise OrchError(f"the stack {quoted(stack)} is empty", code="E228", where=names.place, hint=hint)
    chosen = [
        _member(stack, registry.technique(name, node.place), node, knobs.get(name))
        for name, node in names.value.items()
    ]
    try:
        arranged = arrange(chosen, registry.technique)
    except OrchError as error:
        blamed = [node for name, node in names.value.items() if f"'{name}'" in error.message]
        raise error.at((blamed[-1] if blamed else names).place) from None
    return tuple(
        member if member.given else _member(stack, member.technique, None, knobs.get(member.name))
        for member in arranged
    )


def _member(stack: str, technique: Technique, own: Node | None, shared: Node | None) -> Member:
    node = knob_node(own, shared)
    member = Member(technique, technique.config() if node is None else _config(stack, technique, own, node))
    return member if own is not None else replace(member, given=False)


def knob_node(own: Node | None, shared: Node | None) -> Node | None:
    """Return the knobs of a technique as written: the stack's own over those of `techniques`."""
    if own is None or shared is None or not isinstance(shared.value, Mapping) or not isinstance(own.value, Mapping):
        return own or shared
    return mapping({**shared.value, **own.value}, own.where if own.value else shared.where, own.key_where)


def _config(stack: str, technique: Technique, own: Node | None, node: Node) -> Knobs:
    local = own is not None and bool(own.value)
    prefix = ("stacks", stack, technique.name) if local else ("techniques", technique.name)
    config: Knobs = checked(technique.config.model_validate, node, prefix, technique.config)
    return config
