"""A cluster file's schema becomes a value: `build` for what has been validated, `load` for a mapping.

Apart from the schema, so that a recipe is checked without loading what clusters cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from orch.cluster.basis import Basis
from orch.cluster.cluster import Cluster
from orch.cluster.collectives import Level
from orch.cluster.curves import Curve
from orch.cluster.device import Device
from orch.cluster.link import Link, Links, Measured
from orch.cluster.node import Node
from orch.cluster.sharing import BESIDE, BESIDE_SINGLE, SINGLE, STOLEN, Overhead, Sharing
from orch.cluster.span import Span
from orch.cluster.spec import ClusterSpec, DeviceSpec, LinkSpec, MeasuredSpec, OverheadSpec, SharingSpec
from orch.cluster.spec_nodes import UnequalSpec
from orch.errors import OrchError


def load(mapping: Mapping[str, Any], name: str = "cluster") -> Cluster:
    """Return the cluster a mapping (a parsed cluster file, overrides already laid on it) describes.

    Raises OrchError E300 with the key of the first fault. Callers that know positions in files validate `ClusterSpec`
    themselves and call `build`.
    """
    try:
        return build(ClusterSpec.model_validate(mapping), name)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")
        text = first["msg"].removeprefix("Value error, ")
        where = f"cluster {name}: {key} " if key else f"cluster {name} "
        text = text[:1].lower() + text[1:]
        raise OrchError(f"{where}{text}", code="E300") from None


def build(spec: ClusterSpec, name: str) -> Cluster:
    """Return the cluster that a validated file describes; `name` stands in messages."""
    devices = spec.devices_per_node
    intra = _link(spec.links.intra, False, devices) if spec.links.intra else None
    inter = _link(spec.links.inter, True, devices) if spec.links.inter else None
    speed = dict(spec.speed)
    unequal: dict[int, Node] = {}
    for number, node in spec.unequal.items():
        ranks = range(number * devices, (number + 1) * devices)
        speed |= dict.fromkeys(ranks, node.speed) if node.speed is not None else {}
        unequal |= {number: _unequal(node, inter.node(devices))} if inter and node.of_the_link else {}
    own = {number: node.labels for number, node in spec.unequal.items() if node.labels}
    return Cluster(
        name,
        spec.nodes,
        devices,
        _device(spec.device, name),
        Links(intra, inter),
        speed,
        spec.jitter,
        _sharing(spec.sharing) if spec.sharing else None,
        _overhead(spec.overhead) if spec.overhead else None,
        {name: Curve(one.least, one.factor) for name, one in spec.operations.items()},
        spec.about,
        unequal,
        tuple(spec.labels | own.get(number, {}) for number in range(spec.nodes)) if spec.labels or own else (),
    )


def _device(spec: DeviceSpec, owner: str) -> Device:
    return Device(
        spec.kind,
        spec.name,
        dict[str, Any](**spec.rate),
        spec.memory_bandwidth,
        spec.memory,
        Basis(spec.basis, 1.0, spec.source or ""),
        spec.band,
        owner,
        spec.launch or 0.0,
    )


def _link(spec: LinkSpec, between_nodes: bool, devices_per_node: int) -> Link:
    level = None
    if spec.alpha is not None:
        beta = spec.beta if spec.beta is not None else 1.0 / spec.bandwidth if spec.bandwidth else 0.0
        level = Level(spec.alpha + (spec.delay or 0.0), beta / (1.0 - (spec.loss or 0.0)), spec.gamma or 0.0)
    measured = tuple(_measured(entry, spec, between_nodes, devices_per_node) for entry in spec.measured or ())
    per_node = spec.per == "node" if spec.per is not None else between_nodes
    return Link(
        level,
        per_node,
        spec.algorithm,
        measured,
        spec.basis,
        spec.source or "",
        (spec.alpha_band, spec.beta_band),
        spec.evidence,
        _usual(spec, per_node, devices_per_node) if between_nodes else None,
    )


def _measured(spec: MeasuredSpec, link: LinkSpec, between_nodes: bool, devices_per_node: int) -> Measured:
    """Return a measurement; ranks fill node after node where the link joins nodes."""
    ways = {SINGLE: spec.single, BESIDE: spec.beside, BESIDE_SINGLE: spec.beside_single, STOLEN: spec.stolen}
    others = tuple((way, Curve.through(table)) for way, table in ways.items() if table is not None)
    inner = min(devices_per_node, spec.ranks) if between_nodes else spec.ranks
    span = Span(spec.ranks, -(-spec.ranks // inner), inner)
    algorithm = spec.algorithm or link.algorithm
    source = spec.source or link.source or ""
    if spec.table is not None:
        bounds: tuple[float, float] | None = (min(spec.table), max(spec.table))
        curve, basis = Curve.through(spec.table), spec.basis or "measured"
    else:
        bounds = spec.sizes
        curve, basis = Curve(spec.alpha or 0.0, spec.beta or 0.0), spec.basis or "fitted"
    found = Measured(spec.collective, span, curve, algorithm, basis, source, bounds, spec.evidence, others, spec.shaped)
    return found if link.shaped is None else found.at_rate(link.shaped)


def _usual(spec: LinkSpec, per_node: bool, devices_per_node: int) -> Node | None:
    """Return what an emulated node gets; None where only measurements can tell."""
    rate = spec.shaped or spec.bandwidth or (1.0 / spec.beta if spec.beta else None)
    if rate is None and not spec.delay and not spec.loss:
        return None
    rate = rate and rate * (1 if per_node else devices_per_node)
    return Node(rate, rate, delay_s=spec.delay or 0.0, loss=spec.loss or 0.0)


def _unequal(spec: UnequalSpec, usual: Node) -> Node:
    """Return the node that differs from the usual one in what `spec` says."""
    given = {
        "egress_bytes_per_s": spec.egress if spec.bandwidth is None else spec.bandwidth,
        "ingress_bytes_per_s": spec.ingress if spec.bandwidth is None else spec.bandwidth,
        "delay_s": spec.delay,
        "loss": spec.loss,
    }
    return replace(usual, **{name: value for name, value in given.items() if value is not None})


def _sharing(spec: SharingSpec) -> Sharing:
    return Sharing(
        spec.compute_slowdown,
        spec.communication_slowdown,
        spec.source,
        spec.lanes,
        spec.units or 0,
        spec.held or 0,
    )


def _overhead(spec: OverheadSpec) -> Overhead:
    return Overhead(spec.step, spec.collective, spec.source)
