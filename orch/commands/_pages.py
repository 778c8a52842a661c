"""The pages of `orch show`: who answers to a name, and what there is to say about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from orch import registry
from orch.commands import _catalogue, _codes, _facts, _fields
from orch.commands._output import table
from orch.errors import OrchError, did_you_mean
from orch.units import format_count


@dataclass(frozen=True, slots=True)
class Page:
    """What is known about one name: facts for `--json`, and text made only when a person asks."""

    facts: Mapping[str, object]
    text: Callable[[], str]


def find(name: str) -> Page:
    """Return the page of a name. Raises OrchError E015, with the nearest known name, when nothing answers to it."""
    if re.fullmatch(r"[eE]\d{3}", name):
        return _code(name.upper())
    for kind, make in _MAKERS:
        if name in kind():
            return make(name)
    fields = _fields.recipe_fields()
    found = _fields.find(name, fields)
    if len(found) == 1:
        return _field(found[0])
    if found:
        hint = f"one of {', '.join(field.path for field in found)}"
        raise OrchError(f"several fields are named '{name}'", code="E015", hint=hint)
    hint = did_you_mean(name, _every_name()) or "all: orch list; fields: orch show recipe"
    raise OrchError(f"nothing is named '{name}'", code="E015", hint=hint)


def _every_name() -> Iterator[str]:
    for kind, _ in _MAKERS:
        yield from kind()
    for path in _fields.recipe_fields():
        yield path
        yield path.rpartition(".")[2]


def _technique(name: str) -> Page:
    place = registry.techniques()[name]
    technique = registry.technique(name)
    facts = {
        "kind": "technique",
        **_facts.technique_facts(place),
        "needs": sorted(technique.needs),
        "gives": technique.gives,
        "defaults": technique.defaults,
        "excludes": technique.excludes,
        "about": _facts.prose(place),
    }
    return Page(facts, lambda: _technique_text(name))


def _technique_text(name: str) -> str:
    from orch.technique import ALL_FORMS

    place, technique = registry.techniques()[name], registry.technique(name)
    exact = (
        "exact (equal to plain S-SGD in the same gradient_dtype, within rounding)" if technique.lossless else "lossy"
    )
    lines = [
        _facts.prose(place),
        "",
        f"  slot      {technique.slot.label}: {technique.slot.summary}",
        f"  result    {exact}",
        f"  paper     {technique.source}",
        f"  family    {place.family} ({place.declared_in})",
    ]
    needs = ", ".join(sorted(technique.needs)) if technique.needs < ALL_FORMS else "any form"
    lines.append(f"  gradient  takes {needs}; gives {technique.gives or 'what it took'}")
    if technique.defaults:
        lines.append(f"  brings    {', '.join(technique.defaults)}, where a stack leaves their slots empty")
    lines += [f"  not with  {other}: {reason}" for other, reason in technique.excludes.items()]
    knobs = _facts.knobs(technique.config)
    lines += _knob_table(knobs)
    first = "".join(f": {{{knob.name}: {knob.example}}}" for knob in knobs[:1])
    entry = f"{{{name}{first}}}" if first else f"[{name}]"
    lines += ["", f"In a recipe:  stacks: {{mine: {entry}}}"]
    return "\n".join(lines)


def _cluster(name: str) -> Page:
    path = registry.find_file("clusters", name)
    found = _facts.cluster(name)
    facts = {
        "kind": "cluster",
        "name": name,
        "file": path,
        "workers": found.world_size,
        "about": _catalogue.about(path),
    }
    head = f"{name}: a cluster of {format_count(found.world_size, 'worker')}"
    return Page(facts, lambda: _file_text(head, path.read_text("utf-8"), path))


def _recipe(name: str) -> Page:
    path = registry.find_file("recipes", name)
    facts = {"kind": "recipe", "name": name, "file": path, "about": _catalogue.about(path)}
    hint = f"\nNext: orch check {name}; orch plan {name}; orch run {name}"
    return Page(facts, lambda: _file_text(f"{name}: a recipe", path.read_text("utf-8"), path) + hint)


def _file_text(title: str, text: str, path: object) -> str:
    body = "\n".join(f"  {line}".rstrip() for line in text.rstrip("\n").splitlines())
    return f"{title} ({path})\n\n{body}"


def _model(name: str) -> Page:
    from orch.models import catalogue

    model = catalogue.model(name)
    entry = next(entry for entry in _catalogue.entries("models") if entry["name"] == name)
    profile = model.profile(model.knobs())
    facts = {
        "parameters": f"{model.parameters:,} in {len(profile.tensors)} tensors",
        "compute": f"{profile.flops / 1e9:,.3g} GFLOP forward, a sample",
        "runs": "yes" if model.runs else "no: it has a profile only, to plan and simulate with",
        "source": model.source,
    }
    return Page({"kind": "model", **entry}, lambda: _named_text("model", name, model.summary, facts, model.knobs))


def _data(name: str) -> Page:
    from orch.models.datasets import DATA

    data = DATA[name]
    entry = next(entry for entry in _catalogue.entries("data") if entry["name"] == name)
    return Page(
        {"kind": "data", **entry}, lambda: _named_text("data", name, data.summary, {"source": data.source}, data.knobs)
    )


def _named_text(section: str, name: str, summary: str, facts: Mapping[str, str], config: type[BaseModel]) -> str:
    width = max(map(len, facts))
    lines = [f"{name}: {summary}", "", *(f"  {key.ljust(width)}  {value}" for key, value in facts.items())]
    knobs = _facts.knobs(config)
    lines += _knob_table(knobs)
    first = "".join(f", {knob.name}: {knob.example}" for knob in knobs[:1])
    return "\n".join([*lines, "", f"In a recipe:  {section}: {{use: {name}{first}}}"])


def _knob_table(knobs: list[_facts.Knob]) -> list[str]:
    rows = [[f"  {knob.name}", knob.allowed(), knob.shown, knob.doc] for knob in knobs]
    return ["", table(["  knob", "type", "default", "meaning"], rows)] if rows else []


def _recipe_fields(name: str) -> Page:
    fields = _fields.recipe_fields()
    intro = (
        "A recipe is one YAML file; units are part of a value. Editors complete it: orch show recipe --json-schema\n\n"
    )
    facts = {"kind": "schema", "fields": [{"path": path, **field.knob.as_json()} for path, field in fields.items()]}
    return Page(facts, lambda: intro + _fields.overview(fields))


def _field(field: _fields.Described) -> Page:
    fields = _fields.recipe_fields()
    return Page({"kind": "field", "path": field.path, **field.knob.as_json()}, lambda: _fields.page(field, fields))


def _code(code: str) -> Page:
    places = _codes.raised()
    known = _codes.codes(places)
    if code not in known:
        raise OrchError(f"no error has the code {code}", code="E015", hint=f"codes: {', '.join(known)}")
    mine = [place for place in places if place.code == code]
    return Page({"kind": "error", "code": code, "raised": mine}, lambda: _codes.page(code, places))


_MAKERS: tuple[tuple[Callable[[], list[str]], Callable[[str], Page]], ...] = (
    (lambda: ["recipe"], _recipe_fields),
    (lambda: _catalogue.names("techniques"), _technique),
    (lambda: _catalogue.names("models"), _model),
    (lambda: _catalogue.names("clusters"), _cluster),
    (lambda: _catalogue.names("recipes"), _recipe),
    (lambda: _catalogue.names("data"), _data),
)
