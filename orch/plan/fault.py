"""What goes wrong on purpose, and at which step: one value for recipes, simulation, runs and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill-rank", "kill-node", "cut-link"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at the beginning of step `step` of a stack's training, counted from 0; once in each training it is for.

    `at` is a rank (kill-rank) or a node; `lasts_s` how long a cut lasts; `stack` None stands for every stack.
    """

    kind: Kind
    at: int
    step: int
    lasts_s: float = 0.0
    stack: str | None = None

    def __str__(self) -> str:
        what = {
            "kill-rank": "rank {} is killed",
            "kill-node": "node {} is killed",
            "cut-link": "the link of node {} is cut",
        }
        lasts = f" for {self.lasts_s:g} s" if self.kind == "cut-link" else ""
        return f"{what[self.kind].format(self.at)}{lasts} at step {self.step}"

    @property
    def kills(self) -> bool:
        """Whether workers die of it."""
        return self.kind != "cut-link"

    def ranks(self, per_node: int) -> Sequence[int]:
        """Return the ranks that it is about, of which each node has `per_node`."""
        return (self.at,) if self.kind == "kill-rank" else range(self.at * per_node, (self.at + 1) * per_node)


def due(faults: Iterable[Fault], stack: str, first: int, steps: int) -> list[Fault]:
    """Return the faults of `stack` within `steps` steps from step `first` on, in the order of their steps."""
    found = [fault for fault in faults if fault.stack in (None, stack) and first <= fault.step < first + steps]
    return sorted(found, key=lambda fault: fault.step)
