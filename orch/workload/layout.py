"""Where the parts of a model live: which ranks share a sample, exchange rows, share an expert, or hold the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from orch.errors import OrchError
from orch.plan.buffers import Group

if TYPE_CHECKING:
    from orch.models.profile import Mixture, Profile

EXPERTS, SLICES, REPLICAS = "experts", "slices", "replicas"
# The ranks that hold each expert once: where experts are cut into slices, rows can go to all slices at once.
BLOCK = "block"
# The ranks that share each sample, and those that hold the same share of what these cut.
TENSOR, SHARDS = "tensor", "shards"
# What those ranks hold of a sample's tokens outside attention, where they do not hold the whole.
SHARES = "shares"
# The ranks that hold the stages of one pipeline, and those that hold the same stage.
STAGES, PEERS = "stages", "peers"
# Not of a layout but of where it lies: the ranks of an EXPERTS block that share a node.
NEIGHBOURS = "neighbours"


def shared_out(groups: Iterable[str]) -> bool:
    """Whether a plan with such groups shares a model out, so that a rank needs others to compute its output."""
    return not {EXPERTS, SLICES, TENSOR, STAGES}.isdisjoint(groups)


def link_of(stage: int) -> str:
    """Return the group, and the role, of the ranks on both sides of the link behind a stage."""
    return f"link{stage}"


@dataclass(frozen=True)
class Cut:
    """A stage of a pipeline: parts `first` to `last` of its model, their modules, and the numbers that leave it a sample."""

    first: int
    last: int
    modules: tuple[str, ...]
    elements: int


@dataclass(frozen=True)
class Layout:
    """Where experts and samples live: blocks of `experts` x `slices` ranks hold each expert once.

    Rank (block * experts + e) * slices + s holds slice s of the e-th part of the experts. `experts` ranks that differ
    in e exchange rows; `slices` ranks that differ in s (neighbours, so on one node where it holds them) share each
    expert; ranks that differ in the block are replicas. Whatever those are, `tensor` neighbours share each sample: all
    read it, and attention's heads are split over them; outside attention each has its `tokens` whole, or SHARES of them.
    Of a model that is cut into stages, `cuts`, neighbours hold one each, and its batch goes through in `micro_batches`.
    Raises OrchError (E413) when blocks do not fill the world.
    """

    world_size: int
    experts: int = 1
    slices: int = 1
    tensor: int = 1
    tokens: str = "whole"
    cuts: tuple[Cut, ...] = ()
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if self.cuts and self.world_size % len(self.cuts):
            message = f"a pipeline of {len(self.cuts)} stages does not fill {self.world_size} ranks"
            raise OrchError(message, code="E413", hint="parallel.pipeline divides the world size")
        if self.tensor < 1 or self.world_size % self.tensor:
            message = f"samples shared by {self.tensor} ranks do not fill {self.world_size} ranks"
            raise OrchError(message, code="E413", hint="parallel.tensor divides the world size")
        block = self.experts * self.slices
        if block < 1 or self.world_size % block:
            message = f"experts spread over {self.experts} x {self.slices} ranks do not fill {self.world_size} ranks"
            raise OrchError(message, code="E413", hint="parallel.experts x parallel.slices divides the world size")

    @staticmethod
    def of(
        world_size: int,
        mixtures: Iterable[Mixture],
        experts: int | None = None,
        slices: int = 1,
        tensor: int = 1,
        tokens: str = "whole",
    ) -> Layout:
        """Return the layout that a recipe asks for; `experts` None: as many ranks as divide both world and experts."""
        if experts is None:
            experts = gcd(world_size // slices, *(mixture.experts for mixture in mixtures))
        layout = Layout(world_size, experts, slices, tensor, tokens)
        for mixture in mixtures:
            mixture.local(experts, slices)
        return layout

    @property
    def readers(self) -> int:
        """How many batches a step reads: ranks that share a sample, or hold stages of one pipeline, read the same one."""
        return self.world_size // self.tensor // max(1, len(self.cuts))

    def local(self, profile: Profile) -> Profile:
        """Return what one rank holds of `profile`. Raises OrchError (E412) where its parts cannot be shared out."""
        from orch.models.attention import sharded

        return sharded(profile, self.tensor, shares=self.tokens == SHARES).spread(self.experts, self.slices)

    def divides(self, mixture: Mixture, tokens: int) -> bool:
        """Whether ranks that all have `tokens` may each take a part of them into a layer, before its gate."""
        return self.tokens != SHARES and not mixture.mixed and tokens % self.tensor == 0

    @property
    def replicas(self) -> int:
        """Ranks that hold the same experts."""
        return self.world_size // (self.experts * self.slices)

    def groups(self) -> dict[str, Group]:
        """Return the groups of ranks that collectives run in, the whole world included."""
        p, e, s, r, t = self.world_size, self.experts, self.slices, self.replicas, self.tensor
        starts = range(0, p, e * s)
        blocks = {
            "world": (range(p),),
            EXPERTS: tuple(range(first + k, first + e * s, s) for first in starts for k in range(s)),
            SLICES: tuple(range(first, first + s) for first in range(0, p, s)),
            BLOCK: tuple(range(first, first + e * s) for first in starts),
            REPLICAS: tuple(range(k, p, e * s) for k in range(e * s)),
            TENSOR: tuple(range(first, first + t) for first in range(0, p, t)),
            SHARDS: tuple(range(k, p, t) for k in range(t)),
        }
        if self.cuts:
            return self._of_stages()
        sizes = {"world": p, EXPERTS: e, SLICES: s, BLOCK: e * s if s > 1 else 1, REPLICAS: r, TENSOR: t}
        sizes[SHARDS] = p // t if t > 1 else 1
        return {name: Group(name, ranks) for name, ranks in blocks.items() if sizes[name] > 1 or name == "world"}

    def _of_stages(self) -> dict[str, Group]:
        """Return the world, the pipelines, the holders of each stage, and the two ranks on both sides of each link."""
        p, s = self.world_size, len(self.cuts)
        starts = range(0, p, s)
        blocks: dict[str, tuple[range, ...]] = {
            "world": (range(p),),
            STAGES: tuple(range(first, first + s) for first in starts),
            PEERS: tuple(range(stage, p, s) for stage in range(s)),
        }
        links = {link_of(k): tuple(range(first + k, first + k + 2) for first in starts) for k in range(s - 1)}
        found = {name: Group(name, ranks) for name, ranks in (blocks | links).items()}
        return {name: group for name, group in found.items() if group.size > 1 or name in ("world", STAGES)}
