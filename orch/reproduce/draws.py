"""Uncertain inputs, drawn: costs become arrays over the fixed Sobol points, anything else a few whole recipes.

A range is drawn evenly in its logarithm. Inputs that only change what things cost (links, device rates, compute) are
drawn exactly, all points at once. Any other range is cut into `STRATA` equal parts, each taken at its middle; choices
are taken as they are. A plan is made once a recipe, with the costs the recipe states: planners see no draw.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orch.cluster import Cluster
from orch.cluster.link import Link
from orch.errors import OrchError, Position, quoted
from orch.recipe import Recipe
from orch.recipe.unknown import Unknown
from orch.reproduce.sobol import MAX_DIMENSIONS, NUM_DRAWS, sobol
from orch.units import BYTES_PER_SECOND, FLOPS_PER_SECOND, SECONDS, SECONDS_PER_BYTE, Dimension, parse_fraction

STRATA = 8
# Bands of a cluster's file, as factors: no paths of a recipe.
START_UP, PER_BYTE, COMPUTE = "links: start-up", "links: per byte", "device: compute"
Array = NDArray[np.float64]
_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s]*)")
_LINK = re.compile(r"cluster\.links\.(intra|inter)\.(?:measured\.(\d+)\.)?(alpha|beta|gamma|bandwidth)")
_LINK_UNITS = {"alpha": SECONDS, "beta": SECONDS_PER_BYTE, "gamma": SECONDS_PER_BYTE, "bandwidth": BYTES_PER_SECOND}
_FACTORS = (START_UP, PER_BYTE, COMPUTE)
_COMPUTE: dict[str, Callable[[Any], float]] = {
    "compute.step": SECONDS.parse,
    "compute.throughput": float,
    "compute.forward": parse_fraction,
}


@dataclass(frozen=True)
class Input:
    """One uncertain input: its path, what is known of it, where that is written, and its coordinate [NUM_DRAWS]."""

    path: str
    known: Unknown
    where: Position
    coordinate: Array

    @property
    def shown(self) -> str:
        """What is known, in a few words."""
        if self.known.range is not None:
            return f"{self.known.range[0]} to {self.known.range[1]}"
        return " or ".join(map(str, self.known.choices or ()))


@dataclass(frozen=True)
class Group:
    """Draws that share a recipe: overrides over the experiment's, which draws they are, and where the inputs are written."""

    overrides: tuple[str, ...]
    chosen: NDArray[np.int64]
    places: tuple[Position, ...] = ()


def inputs_of(recipe: Recipe) -> tuple[Input, ...]:
    """Return the uncertain inputs of a recipe with their coordinates. Raises OrchError (E354) for too many.

    Costs that the recipe states no range of have the band of the cluster's own file.
    """
    known = {**recipe.spec.uncertain, **_bands(recipe)}
    node = recipe.tree.get("uncertain") or recipe.tree
    if len(known) > MAX_DIMENSIONS:
        message = f"{len(known)} inputs are uncertain; at most {MAX_DIMENSIONS} can be drawn evenly"
        raise OrchError(message, code="E354", where=node.place, hint="state the ones that matter least")
    points = sobol(len(known))
    return tuple(
        Input(path, entry, (node.get(path) or node).place, points[:, column])
        for column, (path, entry) in enumerate(known.items())
    )


def _bands(recipe: Recipe) -> dict[str, Unknown]:
    """Return the bands of the cluster's file as inputs, but for what the recipe says more about."""
    stated = tuple(recipe.spec.uncertain)
    cluster = recipe.cluster
    profile = recipe.model.profile(recipe.data)
    nbytes = 4.0 * profile.numel
    bands = cluster.bands(nbytes=nbytes)
    found: dict[str, tuple[float, str]] = {}
    if cluster.world_size > 1 and not any(path.startswith("cluster.links") for path in stated):
        basis = f"the cluster file's band: {cluster.basis(nbytes=nbytes)} links"
        found |= {START_UP: (bands.start_up, basis), PER_BYTE: (bands.per_byte, basis)}
    measured = recipe.spec.compute is not None or profile.measured
    if not measured and not any(path.startswith("cluster.device") for path in stated):
        found[COMPUTE] = (bands.compute, f"the cluster file's band: {cluster.device.basis} compute")
    return {
        path: Unknown(range=[round(1 / (1 + band), 4), round(1 + band, 4)], source=basis)
        for path, (band, basis) in found.items()
        if band > 0
    }


