"""Begin a study, or take one up again: what was changed since is refused, or asked about, never ignored."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import optuna

from orch.errors import OrchError
from orch.sweep.storage import storage_of, turn_of
from orch.sweep.study import Plan, Store
from orch.track import encoding

Answer = Literal["keep", "redo", "diff"]
ANSWERS: tuple[Answer, ...] = ("keep", "redo", "diff")
FIXED = ("space", "sought", "recipe")
"""Facts that a study cannot survive a change of; the others are surroundings, about which the user is asked."""
_MOST_LINES = 40


@dataclass(frozen=True)
class Surroundings:
    """Where a study's trials run: digests of the techniques' source, versions, machines; the source itself for a diff."""

    facts: Mapping[str, Any]
    sources: Mapping[str, Mapping[str, str]]


def open_study(
    plan: Plan,
    fixed: Mapping[str, Any],
    around: Surroundings,
    place: Path,
    answer: Answer | None,
    say: Callable[[str], None],
) -> Store:
    """Return the study of `plan`, made if there is none.

    `place` is a file beside which the lock and the techniques' source are kept. Raises OrchError: E634 where space,
    objectives or recipe are others than the study was begun with; E635 where code or machines are, and nobody says what
    to do.
    """
    facts = {**fixed, "around": dict(around.facts)}
    turn = turn_of(plan.storage, place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot keep a study under {place.parent}: {error.strerror or error}"
        raise OrchError(message, code="E633", hint="choose another place with --runs DIR") from None
    plan = replace(plan, name=_latest(plan))
    store = Store(plan, facts, turn)
    if store.created:
        _keep_sources(place, plan.name, around)
        return store
    _refuse_changed(store, fixed, say)
    found = list(changes(store.facts.get("around", {}), encoding.decode(encoding.encode(around.facts))))
    if not found:
        return store
    chosen = answer or _ask(plan.name, found, place, around, say)
    if chosen == "diff":
        _show(found, place, plan.name, around, say)
        raise OrchError(
            f"study {plan.name} was begun with other code or machines; nothing was run", code="E635", hint=_HINT
        )
    if chosen == "keep":
        store.study.set_user_attr("orch.facts", {**store.facts, "around": encoding.encode(around.facts)})
        _keep_sources(place, plan.name, around)
        return store
    return _redone(plan, store, facts, turn, place, around)


_HINT = "--changed keep counts its trials, --changed redo runs them again, --changed diff shows what is different"


def _latest(plan: Plan) -> str:
    """Return the name of the study's last generation: redoing leaves the old one and begins `NAME (2)`."""
    names = set(optuna.get_all_study_names(storage_of(plan.storage)))
    number = 1
    while _generation(plan.name, number + 1) in names:
        number += 1
    return _generation(plan.name, number)


def _generation(name: str, number: int) -> str:
    return name if number == 1 else f"{name} ({number})"


def _refuse_changed(store: Store, fixed: Mapping[str, Any], say: Callable[[str], None]) -> None:
    new = encoding.decode(encoding.encode(fixed))
    assert isinstance(new, dict)
    found = [line for name in FIXED for line in changes(store.facts.get(name), new.get(name), name)]
    if not found:
        return
    for line in found[:_MOST_LINES]:
        say(f"  {line}")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    message = f"study {store.plan.name} was begun with another recipe: {found[0]}{more}"
    raise OrchError(message, code="E634", hint="undo the change, or begin another study: sweep.study=NAME")


def _ask(name: str, found: list[str], place: Path, around: Surroundings, say: Callable[[str], None]) -> Answer:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        message = f"study {name} was begun with other code or machines: {found[0]}{more}"
        raise OrchError(message, code="E635", hint=_HINT)
    say(f"study {name} was begun with other code or machines:")
    for line in found[:_MOST_LINES]:
        say(f"  {line}")
    while True:
        say("keep its trials, redo them, or show the diff? [keep/redo/diff]")
        word = sys.stdin.readline()
        if not word:
            raise OrchError(f"study {name}: nobody said what to do", code="E635", hint=_HINT)
        word = word.strip().lower()
        if word == "diff":
            _show(found, place, name, around, say)
        elif word in ("keep", "redo"):
            return "keep" if word == "keep" else "redo"


def _redone(plan: Plan, old: Store, facts: Mapping[str, Any], turn: Path, place: Path, around: Surroundings) -> Store:
    """Return a new generation of the study, in which every trial of the old one waits to be run again."""
    names = set(optuna.get_all_study_names(storage_of(plan.storage)))
    base, number = plan.name, 2
    if base.endswith(")") and " (" in base and base.rpartition(" (")[2][:-1].isdecimal():
        base, _, last = base.rpartition(" (")
        number = int(last[:-1]) + 1
    while _generation(base, number) in names:
        number += 1
    store = Store(replace(plan, name=_generation(base, number)), facts, turn)
    for frozen in old.study.get_trials(deepcopy=False):
        if "orch.replaces" not in frozen.user_attrs and frozen.params:
            store.enqueue(frozen.params)
    _keep_sources(place, store.plan.name, around)
    return store


def _keep_sources(place: Path, name: str, around: Surroundings) -> None:
    path = place.with_suffix(".sources.json")
    encoding.write_json(path, {**encoding.read_json(path), name: around.sources})


def _show(found: list[str], place: Path, name: str, around: Surroundings, say: Callable[[str], None]) -> None:
    """Say what is different, the techniques' source line by line."""
    old = encoding.read_json(place.with_suffix(".sources.json")).get(name)
    for line in found[:_MOST_LINES]:
        say(f"  {line}")
    for technique, files in around.sources.items():
        before = old.get(technique, {}) if isinstance(old, dict) else {}
        for file in dict.fromkeys([*before, *files]):
            then, now = (str(texts.get(file, "")).splitlines() for texts in (before, files))
            for line in difflib.unified_diff(then, now, f"{file} (then)", f"{file} (now)", lineterm=""):
                say(line)


def changes(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield a line for every difference of two facts of a study."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from changes(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif old != new:
        yield f"{path}: {_text(old)} -> {_text(new)}"


def _text(value: Any) -> str:
    return "(not there)" if value is None else json.dumps(value, ensure_ascii=False, default=str)
