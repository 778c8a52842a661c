"""From what a sampler chose to a recipe with one stack, and to the key of the cell that this recipe is.

Composing costs milliseconds, so what is not a knob is composed once for each combination of values; knobs are set on
the checked recipe.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orch.errors import OrchError, Position
from orch.recipe import Recipe, Stack, load
from orch.recipe.faults import checked
from orch.recipe.overrides import Override, apply_overrides, parse_override
from orch.recipe.space import STACK, Parameter
from orch.recipe.tree import Node, mapping
from orch.stack import Member
from orch.technique import Knobs

Chosen = Mapping[str, Any]
_KEPT = 512
_CORNERS = 8
"""Of each stack, how many corners of the space are tried before a sweep in which none can be is refused."""


@dataclass(frozen=True)
class Trial:
    """The recipe of one trial, all stacks of the frame still in it, and the stack that it runs."""

    recipe: Recipe
    stack: str

    @property
    def frame_key(self) -> int:
        """What trials share whose recipes differ in knobs only."""
        return id(self.recipe.tree)


@dataclass
class Settings:
    """Makes the recipe of each trial of a sweep. `overrides` are those of the command line."""

    recipe: Recipe
    overrides: Sequence[str] = ()
    _frames: dict[str, Recipe] = field(default_factory=dict, repr=False)
    _by_path: dict[str, Parameter] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_path = {parameter.path: parameter for parameter in self.recipe.space}
        for number, text in enumerate(self.overrides, start=1):
            keys = parse_override(text, number).path
            for parameter in self.recipe.space:
                shared = min(len(keys), len(parameter.keys))
                if keys[:shared] == parameter.keys[:shared] and len(keys) >= len(parameter.keys):
                    hint = f"drop it, or 'sweep.over.\"{parameter.path}\"=null' to keep the value fixed"
                    message = f"the sweep varies {parameter.path}"
                    raise OrchError(message, code="E631", where=Position(f"override {number}: {text}"), hint=hint)

    def refuse_impossible(self) -> None:
        """Raise the OrchError of the first setting that the recipe cannot have even alone, before any trial."""
        for parameter in self.recipe.space:
            if parameter.path == STACK:
                continue
            stacks = dict(parameter.when).get(STACK) or self._by_path[STACK].choices
            for value in parameter.ends():
                try:
                    self.trial({STACK: stacks[0], parameter.path: value})
                except OrchError as error:
                    message = f"{parameter.path}={value}: {error.message}"
                    raise OrchError(message, code=error.code, where=parameter.where, hint=error.hint) from None
        self._refuse_together()

    def _refuse_together(self) -> None:
        """Raise the OrchError of settings of which no corner of the space can be: what excludes one another always."""
        space, faults = self.recipe.space, list[OrchError]()
        for name in self._by_path[STACK].choices:
            for corner in range(_CORNERS):
                chosen: dict[str, Any] = {STACK: name}
                for place, parameter in enumerate(space):
                    if parameter.path != STACK and parameter.active(chosen):
                        ends = parameter.ends()
                        chosen[parameter.path] = ends[-(corner >> place & 1)]
                try:
                    self.trial(chosen)
                except OrchError as error:
                    faults.append(error)
                else:
                    return
        message = f"no setting that the sweep varies can be with the others: {faults[0].message}"
        node = self.recipe.tree.find(("sweep", "over")) or self.recipe.tree
        raise OrchError(message, code=faults[0].code, where=node.place, hint=faults[0].hint)

    def trial(self, chosen: Chosen) -> Trial:
        """Return the recipe of what was chosen: {path: value as a recipe writes it}. Raises OrchError where it cannot be."""
        name = chosen[STACK]
        knobs = [self._by_path[path] for path in chosen if self._by_path[path].keys[0] in ("techniques", "stacks")]
        rest = {p: v for p, v in chosen.items() if p != STACK and all(p != knob.path for knob in knobs)}
        frame = self._frame(rest)
        if not knobs:
            return Trial(frame, name)
        return Trial(_with_knobs(frame, name, [(knob, chosen[knob.path]) for knob in knobs]), name)

    def _frame(self, rest: Chosen) -> Recipe:
        if not rest:
            return self.recipe
        # The whole before its parts, in whatever order the recipe varies them.
        whole_first = sorted(rest, key=lambda path: len(self._by_path[path].keys))
        texts = [f"{path}={json.dumps(rest[path])}" for path in whole_first]
        key = "\n".join(texts)
        if key not in self._frames:
            if len(self._frames) >= _KEPT:
                self._frames.clear()
            self._frames[key] = load(self.recipe.path, [*self.overrides, *texts])
        return self._frames[key]


def _with_knobs(recipe: Recipe, name: str, knobs: Sequence[tuple[Parameter, Any]]) -> Recipe:
    """Return `recipe` with knobs of one stack set: they are that stack's own, and so go before those of `techniques`.

    Which techniques a stack has, and in which order they pass, no knob decides: only their settings are read anew.
    """
    stacks = recipe.tree.get("stacks")
    assert stacks is not None
    written = stacks.get(name) or stacks
    changed: dict[str, Node] = {}
    for parameter, value in knobs:
        technique, *path = parameter.keys[1:] if parameter.keys[0] == "techniques" else parameter.keys[2:]
        where = Position(f"{parameter.path}={value}")
        given = Override(str(where), where, tuple(path), _node(value, where))
        node = changed.get(technique) or written.get(technique) or mapping({}, where)
        changed[technique] = apply_overrides(node, [given])
    members = tuple(
        replace(member, config=_config(member, changed[member.name])) if member.name in changed else member
        for member in recipe.stacks[name].members
    )
    entries = mapping({**dict(written.items()), **changed}, written.where, written.key_where)
    tree = _replaced(recipe.tree, ("stacks", name), entries)
    return replace(recipe, stacks={**recipe.stacks, name: replace(recipe.stacks[name], members=members)}, tree=tree)


def _config(member: Member, knobs: Node) -> Knobs:
    kind = member.technique.config
    found: Knobs = checked(kind.model_validate, knobs, ("techniques", member.name), kind)
    return found


def _node(value: Any, where: Position) -> Node:
    if isinstance(value, Mapping):
        return mapping({key: _node(item, where) for key, item in value.items()}, where)
    if isinstance(value, (list, tuple)):
        return Node(tuple(_node(item, where) for item in value), where)
    return Node(value, where)


def _replaced(tree: Node, path: tuple[str, ...], node: Node) -> Node:
    if not path:
        return node
    entries = dict(tree.items())
    entries[path[0]] = _replaced(entries[path[0]], path[1:], node)
    return mapping(entries, tree.where, tree.key_where, over=tree.over)


def reduced(recipe: Recipe, stacks: Mapping[str, Stack], baseline: str) -> Recipe:
    """Return `recipe` with these stacks only, as a recipe of its own that `orch run` takes."""
    tree = recipe.tree
    entries = {key: node for key, node in tree.items() if key not in ("sweep", "techniques")}
    written = tree.get("stacks") or tree
    entries["stacks"] = mapping({name: written.get(name) or written for name in stacks}, written.where)
    entries["baseline"] = Node(baseline, Position("sweep"))
    if (when := entries.get("when")) is not None:
        entries["when"] = mapping({name: node for name, node in when.items() if name in stacks}, when.where)
    spec = recipe.spec.model_copy(update={"baseline": baseline, "sweep": None})
    return replace(recipe, spec=spec, stacks=dict(stacks), tree=mapping(entries, tree.where), space=())


def cell_key(recipe: Recipe, stack: str, mode: str, surroundings: Mapping[str, Any]) -> str:
    """Return the key of a cell: equal keys mean the same stack, trained the same way, on the same cluster, by the same code.

    `surroundings` is what is no part of a recipe: digests of code, versions of libraries, where it runs.
    """
    chosen = recipe.stacks[stack]
    codes: Mapping[str, Any] = surroundings.get("code", {})
    cell = {
        "members": {member.name: member.config.model_dump(mode="json") for member in chosen.members},
        "train": chosen.train.model_dump(mode="json"),
        "mode": mode,
        "frame": _frame(recipe, mode)[1],
        "around": {**surroundings, "code": [codes.get(member.name) for member in chosen.members]},
    }
    return hashlib.sha256(json.dumps(cell, sort_keys=True, default=str).encode()).hexdigest()[:32]


_FACTS: dict[tuple[int, str], tuple[Node | None, Any, str]] = {}
_NO_PART = ("name", "orch", "stacks", "techniques", "baseline", "when", "train", "sweep", "on", "uncertain")
_MEASURED = ("measure", "seeds", "target")


def frame_facts(recipe: Recipe, mode: str) -> Mapping[str, Any]:
    """Return what of a recipe decides a cell beside its stack: model, data, cluster; for a measured one how it is measured."""
    return _frame(recipe, mode)[0]


def _frame(recipe: Recipe, mode: str) -> tuple[Mapping[str, Any], str]:
    """Return the facts of a frame, and their digest, both worked out once for all trials that share it."""
    cluster = recipe.tree.get("cluster")
    known = _FACTS.get((id(cluster), mode))
    if known is None or known[0] is not cluster:
        if len(_FACTS) > _KEPT:
            _FACTS.clear()
        left_out = {*_NO_PART, *(_MEASURED if mode == "simulated" else ())}
        facts = {key: node.plain() for key, node in recipe.tree.items() if key not in left_out}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        known = _FACTS[id(cluster), mode] = (cluster, facts, digest)
    return known[1], known[2]