def groups_of(inputs: tuple[Input, ...]) -> list[Group]:
    """Return the recipes that the draws need, each with its draws."""
    whole = [entry for entry in inputs if not _is_cost(entry)]
    words = [_words(entry) for entry in whole]
    places = [
        np.minimum((entry.coordinate * len(options)).astype(np.int64), len(options) - 1)
        for entry, options in zip(whole, words, strict=True)
    ]
    if not whole:
        return [Group((), np.arange(NUM_DRAWS))]
    groups = []
    for combination in sorted(set(zip(*(place.tolist() for place in places), strict=True))):
        chosen = np.flatnonzero(np.all([p == c for p, c in zip(places, combination, strict=True)], axis=0))
        texts = (f"{e.path}={options[c]}" for e, options, c in zip(whole, words, combination, strict=True))
        groups.append(Group(tuple(texts), chosen, tuple(entry.where for entry in whole)))
    return groups


def drawn(recipe: Recipe, inputs: tuple[Input, ...], chosen: NDArray[np.int64]) -> tuple[Cluster, tuple[Any, Any]]:
    """Return the recipe's cluster with the drawn costs as arrays [chosen], and the factors of forward and backward."""
    cluster = recipe.cluster
    compute: dict[str, Array] = {}
    for entry in inputs:
        if not _is_cost(entry):
            continue
        values = _values(entry)[chosen]
        if entry.path in _COMPUTE:
            compute[entry.path] = values
        elif entry.path in _FACTORS:
            cluster = cluster.scaled(*(values if name == entry.path else 1.0 for name in _FACTORS))
        else:
            cluster = _with(cluster, entry, values)
    return cluster, _factors(recipe, compute)


def _is_slowdown(path: str) -> bool:
    return path in ("cluster.sharing.compute_slowdown", "cluster.sharing.communication_slowdown")


def _is_cost(entry: Input) -> bool:
    return entry.known.range is not None and (
        entry.path in (*_COMPUTE, *_FACTORS)
        or _LINK.fullmatch(entry.path) is not None
        or _device_unit(entry.path) is not None
        or _is_slowdown(entry.path)
    )


def _device_unit(path: str) -> Dimension | None:
    if path.startswith("cluster.device.rate."):
        return FLOPS_PER_SECOND
    return BYTES_PER_SECOND if path == "cluster.device.memory_bandwidth" else None


def _values(entry: Input) -> Array:
    """Return a range's draws in SI units."""
    if entry.path in _FACTORS:
        low, high = entry.known.range or (1.0, 1.0)
        factors: Array = low * (high / low) ** entry.coordinate
        return factors
    link = _LINK.fullmatch(entry.path)
    unit = _LINK_UNITS[link[3]] if link is not None else _device_unit(entry.path)
    parse: Callable[[Any], float] = unit.parse if unit is not None else _COMPUTE.get(entry.path, float)
    try:
        low, high = (parse(value) for value in entry.known.range or ())
    except ValueError as error:
        raise OrchError(f"{entry.path}: {error}", code="E354", where=entry.where) from None
    if not 0 < low < high:
        raise _no_range(entry)
    result: Array = low * (high / low) ** entry.coordinate
    return result


def _no_range(entry: Input) -> OrchError:
    hint = "write [LOWEST, HIGHEST], both above 0 and in one unit"
    message = f"{entry.path}: {quoted(entry.shown)} is no range"
    return OrchError(message, code="E354", where=entry.where, hint=hint)


