"""What goes wrong on purpose, and at which step: one value for recipes, simulation, runs and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill-rank", "kill-node", "cut-link", "slow-node", "drop-rate", "link-rate"]
LASTING = ("slow-node", "drop-rate", "link-rate")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a stack's training from the beginning of step `step` on, counted from 0; in each training it is for.

    `at` is a rank (kill-rank) or a node; `lasts_s` how long a cut lasts; `stack` None stands for every stack. The
    LASTING kinds hold up to the beginning of step `until` (None: the end of the training): `amount` is by how many times
    a node is slower (slow-node) or the share of its packets that are lost (drop-rate); rates are what its link is held to
    (link-rate), bytes a second and direction, None where one stays.
    """

    kind: Kind
    at: int
    step: int
    lasts_s: float = 0.0
    stack: str | None = None
    until: int | None = None
    amount: float = 0.0
    egress_bytes_per_s: float | None = None
    ingress_bytes_per_s: float | None = None

    def __str__(self) -> str:
        what = {
            "kill-rank": "rank {} is killed",
            "kill-node": "node {} is killed",
            "cut-link": "the link of node {} is cut",
            "slow-node": "node {} is slower",
            "drop-rate": "the link of node {} loses packets",
            "link-rate": "the link of node {} has another rate",
        }[self.kind].format(self.at)
        match self.kind:
            case "cut-link":
                what += f" for {self.lasts_s:g} s"
            case "slow-node":
                what += f" by {self.amount:g}"
            case "drop-rate":
                what += f", {100 * self.amount:g} %,"
            case "link-rate":
                what += f", {self._rates()},"
        return f"{what} {self._when()}"

    def _rates(self) -> str:
        both = self.egress_bytes_per_s, self.ingress_bytes_per_s
        if both[0] == both[1]:
            return _mbit(both[0])
        return " and ".join(f"{_mbit(rate)} {way}" for rate, way in zip(both, ("out", "in"), strict=True) if rate)

    def _when(self) -> str:
        if not self.lasting:
            return f"at step {self.step}"
        return f"from step {self.step} on" if self.until is None else f"in steps {self.step} to {self.until - 1}"

    @property
    def kills(self) -> bool:
        """Whether workers die of it."""
        return self.kind in ("kill-rank", "kill-node")

    @property
    def lasting(self) -> bool:
        """Whether it holds over steps, and not once."""
        return self.kind in LASTING

    def holds(self, first: int, steps: int = 1) -> bool:
        """Whether a lasting fault holds in any of `steps` steps from step `first` on."""
        return self.lasting and self.step < first + steps and (self.until is None or self.until > first)

    def meets(self, other: Fault) -> bool:
        """Whether both would set the same thing in the same step, so that only one of them could be had."""
        stacks = None in (self.stack, other.stack) or self.stack == other.stack
        here = self.lasting and stacks and (self.kind, self.at) == (other.kind, other.at)
        later = max(self.step, other.step)
        return here and self.holds(later) and other.holds(later)

    def ranks(self, per_node: int) -> Sequence[int]:
        """Return the ranks that it is about, of which each node has `per_node`."""
        return (self.at,) if self.kind == "kill-rank" else range(self.at * per_node, (self.at + 1) * per_node)


def due(faults: Iterable[Fault], stack: str, first: int, steps: int) -> list[Fault]:
    """Return the faults that strike `stack` once within `steps` steps from step `first` on, in the order of their steps."""
    found = [
        fault
        for fault in faults
        if not fault.lasting and fault.stack in (None, stack) and first <= fault.step < first + steps
    ]
    return sorted(found, key=lambda fault: fault.step)


def holding(faults: Iterable[Fault], stack: str, first: int, steps: int = 1) -> list[Fault]:
    """Return the lasting faults of `stack` that hold in any of `steps` steps from step `first` on."""
    return [fault for fault in faults if fault.stack in (None, stack) and fault.holds(first, steps)]


def _mbit(rate: float | None) -> str:
    return f"{(rate or 0.0) * 8e-6:g} Mbit/s"
