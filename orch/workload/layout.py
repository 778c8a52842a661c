"""Where the experts of mixtures live: which ranks exchange rows, share an expert, or hold the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from orch.errors import OrchError
from orch.plan.buffers import Group

if TYPE_CHECKING:
    from orch.models.profile import Mixture

EXPERTS, SLICES, REPLICAS = "experts", "slices", "replicas"
# The ranks that hold each expert once: where experts are cut into slices, rows can go to all slices at once.
BLOCK = "block"
# Not of a layout but of where it lies: the ranks of an EXPERTS block that share a node.
NEIGHBOURS = "neighbours"


def shared_out(groups: Iterable[str]) -> bool:
    """Whether a plan with such groups shares experts out: each rank holds some, or a slice of some."""
    return not {EXPERTS, SLICES}.isdisjoint(groups)


@dataclass(frozen=True)
class Layout:
    """Where experts live: blocks of `experts` x `slices` ranks hold each expert once.

    Rank (block * experts + e) * slices + s holds slice s of the e-th part of the experts. `experts` ranks that differ
    in e exchange rows; `slices` ranks that differ in s (neighbours, so on one node where it holds them) share each
    expert; ranks that differ in the block are replicas. Raises OrchError (E413) when blocks do not fill the world.
    """

    world_size: int
    experts: int = 1
    slices: int = 1

    def __post_init__(self) -> None:
        block = self.experts * self.slices
        if block < 1 or self.world_size % block:
            message = f"experts spread over {self.experts} x {self.slices} ranks do not fill {self.world_size} ranks"
            raise OrchError(message, code="E413", hint="parallel.experts x parallel.slices divides the world size")

    @staticmethod
    def of(world_size: int, mixtures: Iterable[Mixture], experts: int | None = None, slices: int = 1) -> Layout:
        """Return the layout that a recipe asks for; `experts` None: as many ranks as divide both world and experts."""
        if experts is None:
            experts = gcd(world_size // slices, *(mixture.experts for mixture in mixtures))
        layout = Layout(world_size, experts, slices)
        for mixture in mixtures:
            mixture.local(experts, slices)
        return layout

    @property
    def replicas(self) -> int:
        """Ranks that hold the same experts."""
        return self.world_size // (self.experts * self.slices)

    def groups(self) -> dict[str, Group]:
        """Return the groups of ranks that collectives run in, the whole world included."""
        p, e, s, r = self.world_size, self.experts, self.slices, self.replicas
        starts = range(0, p, e * s)
        blocks = {
            "world": (range(p),),
            EXPERTS: tuple(range(first + k, first + e * s, s) for first in starts for k in range(s)),
            SLICES: tuple(range(first, first + s) for first in range(0, p, s)),
            BLOCK: tuple(range(first, first + e * s) for first in starts),
            REPLICAS: tuple(range(k, p, e * s) for k in range(e * s)),
        }
        sizes = {"world": p, EXPERTS: e, SLICES: s, BLOCK: e * s if s > 1 else 1, REPLICAS: r}
        return {name: Group(name, ranks) for name, ranks in blocks.items() if sizes[name] > 1 or name == "world"}