def _words(entry: Input) -> list[str]:
    """Return the values of an input that changes more than costs, as overrides write them."""
    if entry.known.choices is not None:
        return [_word(value) for value in entry.known.choices]
    matches = [_AMOUNT.fullmatch(str(value)) for value in entry.known.range or ()]
    ends = [(float(match[1]), match[2]) for match in matches if match is not None]
    if len(ends) != 2 or ends[0][1] != ends[1][1] or not 0 < ends[0][0] < ends[1][0]:
        raise _no_range(entry)
    (low, unit), (high, _) = ends
    middles = [low * (high / low) ** ((place + 0.5) / STRATA) for place in range(STRATA)]
    if all(isinstance(value, int) for value in entry.known.range or ()):
        return [str(round(value)) for value in middles]
    return [f"{value:.6g}{unit}" for value in middles]


def _word(value: Any) -> str:
    import json

    return json.dumps(value) if isinstance(value, (dict, list, bool)) or value is None else str(value)


def _with(cluster: Cluster, entry: Input, values: Array) -> Cluster:
    """Return `cluster` with one of its costs replaced by `values` [draws]."""
    link = _LINK.fullmatch(entry.path)
    if _is_slowdown(entry.path):
        if cluster.sharing is None:
            raise _not_there(entry)
        slowed: dict[str, Any] = {entry.path.rpartition(".")[2]: values}
        return replace(cluster, sharing=replace(cluster.sharing, **slowed))
    if link is None:
        device = cluster.device
        if entry.path == "cluster.device.memory_bandwidth":
            return replace(cluster, device=replace(device, memory_bytes_per_s=values))
        dtype = entry.path.rpartition(".")[2]
        return replace(cluster, device=replace(device, rate_flops={**device.rate_flops, dtype: values}))
    which, number, key = link[1], link[2], link[3]
    old = cluster.links.inter if which == "inter" else cluster.links.intra
    if old is None:
        raise _not_there(entry)
    new = (
        _with_level(old, entry, key, values) if number is None else _with_measured(old, entry, int(number), key, values)
    )
    return cluster.with_links(**{which: new})


def _with_level(link: Link, entry: Input, key: str, values: Array) -> Link:
    if link.level is None:
        raise _not_there(entry)
    field = {"alpha": "alpha_s", "gamma": "gamma_s_per_byte"}.get(key, "beta_s_per_byte")
    changes: dict[str, Any] = {field: 1.0 / values if key == "bandwidth" else values}
    return replace(link, level=replace(link.level, **changes))


def _with_measured(link: Link, entry: Input, number: int, key: str, values: Array) -> Link:
    if number >= len(link.measured) or key not in ("alpha", "beta") or link.measured[number].curve.knees:
        raise _not_there(entry)
    old = link.measured[number]
    changes: dict[str, Any] = {"start_up_s" if key == "alpha" else "per_byte_s": values}
    new = replace(old, curve=replace(old.curve, **changes))
    return replace(link, measured=(*link.measured[:number], new, *link.measured[number + 1 :]))


def _not_there(entry: Input) -> OrchError:
    return OrchError(f"{entry.path} is no cost of this cluster", code="E354", where=entry.where, hint="see its links")


def _factors(recipe: Recipe, drawn_compute: Mapping[str, Array]) -> tuple[Any, Any]:
    """Return by how much forward and backward take longer than the recipe says: floats or arrays."""
    stated = recipe.spec.compute
    if stated is None or not drawn_compute:
        return 1.0, 1.0
    step: Any = 1.0
    if stated.step is not None:
        step = drawn_compute.get("compute.step", stated.step) / stated.step
    elif stated.throughput is not None:
        step = stated.throughput / drawn_compute.get("compute.throughput", stated.throughput)
    forward = drawn_compute.get("compute.forward", stated.forward)
    return step * forward / stated.forward, step * (1.0 - forward) / (1.0 - stated.forward)
