"""Closed forms for groups that cross nodes: G nodes of m ranks, P = G m, an inner level (ai, bi) and an outer one (ae,
be).

The outer link belongs to the node (`per: node`: m ranks that send at once share it) or to every device (`per: device`).
`Network.egress_s` is the time in which one byte leaves a node when all its links work: be for `per: node`, be / m for
`per: device`.

Source: derived by composing the one-level forms; the start-up of NCCL's tree from NCCL 2.8-2.12's tuning code.
"""

from __future__ import annotations

from dataclasses import dataclass

from orch.cluster import collectives as one
from orch.cluster.collectives import Level
from orch.cluster.curves import Curve, Number, larger
from orch.cluster.span import Span


@dataclass(frozen=True, slots=True)
class Network:
    """Both levels as one group sees them."""

    intra: Level
    inter: Level
    span: Span
    per_node: bool

    @property
    def egress_s(self) -> Number:
        """Seconds in which one byte leaves a node while all the node's outer links are busy."""
        return self.inter.beta_s_per_byte if self.per_node else self.inter.beta_s_per_byte / self.span.per_node

    @property
    def crowded(self) -> Level:
        """The outer level as each rank sees it while all m ranks of its node send at once."""
        return Level(self.inter.alpha_s, self.egress_s * self.span.per_node, self.inter.gamma_s_per_byte)

    @property
    def slower_byte_s(self) -> Number:
        """Seconds a byte on the slower of the inner link and the node's egress: what limits a pipeline over both."""
        return larger(self.intra.beta_s_per_byte, self.egress_s)


def _hops(net: Network) -> Number:
    """Start-up of P-1 hops around a flat ring, of which G cross nodes: the 2(P-1) of an all-reduce cross 2G times."""
    inner = net.span.size - 1 - net.span.nodes
    return inner * net.intra.alpha_s + net.span.nodes * net.inter.alpha_s


def flat_ring_all_gather(net: Network) -> Curve:
    """(P-1-G) ai + G ae + (P-1)/P n max(bi, egress): one ring through all ranks, node by node (m rings when every
    device has its link).
    """
    return Curve(_hops(net), one.share(net.span.size) * net.slower_byte_s)


def flat_ring_reduce_scatter(net: Network) -> Curve:
    """As the all-gather, plus (P-1)/P n gamma."""
    return flat_ring_all_gather(net) + Curve(0.0, one.share(net.span.size) * net.intra.gamma_s_per_byte)


def flat_ring_all_reduce(net: Network) -> Curve:
    """2 [(P-1-G) ai + G ae] + 2(P-1)/P n max(bi, egress) + (P-1)/P n gamma."""
    return flat_ring_reduce_scatter(net) + flat_ring_all_gather(net)


def grid_all_reduce(net: Network) -> Curve:
    """Inner reduce-scatter(n), m outer all-reduces of n/m at once, inner all-gather(n), all on rings:
    2(m-1) ai + 2(m-1)/m n bi + 2(G-1) ae + 2(G-1)/G n egress (+ gamma)."""
    outer = one.ring_all_reduce(net.crowded, net.span.nodes).of_part(1 / net.span.per_node)
    return (
        one.ring_reduce_scatter(net.intra, net.span.per_node)
        + outer
        + one.ring_all_gather(net.intra, net.span.per_node)
    )


def grid_reduce_scatter(net: Network) -> Curve:
    """Inner reduce-scatter(n), then outer reduce-scatter(n/m)."""
    outer = one.ring_reduce_scatter(net.crowded, net.span.nodes).of_part(1 / net.span.per_node)
    return one.ring_reduce_scatter(net.intra, net.span.per_node) + outer


def grid_all_gather(net: Network) -> Curve:
    """Outer all-gather(n/m), then inner all-gather(n)."""
    outer = one.ring_all_gather(net.crowded, net.span.nodes).of_part(1 / net.span.per_node)
    return outer + one.ring_all_gather(net.intra, net.span.per_node)


def leader_all_reduce(net: Network) -> Curve:
    """Inner reduce to a leader, ring all-reduce of the leaders, inner broadcast, the inner parts pipelined:
    2 lg(m) ai + 2 n bi + 2(G-1) ae + 2(G-1)/G n be (+ gamma)."""
    inner = net.intra.curve(2 * one.rounds(net.span.per_node), 2, 1)
    return inner + one.ring_all_reduce(net.inter, net.span.nodes)


def tree_all_reduce(net: Network) -> Curve:
    """Binomial reduce inside, binomial all-reduce of the leaders, binomial broadcast inside: forms added."""
    return one.tree_all_reduce(net.intra, net.span.per_node) + one.tree_all_reduce(net.inter, net.span.nodes)


def double_tree_all_reduce(net: Network) -> Curve:
    """2 lg(m) ai + 2 lg(G) ae + n (max(bi, egress) + gamma): pipelined, so the slower level alone limits the bytes."""
    start_up = (
        2 * one.rounds(net.span.per_node) * net.intra.alpha_s + 2 * one.rounds(net.span.nodes) * net.inter.alpha_s
    )
    return Curve(start_up, net.slower_byte_s + net.intra.gamma_s_per_byte)


