"""What is known about techniques and their knobs, read from the code that owns it: no page is written twice."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orch import registry
from orch.units import Dimension

if TYPE_CHECKING:
    from orch.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers a setting allows, in SI; None where there is no bound."""

    least: float | None = None
    most: float | None = None
    least_excluded: bool = False
    most_excluded: bool = False

    def __str__(self) -> str:
        low = "" if self.least is None else f"{'above' if self.least_excluded else 'from'} {self.least:g}"
        high = "" if self.most is None else f"{'below' if self.most_excluded else 'to'} {self.most:g}"
        return f"{low} {high}".strip()


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: `default` as the code holds it (SI), `shown` as a user would write it."""

    name: str
    type: str
    unit: str | None
    default: object
    shown: str
    range: Range
    choices: tuple[str, ...]
    doc: str

    def as_json(self) -> dict[str, object]:
        """Return the knob for `--json`."""
        return {
            "name": self.name,
            "type": self.type,
            "unit": self.unit,
            "default": self.default,
            "range": self.range if self.range != Range() else None,
            "choices": list(self.choices) or None,
            "doc": self.doc,
        }

    @property
    def example(self) -> str:
        """The default as a user would write it, or dots where there is none."""
        return self.shown if self.shown not in ("(required)", "as told", "-") else "..."

    def allowed(self) -> str:
        """Return what a user may write, in words."""
        if self.choices:
            return " | ".join(self.choices)
        return f"{self.type} {self.range}".rstrip()


def knobs(config: type[BaseModel]) -> list[Knob]:
    """Return the knobs of a technique's Config, in the order the module gives them."""
    return [_knob(name, info) for name, info in config.model_fields.items()]


def _knob(name: str, info: FieldInfo) -> Knob:
    core, metadata = unwrapped(info.annotation, info.metadata)
    dimension = next((item for item in metadata if isinstance(item, Dimension)), None)
    choices = tuple(str(item) for item in get_args(core)) if get_origin(core) is Literal else ()
    given = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
    doc = info.description or ""
    return Knob(
        name=name,
        type=_type_name(core, dimension),
        unit=(dimension.si or None) if dimension else None,
        default=dimension.parse(given) if dimension is not None and isinstance(given, str) else given,
        shown=_shown(info, given, doc),
        range=_range(metadata),
        choices=choices,
        doc=doc,
    )


def unwrapped(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
    """Return the type inside `X | None` and `Annotated`, and all metadata on the way."""
    found = list(metadata)
    while True:
        arguments = get_args(annotation)
        if get_origin(annotation) is Annotated:
            annotation, found = arguments[0], [*found, *arguments[1:]]
        elif type(None) in arguments and len(arguments) == 2:
            annotation = next(argument for argument in arguments if argument is not type(None))
        else:
            flat = [part for item in found for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
            return annotation, flat


def _shown(info: FieldInfo, given: object, doc: str) -> str:
    """Return a default the way it stands in a recipe; one that depends on other values is told in the description."""
    if "default" in doc and given is None:
        return "as told"
    if info.is_required():
        return "(required)"
    if given is None or given == "":
        return "-"
    if isinstance(given, bool):
        return "true" if given else "false"
    return "as below" if isinstance(given, BaseModel) else str(given)


def _type_name(core: Any, dimension: Dimension | None) -> str:
    if dimension is not None:
        return f"{dimension.name}, like {dimension.example}"
    if isinstance(core, type) and issubclass(core, BaseModel):
        return "section"
    origin = get_origin(core) or core
    if origin in (list, tuple):
        inner = unwrapped(get_args(core)[0])[0] if get_args(core) else None
        return f"list of {_PLURALS[inner]}" if inner in _PLURALS else "list"
    return _TYPES.get(origin, "choice" if origin is Literal else getattr(core, "__name__", str(core)))


_TYPES: dict[Any, str] = {
    int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping", object: "anything"
}  # fmt: skip
_PLURALS: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}


def _range(metadata: Iterable[Any]) -> Range:
    limits = {
        name: getattr(item, name, None) for item in metadata for name in ("ge", "gt", "le", "lt") if hasattr(item, name)
    }
    above, below = limits.get("gt"), limits.get("lt")
    return Range(
        least=above if above is not None else limits.get("ge"),
        most=below if below is not None else limits.get("le"),
        least_excluded=above is not None,
        most_excluded=below is not None,
    )


def technique_facts(place: registry.Place) -> dict[str, object]:
    """Return what `orch list techniques --json` says about one technique."""
    technique = registry.technique(place.name)
    return {
        "name": technique.name,
        "family": place.family,
        "slot": technique.slot.label,
        "lossless": technique.lossless,
        "paper": technique.source,
        "knobs": [knob.as_json() for knob in knobs(technique.config)],
    }


def prose(place: registry.Place) -> str:
    """Return the docstring of a technique's module: what it does, when it helps and when it does not."""
    registry.technique(place.name)  # imports the module
    return (sys.modules[place.module].__doc__ or "").strip()


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    sentence = re.split(r"(?<=[.!?])\s", " ".join(text.split("\n\n")[0].split()))[0]
    return sentence.rstrip(".")


def without_name(sentence: str) -> str:
    """Return what a docstring says after the name it begins with (`MG-WFBP: send ...`)."""
    head, colon, tail = sentence.partition(": ")
    return tail if colon and len(head) < 30 else sentence


def cluster(name: str) -> Cluster:
    """Return the cluster of a name. Raises OrchError for one that is not there or not right."""
    from orch.cluster import load
    from orch.recipe.source import read_file

    return load(read_file(registry.find_file("clusters", name)).plain(), name)


def wrapped(text: str, indent: str = "  ") -> str:
    """Return text in lines of at most 100 characters, each indented."""
    return "\n".join(textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent))
