"""What a run's predictions computed with, as data: so that a report can ask later what other clusters would make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from orch.cluster import Cluster, Curve, Fastest, Level, Link, Links, Measured, Overhead, Sharing, Span
from orch.cluster.node import Node, Pace
from orch.experiment.predict import Inputs
from orch.models.profile import Profile

FILE = "inputs.json"
# What a run may have measured of its cluster; all else is in the recipe.
_OF_A_CLUSTER = ("links", "speed", "jitter", "sharing", "overhead", "operations")
_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Curve, Fastest, Level, Link, Links, Measured, Node, Overhead, Pace, Sharing, Span)
}


def to_json(inputs: Inputs) -> dict[str, Any]:
    """Return `inputs` as plain data; stacks that were trained alike share a profile, which is written once."""
    profiles: list[Profile] = []
    for profile in inputs.profiles.values():
        if profile not in profiles:
            profiles.append(profile)
    return {
        "cluster": {name: _plain(getattr(inputs.cluster, name)) for name in _OF_A_CLUSTER},
        "profiles": [profile.to_json() for profile in profiles],
        "stacks": {
            name: {"profile": profiles.index(profile), "update_s": inputs.update_s[name]}
            for name, profile in inputs.profiles.items()
        },
    }


def from_json(data: Mapping[str, Any], cluster: Cluster) -> Inputs:
    """Return the inputs that `to_json` wrote; `cluster` is the one of the recipe. Raises KeyError, TypeError, ValueError
    or OrchError for what it did not write.
    """
    profiles = [Profile.from_json(one) for one in data["profiles"]]
    measured = {name: _read(data["cluster"][name]) for name in _OF_A_CLUSTER}
    stacks = data["stacks"]
    return Inputs(
        replace(cluster, **measured),
        {name: profiles[one["profile"]] for name, one in stacks.items()},
        {name: one["update_s"] for name, one in stacks.items()},
    )


def _plain(value: Any) -> Any:
    """Return a value of a cluster in JSON's types: what is no list, number or text is an object that says what it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {
            field.name: _plain(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"is": type(value).__name__} | {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {"is": "mapping", "items": [[_plain(key), _plain(item)] for key, item in value.items()]}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value["is"] == "mapping":
            return {_read(key): _read(item) for key, item in value["items"]}
        return _KINDS[value["is"]](**{name: _read(item) for name, item in value.items() if name != "is"})
    return tuple(_read(item) for item in value) if isinstance(value, list) else value
