"""Closed forms of the collectives, all in one place: each returns a `Curve`, seconds as a function of n bytes.

P ranks; n bytes = the full vector a rank hands over (all-gather: the full result; all-to-all: all that one rank sends).
alpha is seconds a message, beta seconds a byte and direction, gamma seconds a byte of reduction; lg = ceil(log2 P). One
rank costs nothing. Source of the one-level rows: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005), and the table of MG-WFBP (Shi, Chu, Li, INFOCOM 2019), both from recollection.
"""

from __future__ import annotations

from dataclasses import dataclass

from orch.cluster.curves import Curve, Number


@dataclass(frozen=True, slots=True)
class Level:
    """The point-to-point cost of one level of the network, in seconds and seconds per byte."""

    alpha_s: Number = 0.0
    beta_s_per_byte: Number = 0.0
    gamma_s_per_byte: Number = 0.0

    def curve(self, messages: Number, sent: Number, reduced: Number = 0.0) -> Curve:
        """Return the cost of `messages` rounds in which `sent * n` bytes pass and `reduced * n` bytes are added up."""
        return Curve(messages * self.alpha_s, sent * self.beta_s_per_byte + reduced * self.gamma_s_per_byte)


def rounds(ranks: int) -> int:
    """Return lg = ceil(log2 ranks): the rounds of a doubling algorithm, also for numbers that are no power of two."""
    return (ranks - 1).bit_length()


def share(ranks: int) -> float:
    """Return (P-1)/P: the part of a vector that is not one's own."""
    return (ranks - 1) / ranks


# --- all-reduce -------------------------------------------------------------------------------------------------------


def ring_all_reduce(level: Level, ranks: int) -> Curve:
    """2(P-1) alpha + 2(P-1)/P n beta + (P-1)/P n gamma: a ring reduce-scatter, then a ring all-gather. Bandwidth
    optimal.
    """
    return level.curve(2 * (ranks - 1), 2 * share(ranks), share(ranks))


def tree_all_reduce(level: Level, ranks: int) -> Curve:
    """2 lg alpha + (2 beta + gamma) lg n: binomial reduce, then binomial broadcast, whole vectors, not pipelined."""
    return level.curve(2 * rounds(ranks), 2 * rounds(ranks), rounds(ranks))


def double_tree_all_reduce(level: Level, ranks: int) -> Curve:
    """2 lg alpha + (beta + gamma) n: two pipelined trees, as counted in MG-WFBP's table (NCCL's own model counts 2
    beta: `nccl_tree`).
    """
    moving = 1 if ranks > 1 else 0
    return level.curve(2 * rounds(ranks), moving, moving)


def nccl_tree_all_reduce(level: Level, ranks: int) -> Curve:
    """2 lg alpha + 2 n beta: NCCL's own model of its double binary tree (NCCL 2.8-2.12 tuning code)."""
    return level.curve(2 * rounds(ranks), 2 if ranks > 1 else 0)


def doubling_all_reduce(level: Level, ranks: int) -> Curve:
    """lg alpha + (beta + gamma) lg n: recursive doubling of whole vectors; the least start-up, for short messages."""
    return level.curve(rounds(ranks), rounds(ranks), rounds(ranks))


def halving_doubling_all_reduce(level: Level, ranks: int) -> Curve:
    """2 lg alpha + 2(P-1)/P n beta + (P-1)/P n gamma: recursive halving, then recursive doubling (Rabenseifner)."""
    return level.curve(2 * rounds(ranks), 2 * share(ranks), share(ranks))


# --- halves of an all-reduce ------------------------------------------------------------------------------------------


def ring_reduce_scatter(level: Level, ranks: int) -> Curve:
    """(P-1) alpha + (P-1)/P n (beta + gamma)."""
    return level.curve(ranks - 1, share(ranks), share(ranks))


def halving_reduce_scatter(level: Level, ranks: int) -> Curve:
    """lg alpha + (P-1)/P n (beta + gamma): recursive halving."""
    return level.curve(rounds(ranks), share(ranks), share(ranks))


def ring_all_gather(level: Level, ranks: int) -> Curve:
    """(P-1) alpha + (P-1)/P n beta; n is the full result."""
    return level.curve(ranks - 1, share(ranks))


def doubling_all_gather(level: Level, ranks: int) -> Curve:
    """lg alpha + (P-1)/P n beta; n is the full result: recursive doubling."""
    return level.curve(rounds(ranks), share(ranks))


# --- one to all, all to one, all to all -------------------------------------------------------------------------------


def binomial_broadcast(level: Level, ranks: int) -> Curve:
    """lg alpha + lg n beta."""
    return level.curve(rounds(ranks), rounds(ranks))


def pipelined_broadcast(level: Level, ranks: int) -> Curve:
    """P alpha + n beta: a ring of chunks small enough that filling the pipe costs start-ups only."""
    return level.curve(ranks, 1) if ranks > 1 else Curve()


def scatter_broadcast(level: Level, ranks: int) -> Curve:
    """(lg + P - 1) alpha + 2(P-1)/P n beta: binomial scatter, then ring all-gather."""
    return level.curve(rounds(ranks) + ranks - 1, 2 * share(ranks))


def binomial_reduce(level: Level, ranks: int) -> Curve:
    """lg alpha + lg n (beta + gamma): the binomial broadcast backwards, adding in every round."""
    return level.curve(rounds(ranks), rounds(ranks), rounds(ranks))


def pipelined_reduce(level: Level, ranks: int) -> Curve:
    """P alpha + n (beta + gamma): the pipelined broadcast backwards."""
    return level.curve(ranks, 1, 1) if ranks > 1 else Curve()


def scatter_reduce(level: Level, ranks: int) -> Curve:
    """(lg + P - 1) alpha + 2(P-1)/P n beta + (P-1)/P n gamma: ring reduce-scatter, then binomial gather."""
    return level.curve(rounds(ranks) + ranks - 1, 2 * share(ranks), share(ranks))


def pairwise_all_to_all(level: Level, ranks: int) -> Curve:
    """(P-1) alpha + (P-1)/P n beta: one message for every other rank."""
    return level.curve(ranks - 1, share(ranks))


def bruck_all_to_all(level: Level, ranks: int) -> Curve:
    """lg alpha + lg n beta / 2: fewer messages, more bytes; for short messages."""
    return level.curve(rounds(ranks), rounds(ranks) / 2)
