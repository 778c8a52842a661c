"""What a run's predictions computed with, as data: so that a report can ask later what other clusters would make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from orch.cluster import Cluster, Curve, Link, Links, Measured, Sharing, Span
from orch.cluster.collectives import Level
from orch.cluster.node import Pace
from orch.experiment.predict import Inputs
from orch.models.profile import Profile

FILE = "inputs.json"


def to_json(inputs: Inputs) -> dict[str, Any]:
    """Return `inputs` as plain data; stacks that were trained alike share a profile, which is written once."""
    profiles: list[Profile] = []
    for profile in inputs.profiles.values():
        if profile not in profiles:
            profiles.append(profile)
    sharing = inputs.cluster.sharing
    return {
        "links": asdict(inputs.cluster.links),
        "sharing": None if sharing is None else asdict(sharing),
        "profiles": [profile.to_json() for profile in profiles],
        "stacks": {
            name: {"profile": profiles.index(profile), "update_s": inputs.update_s[name]}
            for name, profile in inputs.profiles.items()
        },
    }


def from_json(data: Mapping[str, Any], cluster: Cluster) -> Inputs:
    """Return the inputs that `to_json` wrote; `cluster` is the one of the recipe. Raises KeyError, TypeError or
    ValueError for what it did not write.
    """
    profiles = [Profile.from_json(one) for one in data["profiles"]]
    links = Links(**{name: _link(one) for name, one in data["links"].items()})
    sharing = None if data["sharing"] is None else Sharing(**data["sharing"])
    stacks = data["stacks"]
    return Inputs(
        replace(cluster, links=links, sharing=sharing),
        {name: profiles[one["profile"]] for name, one in stacks.items()},
        {name: one["update_s"] for name, one in stacks.items()},
    )


def _link(data: Mapping[str, Any] | None) -> Link | None:
    if data is None:
        return None
    measured = tuple(_measured(one) for one in data["measured"])
    level = None if data["level"] is None else Level(**data["level"])
    lists = {"bands": tuple(data["bands"]), "evidence": tuple(data["evidence"])}
    return Link(**(dict(data) | lists | {"level": level, "measured": measured}))


def _measured(data: Mapping[str, Any]) -> Measured:
    curve, span, sizes = data["curve"], data["span"], data["sizes"]
    return Measured(
        collective=data["collective"],
        span=Span(span[0], span[1], span[2], Pace(*span[3])),
        curve=Curve(curve["start_up_s"], curve["per_byte_s"], tuple((size, change) for size, change in curve["knees"])),
        algorithm=data["algorithm"],
        kind=data["kind"],
        source=data["source"],
        sizes=None if sizes is None else (sizes[0], sizes[1]),
        evidence=tuple(data["evidence"]),
    )
