"""From a file and overrides to one tree: `extends`, overrides, named clusters, references.

Mappings merge; lists and scalars replace; `key: null` in a child removes what its parent said. Sections that name one
of several things (the optimizer) are replaced when the child names another one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from orch import registry
from orch.errors import OrchError, Position, quoted
from orch.recipe.faults import fields_at
from orch.recipe.origin import default_node
from orch.recipe.overrides import (
    BATCHES,
    NAMED,
    Override,
    apply_overrides,
    is_override,
    other_batch,
    parse_override,
    refuse_meetings,
)
from orch.recipe.references import first_missing, resolve
from orch.recipe.schema import RecipeFile
from orch.recipe.short_forms import written_out
from orch.recipe.source import display, folded_key, read_file
from orch.recipe.tree import Node, kind, mapping

ONE_OF = {("train", "optimizer"), ("sweep", "sampler"), ("sweep", "pruner")}
_LONGEST_LINEAGE = 20


class Composed(NamedTuple):
    """One recipe, composed: its tree, its file, and the files it was made from (itself first, then its parents)."""

    tree: Node
    path: Path
    files: tuple[Path, ...]


def compose(recipe: str | Path, overrides: Sequence[str] = ()) -> Composed:
    """Return the composed tree of a recipe given by name or path. Raises OrchError at the place of the first fault."""
    path = locate(recipe)
    parsed = [parse_override(text, number) for number, text in enumerate(overrides, start=1)]
    tree, files = _lineage(path)
    refuse_meetings(parsed)
    # What changes inside a cluster waits for the cluster's file, so that it can reach into lists and remove keys.
    inside = [
        override for override in parsed if override.path[0] == "cluster" and override.path[1:] not in ((), ("use",))
    ]
    outside = [override for override in parsed if override not in inside]
    tree = normalise(apply_overrides(_with_lists(normalise(tree), outside), outside))
    tree = _with_cluster(tree, [file.parent for file in files])
    tree = apply_overrides(tree, inside)
    _refuse_collisions(tree)
    tree = _with_profile(resolve(tree), path.parent)
    if missing := first_missing(tree):
        raise missing
    return Composed(tree, path, files)


def _refuse_collisions(tree: Node) -> None:
    """Refuse keys of one mapping that differ in case only, or in `_` and `-`, wherever each was written: a file by itself
    may hold no two such, and a child or an override that adds one mistook its name.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        seen: dict[str, tuple[str, Node]] = {}
        for key, below in node.items():
            waiting.append(below)
            other, first = (
                seen.setdefault(folded_key(key), (key, below)) if isinstance(node.value, Mapping) else (key, below)
            )
            if other != key:
                message = f"{quoted(key)} collides with {quoted(other)} ({first.place})"
                raise OrchError(message, code="E110", where=below.place, hint="keep one of them")


def _with_lists(tree: Node, overrides: Sequence[Override]) -> Node:
    """Return `tree` with the default lists that an override by index reaches into: `seeds.0=3` changes the default."""
    for override in overrides:
        *path, key, index = ("", *override.path)
        field = fields_at(RecipeFile, tuple(path[1:])).get(key)
        if index.isdecimal() and field is not None and isinstance(field.default, list):
            default = mapping({key: default_node(field.default)}, tree.where)
            for name in reversed(path[1:]):
                default = mapping({name: default}, tree.where)
            tree = merge(default, tree)
    return tree


def locate(recipe: str | Path, beside: Sequence[Path] = (), where: Position | None = None) -> Path:
    """Return the file of a recipe: a path if it looks like one (a suffix or a slash), otherwise a name to find."""
    text = str(recipe)
    if not text.strip() or "\0" in text:
        raise OrchError(
            "a recipe has no name here", code="E150", where=where, hint="give a name or the path of a YAML file"
        )
    if isinstance(recipe, Path) or _is_path(text) or (not beside and registry.exists(Path(text))):
        return (beside[0] if beside else Path()) / registry.expanded(text)
    return registry.find_file("recipes", text, beside, where)


