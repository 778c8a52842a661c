"""Attention that ranks can share: its heads are split over them, so each holds some rows of one product and some columns
of another, and computes a part of a sum (Megatron-LM's tensor parallelism).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orch.errors import OrchError

if TYPE_CHECKING:
    from orch.models.profile import Mixture, Module, Profile, Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of a profile: `enter` is the module whose input all ranks need whole, `leave` the one whose output is a
    part of a sum on each of them; `modules` are both and what stands between.

    `tokens` of a sample pass it, `hidden` numbers wide. `widths`: of each tensor that is cut, the dim along which.
    """

    name: str
    heads: int
    tokens: int
    hidden: int
    modules: tuple[str, ...]
    widths: tuple[tuple[str, int], ...]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Attention:
        """Return what `dataclasses.asdict` wrote, perhaps by way of JSON."""
        widths = tuple((str(name), int(dim)) for name, dim in data["widths"])
        return cls(**{**data, "modules": tuple(data["modules"]), "widths": widths})

    def among(self, names: Collection[str]) -> Attention:
        """Return this attention in a profile that has only the modules `names`."""
        return replace(self, modules=tuple(name for name in self.modules if name in names))

    @property
    def enter(self) -> str:
        """The first module."""
        return self.modules[0]

    @property
    def leave(self) -> str:
        """The last module."""
        return self.modules[-1]


def sharded(profile: Profile, ranks: int, *, shares: bool = False) -> Profile:
    """Return what one of `ranks` ranks that share each sample holds and computes: its heads, and all else.

    `shares`: outside attention each has a share of a sample's tokens only; else all have all of them, and compute the same.
    Raises OrchError (E412) where heads or tokens cannot be shared out evenly.
    """
    if ranks == 1:
        return profile
    parts = {part for one in profile.mixtures for part in (one.gate_module, one.experts_module)}
    if not profile.attentions and any(module.name not in parts for module in profile.modules):
        message = f"{profile.name} has no attention that {ranks} workers could share"
        raise OrchError(message, code="E412", hint="parallel.tensor=1, or a model whose attention can be cut")
    for attention in profile.attentions:
        for number, what in ((attention.heads, "heads"), (attention.tokens if shares else ranks, "tokens")):
            if number % ranks:
                message = f"{number} {what} of {attention.name} cannot be shared out among {ranks} workers"
                raise OrchError(message, code="E412", hint=f"parallel.tensor divides the number of {what}")
    inside = {name: one for one in profile.attentions for name in one.modules}
    widths = {name: dim for one in profile.attentions for name, dim in one.widths}
    return replace(
        profile,
        modules=tuple(_module(one, inside, ranks, shares=shares) for one in profile.modules),
        tensors=tuple(_tensor(one, widths, ranks) for one in profile.tensors),
        mixtures=tuple(_mixture(one, ranks) for one in profile.mixtures) if shares else profile.mixtures,
        stages=tuple(replace(one, tokens=one.tokens // ranks) for one in profile.stages) if shares else profile.stages,
    )


def _module(module: Module, inside: dict[str, Attention], ranks: int, *, shares: bool) -> Module:
    attention = inside.get(module.name)
    if attention is None and not shares:
        return module
    # What leaves attention is a part of a sum, as large as the whole.
    whole = attention is not None and module.name == attention.leave
    elements = module.activation_elements if whole else module.activation_elements / ranks
    return replace(
        module,
        flops=module.flops / ranks,
        activation_elements=elements,
        forward_s=None if module.forward_s is None else module.forward_s / ranks,
        backward_s=None if module.backward_s is None else module.backward_s / ranks,
    )


def _tensor(tensor: Tensor, widths: dict[str, int], ranks: int) -> Tensor:
    dim = widths.get(tensor.name)
    if dim is None:
        return tensor
    shape = list(tensor.shape)
    shape[dim] //= ranks
    return replace(tensor, shape=tuple(shape))


def _mixture(mixture: Mixture, ranks: int) -> Mixture:
    if mixture.tokens % ranks:
        message = f"{mixture.tokens} tokens of {mixture.name} cannot be shared out among {ranks} workers"
        raise OrchError(message, code="E412", hint="parallel.tensor divides the tokens of a sample")
    return replace(mixture, tokens=mixture.tokens // ranks)
