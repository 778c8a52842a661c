"""What one rank holds of a model that is shared out: its experts, its slices of them, its share of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from orch.models.zoo.shards import share, shared_parameters
from orch.plan import SIZES
from orch.runtime.base import GLOO_THREADS
from orch.runtime.mixture import expert_parameters, spread
from orch.workload.layout import BLOCK, EXPERTS, NEIGHBOURS, SLICES, STAGES, TENSOR, shared_out

# Rows travel in the plan's order, one chunk after another: on two threads they would share the link.
_IN_ORDER = (EXPERTS, NEIGHBOURS, BLOCK, TENSOR, SIZES)


def threads_of(group: str) -> int:
    """Return the threads of gloo that the process group for `group` has."""
    return 1 if group in _IN_ORDER or group.startswith("link") else GLOO_THREADS


def keep_own(model: nn.Module, rank: int, blocks: Mapping[str, Sequence[int]]) -> None:
    """Keep of `model` what `rank` holds; `blocks`: of each of the plan's groups, the ranks of its block."""
    places = {name: (list(ranks).index(rank), len(ranks)) for name, ranks in blocks.items()}
    share(model, *places.get(TENSOR, (0, 1)))
    spread(model, *(places.get(name, (0, 1)) for name in (EXPERTS, SLICES)))


def own_parameters(model: nn.Module, groups: Iterable[str]) -> frozenset[str]:
    """Return the names of the parameters that not every rank holds alike under a plan with such groups."""
    names = set(groups)
    if STAGES in names:
        return frozenset(name for name, _ in model.named_parameters())
    own = shared_parameters(model) if TENSOR in names else frozenset()
    return own | (expert_parameters(model) if shared_out(names - {TENSOR}) else frozenset())


def reader(rank: int, ranks: int, blocks: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Return which of how many batches a rank reads: those who share samples, or a pipeline, read the same one."""
    together = len(blocks.get(STAGES, blocks.get(TENSOR, (rank,))))
    return rank // together, ranks // together