def _lineage(path: Path) -> tuple[Node, tuple[Path, ...]]:
    """Return the tree of `path` over those of its ancestors, and all their files."""
    trees: list[Node] = []
    files: list[Path] = []
    seen: list[Path] = []
    name: Node | None = None
    while True:
        where = name.where if name is not None else None
        real = Path(os.path.realpath(path))  # unlike resolve(), no error where links lead in a circle: reading says it
        if real in seen:
            circle = " extends ".join(display(file) for file in [*files[seen.index(real) :], path])
            raise OrchError(f"extends leads in a circle: {circle}", code="E140", where=where, hint="remove one of them")
        if len(seen) >= _LONGEST_LINEAGE:
            raise OrchError(f"more than {_LONGEST_LINEAGE} recipes extend one another", code="E140", where=where)
        tree = _read_named(path, name, "extends") if name is not None else read_file(path)
        trees.append(tree)
        files.append(path)
        seen.append(real)
        parent = tree.get("extends")
        if parent is None:
            break
        if not isinstance(parent.value, str) or not parent.value.strip():
            raise OrchError(
                f"extends is {kind(parent)}",
                code="E141",
                where=parent.where,
                hint="name exactly one parent: extends: base.yaml",
            )
        name = parent
        path = locate(parent.value, [path.parent], parent.where)
    tree = trees.pop()
    while trees:
        # A recipe's name is its own: a child that took its parent's would mix its runs with the parent's.
        inherited = {key: node for key, node in tree.items() if key != "name"}
        tree = merge(normalise(mapping(inherited, tree.where)), normalise(trees.pop(), stacks=False))
    return mapping({key: node for key, node in tree.items() if key != "extends"}, tree.where), tuple(files)


def _read_named(path: Path, name: Node, role: str) -> Node:
    """Return the tree of a file that another one names; that it is not there is a fault of the line that names it."""
    try:
        return read_file(path)
    except OrchError as error:
        if error.code not in ("E100", "E101"):
            raise
        message = f"{role} {quoted(str(name.value))}: {error.message}"
        raise OrchError(message, code=error.code, where=name.where, hint=error.hint) from None


def merge(parent: Node, child: Node, path: tuple[str, ...] = ()) -> Node:
    """Return `child` over `parent`: mappings merge, anything else replaces, null removes."""
    if not isinstance(parent.value, Mapping) or not isinstance(child.value, Mapping):
        return replace(child, over=parent)
    if path in ONE_OF and not set(child.value) <= set(parent.value):
        return replace(child, over=parent)
    if path[:2] == ("sweep", "over") and len(path) == 3:
        return replace(child, over=parent)  # choices and a range are two forms of one thing
    entries = dict(parent.value)
    for key in child.value:
        if (*path, key) in BATCHES and child.value[key].value is not None:
            entries.pop(other_batch((*path, key))[-1], None)
    for key, node in child.value.items():
        old = entries.get(key)
        if old is None:
            entries[key] = node
        elif node.value is None:
            del entries[key]
        else:
            entries[key] = merge(old, node, (*path, key))
    return mapping(entries, child.where, child.key_where, over=child.over)


def normalise(tree: Node, *, stacks: bool = True) -> Node:
    """Return `tree` with every short form written out: bare names of sections, an optimizer's name, lists of stacks.

    With `stacks` false the stacks stay as written, so that a child's list replaces what its parent has.
    """
    if not isinstance(tree.value, Mapping):
        return tree
    entries = dict(tree.value)
    for key in NAMED:
        if key in entries and (isinstance(entries[key].value, str) or entries[key].text is not None):
            entries[key] = _entry("use", entries[key].as_text())
    train = entries.get("train")
    if train is not None and isinstance(train.value, Mapping) and (optimizer := train.value.get("optimizer")):
        if isinstance(optimizer.value, str):
            optimizer = _entry(optimizer.value, replace(optimizer, value={}, text=None), optimizer)
        entries["train"] = mapping(
            {**train.value, "optimizer": _filled(optimizer)}, train.where, train.key_where, train.over
        )
    if "techniques" in entries:
        entries["techniques"] = _filled(entries["techniques"])
    if "sweep" in entries:
        entries["sweep"] = written_out(entries["sweep"])
    if "stacks" in entries and stacks:
        entries["stacks"] = _stacks(entries["stacks"])
    return mapping(entries, tree.where, tree.key_where, over=tree.over)


def _entry(key: str, node: Node, outer: Node | None = None) -> Node:
    outer = outer or node
    return mapping({key: replace(node, key_where=node.where)}, outer.where, outer.key_where, over=outer.over)


