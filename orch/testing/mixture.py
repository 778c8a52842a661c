"""Mixture-of-experts layers and clusters whose step times can be worked out by hand."""

from __future__ import annotations

from orch.cluster import Cluster, Curve, Device, Link, Links, Measured, Span
from orch.models.draft import Draft
from orch.models.profile import Profile

_FREE = 1e30


def layers(
    number: int = 1,
    *,
    tokens: int = 8,
    hidden: int = 4,
    inner: int = 8,
    experts: int = 4,
    top_k: int = 2,
    capacity: float | None = None,
    gated: bool = False,
) -> Profile:
    """Return `number` blocks of a norm and a mixture, between an embedding of `tokens` words and a head."""
    draft = Draft()
    draft.embedding("embed", tokens, 16, hidden)
    draft.begin_blocks(causal=True)
    for layer in range(number):
        draft.norm(f"{layer}.norm", tokens, hidden)
        draft.mixture(
            f"{layer}.moe", tokens, hidden, inner, experts=experts, top_k=top_k, capacity=capacity, gated=gated
        )
    draft.linear("head", tokens, hidden, 16)
    return draft.finish("layers", "made up for an example")


def cluster(
    world_size: int,
    *,
    alpha_s: float = 0.0,
    beta_s_per_byte: float = 0.0,
    rate_flops: float = _FREE,
    launch_s: float = 0.0,
    nodes: int = 1,
    intra: tuple[float, float] = (0.0, 0.0),
    all_reduce: tuple[float, float] = (0.0, 0.0),
    group: int | None = None,
) -> Cluster:
    """Return a cluster on which an all-to-all of n bytes in a group of `group` ranks (default: all) takes
    `alpha_s + n beta_s_per_byte`, and a product `launch_s` and its FLOPs; else only what `intra` (an all-gather or
    reduce-scatter of n bytes in a node) and `all_reduce` (of all ranks; in a group a broadcast or reduce takes as long) say, both
    as start-up and seconds a byte.
    """
    per_node = world_size // nodes
    group = group or world_size
    device = Device("gpu", "example", {"fp32": rate_flops}, memory_bytes_per_s=_FREE, launch_s=launch_s)
    joins = Span(group, nodes, group // nodes) if nodes > 1 else Span(group, 1, group)
    world = Span(world_size, nodes, per_node)
    lines = {
        ("all-to-all", joins): Curve(alpha_s, beta_s_per_byte),
        ("all-reduce", world): Curve(*all_reduce),
        ("reduce-scatter", world): Curve(*all_reduce),
        ("all-gather", world): Curve(*all_reduce),
        ("broadcast", joins): Curve(*all_reduce),
        ("reduce", joins): Curve(*all_reduce),
    }
    link = Link(measured=tuple(Measured(kind, span, curve, source="example") for (kind, span), curve in lines.items()))
    node = Span(per_node, 1, per_node)
    inner = tuple(Measured(kind, node, Curve(*intra), source="example") for kind in ("all-gather", "reduce-scatter"))
    links = Links(intra=Link(measured=inner), inter=link) if nodes > 1 else Links(intra=link)
    return Cluster("example", nodes, per_node, device, links)