def nccl_tree_all_reduce(net: Network) -> Curve:
    """2 [(m-1) ai + lg(G) ae] + 2 n max(bi, egress): a chain inside the node, double binary trees outside."""
    start_up = 2 * ((net.span.per_node - 1) * net.intra.alpha_s + one.rounds(net.span.nodes) * net.inter.alpha_s)
    return Curve(start_up, 2 * net.slower_byte_s)


def doubling_all_reduce(net: Network) -> Curve:
    """lg(m) rounds inside, then lg(G) rounds in which all m ranks of a node send whole vectors at once."""
    return one.doubling_all_reduce(net.intra, net.span.per_node) + one.doubling_all_reduce(net.crowded, net.span.nodes)


def halving_doubling_all_reduce(net: Network) -> Curve:
    """The inner distances first: halving inside, halving-doubling of n/m outside, doubling inside."""
    outer = one.halving_doubling_all_reduce(net.crowded, net.span.nodes).of_part(1 / net.span.per_node)
    return (
        one.halving_reduce_scatter(net.intra, net.span.per_node)
        + outer
        + one.doubling_all_gather(net.intra, net.span.per_node)
    )


def halving_reduce_scatter(net: Network) -> Curve:
    """Recursive halving inside, then of n/m outside."""
    outer = one.halving_reduce_scatter(net.crowded, net.span.nodes).of_part(1 / net.span.per_node)
    return one.halving_reduce_scatter(net.intra, net.span.per_node) + outer


def doubling_all_gather(net: Network) -> Curve:
    """Recursive doubling of n/m outside, then inside."""
    outer = one.doubling_all_gather(net.crowded, net.span.nodes).of_part(1 / net.span.per_node)
    return outer + one.doubling_all_gather(net.intra, net.span.per_node)


def binomial_broadcast(net: Network) -> Curve:
    """Binomial over the nodes, then binomial inside each."""
    return one.binomial_broadcast(net.inter, net.span.nodes) + one.binomial_broadcast(net.intra, net.span.per_node)


def pipelined_broadcast(net: Network) -> Curve:
    """G ae + m ai + n max(be, bi): both levels pipelined, so the slower alone limits the bytes."""
    start_up = net.span.nodes * net.inter.alpha_s + net.span.per_node * net.intra.alpha_s
    return Curve(start_up, larger(net.inter.beta_s_per_byte, net.intra.beta_s_per_byte))


def scatter_broadcast(net: Network) -> Curve:
    """Scatter and all-gather over the nodes, then inside each."""
    return one.scatter_broadcast(net.inter, net.span.nodes) + one.scatter_broadcast(net.intra, net.span.per_node)


def binomial_reduce(net: Network) -> Curve:
    """Binomial inside each node, then over the nodes."""
    return one.binomial_reduce(net.inter, net.span.nodes) + one.binomial_reduce(net.intra, net.span.per_node)


def pipelined_reduce(net: Network) -> Curve:
    """The pipelined broadcast backwards, plus n gamma."""
    return pipelined_broadcast(net) + Curve(0.0, net.intra.gamma_s_per_byte)


def scatter_reduce(net: Network) -> Curve:
    """Reduce-scatter and gather inside each node, then over the nodes."""
    return one.scatter_reduce(net.inter, net.span.nodes) + one.scatter_reduce(net.intra, net.span.per_node)


def pairwise_all_to_all(net: Network) -> Curve:
    """(m-1) ai + (P-m) ae + n [(m-1)/P bi + m (G-1)/G egress]: every pair its own message; n is what one rank sends."""
    size, nodes, inner = net.span.size, net.span.nodes, net.span.per_node
    outer = Level(net.inter.alpha_s, net.egress_s * inner)
    return net.intra.curve(inner - 1, (inner - 1) / size) + outer.curve(size - inner, one.share(nodes))


def grid_all_to_all(net: Network) -> Curve:
    """(m-1) ai + (G-1) ae + n [(m-1)/m bi + m (G-1)/G egress]: sorted inside the node first; fewer outer messages, as
    many outer bytes.
    """
    outer = Level(net.inter.alpha_s, net.egress_s * net.span.per_node)
    return net.intra.curve(net.span.per_node - 1, one.share(net.span.per_node)) + outer.curve(
        net.span.nodes - 1, one.share(net.span.nodes)
    )


def bruck_all_to_all(net: Network) -> Curve:
    """lg(P) rounds of n/2 bytes, each at the slower start-up and the slower byte of both levels (all ranks of a node
    send at once).
    """
    level = Level(
        larger(net.intra.alpha_s, net.inter.alpha_s),
        larger(net.intra.beta_s_per_byte, net.egress_s * net.span.per_node),
    )
    return one.bruck_all_to_all(level, net.span.size)