def _filled(node: Node) -> Node:
    """Return a mapping with its empty entries as empty mappings: `{acp-sgd: }` names a technique without knobs."""
    if not isinstance(node.value, Mapping):
        return node
    entries = {key: replace(child, value={}) if child.value is None else child for key, child in node.value.items()}
    return mapping(entries, node.where, node.key_where, over=node.over)


def _stacks(node: Node) -> Node:
    """Return stacks as {stack: {technique: {knob: value}}}; a list makes one stack of each of its entries."""
    if isinstance(node.value, tuple):
        named = {}
        for member in node.value:
            stack = _members(member)
            if not isinstance(stack.value, Mapping):
                return node
            name = "+".join(stack.value)
            if name in named:
                raise OrchError(
                    f"the stack {quoted(name)} stands here twice", code="E228", where=member.where, hint="remove one"
                )
            named[name] = replace(stack, key_where=stack.where)
        return mapping(named, node.where, node.key_where, over=node.over)
    if not isinstance(node.value, Mapping):
        return node
    entries = {key: _members(child) for key, child in node.value.items()}
    return mapping(entries, node.where, node.key_where, over=node.over)


def _members(stack: Node) -> Node:
    """Return one stack as {technique: {knob: value}}; the schema refuses what is no set of names."""
    if isinstance(stack.value, str):
        return _entry(stack.value, replace(stack, value={}, text=None), stack)
    if isinstance(stack.value, Mapping):
        return _filled(stack)
    if not isinstance(stack.value, tuple):
        return stack
    members: dict[str, Node] = {}
    for item in stack.value:
        single = _members(item) if isinstance(item.value, (str, Mapping)) else item
        if not isinstance(single.value, Mapping):
            raise OrchError(
                f"a stack holds names of techniques, not {kind(item)}",
                code="E228",
                where=item.where,
                hint="write [NAME, {NAME: {knob: value}}]",
            )
        for name, knobs in single.value.items():
            if name in members:
                raise OrchError(
                    f"technique {quoted(name)} stands in this stack twice",
                    code="E228",
                    where=knobs.place,
                    hint="remove one",
                )
            members[name] = knobs
    return mapping(members, stack.where, stack.key_where, over=stack.over)


def _with_cluster(tree: Node, folders: Sequence[Path]) -> Node:
    """Return `tree` with `cluster: {use: NAME, changes}` replaced by the cluster file and the changes over it."""
    cluster = tree.get("cluster")
    name = cluster.get("use") if cluster is not None else None
    if cluster is None or name is None:
        return tree
    if not isinstance(name.value, str) or not name.value or "${" in name.value:
        raise OrchError(
            f"cluster.use is {kind(name)}",
            code="E214",
            where=name.where,
            hint="it is the name of a cluster: orch list clusters",
        )
    if name.value == "???":
        return tree
    if _is_path(name.value):
        described = _read_named(_beside_its_file(name, folders[0]), name, "cluster")
    else:
        described = read_file(registry.find_file("clusters", name.value, folders, name.where))
    changes = {key: node for key, node in cluster.items() if key != "use"}
    merged = merge(resolve(described), mapping(changes, name.where, cluster.key_where))
    named = {"name": replace(name, key_where=name.where), **dict(merged.items())}
    merged = mapping(named, merged.where, cluster.key_where, over=cluster.over)
    return mapping({**dict(tree.items()), "cluster": merged}, tree.where)


def _with_profile(tree: Node, folder: Path) -> Node:
    """Return `tree` with the path of `model: {profile: FILE}` made absolute, and sure to be there."""
    model, profile = tree.get("model"), tree.find(("model", "profile"))
    if model is None or profile is None or not isinstance(profile.value, str):
        return tree
    path = _beside_its_file(profile, folder)
    if not registry.exists(path):
        hint = "paths count from the folder of the file that holds them"
        raise OrchError(f"there is no profile {quoted(profile.value)}", code="E100", where=profile.where, hint=hint)
    entries = {**dict(model.items()), "profile": replace(profile, value=str(path.absolute()))}
    return mapping({**dict(tree.items()), "model": mapping(entries, model.where, model.key_where)}, tree.where)


def _is_path(text: str) -> bool:
    return text.endswith(registry.SUFFIXES) or "/" in text


def _beside_its_file(node: Node, folder: Path) -> Path:
    """Return the path a value names, from the folder of its file; for an override, from the working directory."""
    written = Path(node.where.source).parent
    base = Path() if is_override(node.where) else written if registry.exists(written) else folder
    return base / registry.expanded(str(node.value))
