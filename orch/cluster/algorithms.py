"""Which closed form a collective takes on a group, by the name a cluster file gives its algorithm.

`auto` is the choice NCCL has: ring or double binary tree, whichever is faster at that size. An algorithm that knows no
form of a collective takes what a library built on it would use (a tree library reduce-scatters on a ring).
"""

from __future__ import annotations

from collections.abc import Callable

from orch.cluster import collectives as one
from orch.cluster import two_level as two
from orch.cluster.collectives import Level
from orch.cluster.curves import Curve, Fastest
from orch.cluster.span import Span
from orch.cluster.two_level import Network
from orch.errors import OrchError, did_you_mean

Form = tuple[Callable[[Level, int], Curve], Callable[[Network], Curve]]

_RING_RS: Form = (one.ring_reduce_scatter, two.flat_ring_reduce_scatter)
_HALVING_RS: Form = (one.halving_reduce_scatter, two.halving_reduce_scatter)
_RING_AG: Form = (one.ring_all_gather, two.flat_ring_all_gather)
_DOUBLING_AG: Form = (one.doubling_all_gather, two.doubling_all_gather)
_PAIRWISE: Form = (one.pairwise_all_to_all, two.pairwise_all_to_all)
_BINOMIAL: Form = (one.binomial_broadcast, two.binomial_broadcast)
_PIPELINED: Form = (one.pipelined_broadcast, two.pipelined_broadcast)
_BINOMIAL_REDUCE: Form = (one.binomial_reduce, two.binomial_reduce)
_PIPELINED_REDUCE: Form = (one.pipelined_reduce, two.pipelined_reduce)

FORMS: dict[str, dict[str, Form]] = {
    "all-reduce": {
        "ring": (one.ring_all_reduce, two.flat_ring_all_reduce),
        "tree": (one.tree_all_reduce, two.tree_all_reduce),
        "double-binary-tree": (one.double_tree_all_reduce, two.double_tree_all_reduce),
        "nccl-tree": (one.nccl_tree_all_reduce, two.nccl_tree_all_reduce),
        "recursive-doubling": (one.doubling_all_reduce, two.doubling_all_reduce),
        "halving-doubling": (one.halving_doubling_all_reduce, two.halving_doubling_all_reduce),
        "two-level": (one.ring_all_reduce, two.grid_all_reduce),
        "leader": (one.ring_all_reduce, two.leader_all_reduce),
    },
    "reduce-scatter": {
        "ring": _RING_RS,
        "recursive-doubling": _HALVING_RS,
        "halving-doubling": _HALVING_RS,
        "two-level": (one.ring_reduce_scatter, two.grid_reduce_scatter),
    },
    "all-gather": {
        "ring": _RING_AG,
        "recursive-doubling": _DOUBLING_AG,
        "halving-doubling": _DOUBLING_AG,
        "two-level": (one.ring_all_gather, two.grid_all_gather),
    },
    "all-to-all": {
        "pairwise": _PAIRWISE,
        "bruck": (one.bruck_all_to_all, two.bruck_all_to_all),
        "two-level": (one.pairwise_all_to_all, two.grid_all_to_all),
    },
    "broadcast": {
        "ring": _PIPELINED,
        "tree": _BINOMIAL,
        "halving-doubling": (one.scatter_broadcast, two.scatter_broadcast),
    },
    "reduce": {
        "ring": _PIPELINED_REDUCE,
        "tree": _BINOMIAL_REDUCE,
        "halving-doubling": (one.scatter_reduce, two.scatter_reduce),
    },
}
_INSTEAD = {
    "reduce-scatter": "ring",
    "all-gather": "ring",
    "all-to-all": "pairwise",
    "broadcast": "tree",
    "reduce": "tree",
}
_AUTO = {"all-reduce": ("ring", "nccl-tree"), "broadcast": ("ring", "tree"), "reduce": ("ring", "tree")}

ALGORITHMS: tuple[str, ...] = (*FORMS["all-reduce"], "auto")
COLLECTIVES: tuple[str, ...] = tuple(FORMS)


def forms(collective: str, algorithm: str) -> tuple[Form, ...]:
    """Return the forms that may serve `collective` under `algorithm`, the fastest being taken. Raises OrchError for
    unknown names.
    """
    if collective not in FORMS:
        raise OrchError(
            f"collective {collective!r} is not known",
            code="E305",
            hint=did_you_mean(collective, FORMS) or f"known: {', '.join(FORMS)}",
        )
    known = FORMS[collective]
    if algorithm in known:
        return (known[algorithm],)
    if algorithm not in ALGORITHMS:
        choices = {*known, *ALGORITHMS}
        hint = did_you_mean(algorithm, choices) or f"known: {', '.join(sorted(choices))}"
        raise OrchError(f"algorithm {algorithm!r} of {collective} is not known", code="E305", hint=hint)
    if algorithm == "auto" and collective in _AUTO:
        return tuple(known[name] for name in _AUTO[collective])
    return (known[_INSTEAD[collective]],)


def one_level(collective: str, algorithm: str, level: Level, ranks: int) -> Curve | Fastest:
    """Return the cost of a collective among `ranks` ranks joined by one level."""
    return _fastest([form(level, ranks) for form, _ in forms(collective, algorithm)])


def two_levels(collective: str, algorithm: str, net: Network) -> Curve | Fastest:
    """Return the cost of a collective among ranks on several nodes; with one rank on each node only the outer level
    counts.
    """
    if net.span.per_node == 1:
        return one_level(collective, algorithm, net.inter, net.span.size)
    return _fastest([form(net) for _, form in forms(collective, algorithm)])


def factors(collective: str, algorithm: str, span: Span) -> tuple[float, float]:
    """Return how many start-ups, and how many times beta per byte, a collective costs where both levels are alike.

    Used to carry a measurement to another group size or collective (MG-WFBP section 6: solve for alpha and beta,
    evaluate again). Algorithms that pick or nest (`auto`, `two-level`, `leader`) have no single alpha and beta; the
    ring stands in for them.
    """
    if algorithm in ("auto", "two-level", "leader"):
        algorithm = "ring"
    counts = []
    for level in (Level(alpha_s=1.0), Level(beta_s_per_byte=1.0)):
        curve = (
            two_levels(collective, algorithm, Network(level, level, span, per_node=True))
            if span.nodes > 1
            else one_level(collective, algorithm, level, span.size)
        )
        assert isinstance(curve, Curve)
        counts.append(curve)
    return float(counts[0].start_up_s), float(counts[1].per_byte_s)


def _fastest(curves: list[Curve]) -> Curve | Fastest:
    return curves[0] if len(curves) == 1 else Fastest(tuple(curves))
