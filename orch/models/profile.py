"""A profile says what one training step of a model costs: its modules in forward order and its parameter tensors.

Two tables, because a tied tensor belongs to two modules: the language-model head runs last in forward and first in
backward, and its gradient is complete only when the embedding, which runs last in backward, is done. Nothing here
imports torch or numpy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from orch.errors import OrchError
from orch.models.attention import Attention
from orch.models.stage import Stage

# The split of a measured total over modules (baselines-dp brief, section 5; derived there and used by all its
# simulations): a module weighs flops / 10 TFLOP/s plus 12 bytes an output element / 500 GB/s. Only ratios matter, so
# the batch cancels.
SPLIT_FLOPS_PER_S = 1e13
SPLIT_BYTES_PER_ELEMENT = 12.0
SPLIT_BYTES_PER_S = 5e11

BACKWARD_OVER_FORWARD = 2.0

# Tensors of all experts of a mixture, [experts, hidden, inner] and the like: the dim that runs over an expert's width.
EXPERT_WIDTH = {"up": 2, "gate": 2, "up_bias": 1, "down": 1}


@dataclass(frozen=True, slots=True)
class Module:
    """A piece of a model that runs as one: a layer, or a product without parameters such as attention's QK^T.

    `flops` (1 multiply-add = 2) and `activation_elements` are those of the forward pass of one sample, summed over
    `calls`, the times a forward pass enters the module. `forward_s` and `backward_s` are measured, for the whole batch
    of one worker.
    """

    name: str
    flops: float
    activation_elements: float
    calls: int = 1
    forward_s: float | None = None
    backward_s: float | None = None

    @property
    def backward_flops(self) -> float:
        """FLOPs of the backward pass of one sample: one product for the input's gradient, one for the weight's."""
        return BACKWARD_OVER_FORWARD * self.flops

    @property
    def split_weight(self) -> float:
        """The share this module takes of a measured total, in arbitrary units (see `SPLIT_FLOPS_PER_S`)."""
        return self.flops / SPLIT_FLOPS_PER_S + SPLIT_BYTES_PER_ELEMENT * self.activation_elements / SPLIT_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter tensor and the modules that use it, in forward order; a tied tensor names several."""

    name: str
    shape: tuple[int, ...]
    modules: tuple[str, ...]

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


# Gates that fill the experts' slots themselves, from all tokens of a batch.
SLOTTED = ("expert-choice", "soft")


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture-of-experts layer: a gate, module `name`.gate, sends each token to `top_k` of the experts,
    module `name`.experts, whose tensors carry the expert as their first dimension.

    `tokens` of a sample reach it, `hidden` numbers wide; an expert is `inner` wide and starts `products` matrix products.
    `capacity_factor` None: no token is dropped, and what an expert gets depends on the data. `order`: tokens are laid out
    as rows by a `sort`, or by products with matrices of ones and zeros (`einsum`). `mixed`: what is routed are no tokens, but
    what a gate made of all tokens of a sample.
    """

    name: str
    tokens: int
    hidden: int
    inner: int
    experts: int
    top_k: int
    capacity_factor: float | None = None
    products: int = 2
    order: str = "sort"
    mixed: bool = False

    def local(self, ranks: int, slices: int = 1) -> int:
        """Return how many experts each of `ranks` ranks holds. Raises OrchError (E412) where they cannot be shared out
        evenly, or their width cannot be cut into `slices`.
        """
        if self.experts % ranks:
            message = f"{self.experts} experts of {self.name} cannot be shared out among {ranks} workers"
            raise OrchError(message, code="E412", hint="parallel.experts divides the number of experts")
        if self.inner % slices:
            message = f"experts of {self.name}, {self.inner} wide, cannot be cut into {slices} slices"
            raise OrchError(message, code="E412", hint="parallel.slices divides the width of an expert")
        return self.experts // ranks

    @property
    def gate_module(self) -> str:
        """Name of the gate."""
        return f"{self.name}.gate"

    @property
    def experts_module(self) -> str:
        """Name of the experts, all in one."""
        return f"{self.name}.experts"

    def routed_by(self, gate: str) -> Mixture:
        """Return this layer under a gate that fills slots itself, so that all have one size: `expert-choice` needs a
        capacity (1 where there is none), and under `soft` what is routed are the slots, each one token to its expert.
        """
        if gate not in SLOTTED:
            return self
        slotted = replace(self, capacity_factor=self.capacity_factor or 1.0)
        if gate == "expert-choice":
            return slotted
        slots = self.experts * slotted.capacity(self.tokens)
        return replace(slotted, tokens=slots, top_k=1, capacity_factor=1.0, mixed=True)

    def capacity(self, tokens: int) -> int:
        """Return the slots each expert has for one worker's `tokens`: ceil(k f S / E), at least 1.

        The rule of Megatron-LM (baselines-moe brief, section 2). Raises ValueError for a layer without capacity.
        """
        if self.capacity_factor is None:
            raise ValueError(f"{self.name} drops no token, so its experts have no capacity")
        return max(1, math.ceil(self.top_k * self.capacity_factor * tokens / self.experts - 1e-9))

    def positions(self, tokens: int) -> int:
        """Return along how many positions the rows of one worker's `tokens` can be cut: slots, or tokens."""
        return tokens if self.capacity_factor is None else self.capacity(tokens)

    @property
    def rows_per_position(self) -> int:
        """Rows at one position: one for each of a token's experts, or one for each expert's slot."""
        return self.top_k if self.capacity_factor is None else self.experts


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the backward pass: `modules` run, then the gradients of `tensors` are ready, each in this order.

    The last segment may have no tensors: modules before the first parameter still take time.
    """

    modules: tuple[Module, ...]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Profile:
    """Modules in forward order, tensors in registration order, tensor names in the order their gradients become ready.

    A tensor missing from `ready_order` never gets a gradient (see `never_ready`). Raises OrchError (E410) when the
    tables disagree.
    """

    name: str
    modules: tuple[Module, ...]
    tensors: tuple[Tensor, ...]
    ready_order: tuple[str, ...]
    source: str
    unit: str = "sample"
    mixtures: tuple[Mixture, ...] = ()
    # Of each mixture in turn, where its model says how: what of the dense work before it may be cut.
    stages: tuple[Stage, ...] = ()
    # Attention that ranks can share.
    attentions: tuple[Attention, ...] = ()

    def __post_init__(self) -> None:
        _unique(self.name, "module", [module.name for module in self.modules])
        _unique(self.name, "tensor", [tensor.name for tensor in self.tensors])
        _unique(self.name, "ready", self.ready_order)
        known = self._modules.keys()
        for tensor in self.tensors:
            if not tensor.modules or not known >= set(tensor.modules):
                unknown = [module for module in tensor.modules if module not in known]
                found = f"module {unknown[0]!r}, which the profile does not list" if unknown else "no module"
                raise _bad(self.name, f"tensor {tensor.name!r} names {found}")
        for ready in self.ready_order:
            if ready not in self._tensors:
                raise _bad(self.name, f"the ready order names {ready!r}, which is no tensor of the profile")
        parts = [(f"mixture {m.name!r}", part) for m in self.mixtures for part in (m.gate_module, m.experts_module)]
        parts += [(f"attention {one.name!r}", part) for one in self.attentions for part in one.modules]
        for owner, part in parts:
            if part not in known:
                raise _bad(self.name, f"{owner} needs module {part!r}, which it does not list")

    @cached_property
    def _modules(self) -> dict[str, int]:
        return {module.name: index for index, module in enumerate(self.modules)}

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called `name`; KeyError when there is none."""
        return self._tensors[name]

    def module(self, name: str) -> Module:
        """Return the module called `name`; KeyError when there is none."""
        return self.modules[self._modules[name]]

    @property
    def numel(self) -> int:
        """The number of parameters; a tied tensor counts once."""
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass of one sample."""
        return sum(module.flops for module in self.modules)

    @property
    def activation_elements(self) -> float:
        """Output elements of all modules in the forward pass of one sample."""
        return sum(module.activation_elements for module in self.modules)

    @property
    def never_ready(self) -> tuple[str, ...]:
        """Tensors whose gradient never arrives (BERT's pooler under a loss on the hidden states)."""
        ready = set(self.ready_order)
        return tuple(tensor.name for tensor in self.tensors if tensor.name not in ready)

    @property
    def measured(self) -> bool:
        """Whether every module carries its measured forward and backward time."""
        return all(module.forward_s is not None and module.backward_s is not None for module in self.modules)

    def backward_segments(self) -> tuple[Segment, ...]:
        """Cut the backward pass where gradients become ready.

        Modules run in reverse forward order. A tensor is ready once the last of its modules in backward has ended, and
        never before a tensor that stands ahead of it in `ready_order`.
        """
        return self._segments

    @cached_property
    def _segments(self) -> tuple[Segment, ...]:
        # Every stack of a recipe draws its plan from the same profile.
        backward = self.modules[::-1]
        last = len(backward) - 1
        cuts: list[tuple[int, list[Tensor]]] = []
        for name in self.ready_order:
            tensor = self._tensors[name]
            done = last - min(self._modules[module] for module in tensor.modules)
            if cuts and done <= cuts[-1][0]:
                cuts[-1][1].append(tensor)
            else:
                cuts.append((done, [tensor]))
        segments, start = [], 0
        for done, tensors in cuts:
            segments.append(Segment(backward[start : done + 1], tuple(tensors)))
            start = done + 1
        if start <= last:
            segments.append(Segment(backward[start:], ()))
        return tuple(segments)

    def spread(self, ranks: int, slices: int = 1) -> Profile:
        """Return what one rank holds where `ranks` ranks share the experts out, and `slices` each expert's width.

        Only the shapes of the experts' tensors change. Raises OrchError (E412) where they cannot be shared out evenly.
        """
        if ranks * slices == 1 or not self.mixtures:
            return self
        owners = {mixture.experts_module: mixture for mixture in self.mixtures}
        tensors = []
        for tensor in self.tensors:
            mixture = owners.get(tensor.modules[0])
            if mixture is None:
                tensors.append(tensor)
                continue
            shape = [mixture.local(ranks, slices), *tensor.shape[1:]]
            width = EXPERT_WIDTH.get(tensor.name.rpartition(".")[2])
            if width is not None:
                shape[width] //= slices
            tensors.append(replace(tensor, shape=tuple(shape)))
        return replace(self, tensors=tuple(tensors))

    def scaled_to(self, forward_s: float, backward_s: float) -> Profile:
        """Return this profile with measured totals (seconds for a worker's whole batch) spread over its modules.

        A profile whose modules were measured keeps their proportions; otherwise modules share by `Module.split_weight`.
        Source: the splitting rule of the data-parallel baselines brief, section 5. Raises OrchError (E410) for a total
        below 0.
        """
        if not (forward_s >= 0 and backward_s >= 0 and math.isfinite(forward_s + backward_s)):
            raise _bad(
                self.name, f"measured totals must be finite and at least 0; found {forward_s} s and {backward_s} s"
            )
        forward = _shares([m.forward_s for m in self.modules], self.modules)
        backward = _shares([m.backward_s for m in self.modules], self.modules)
        modules = tuple(
            replace(module, forward_s=forward_s * f, backward_s=backward_s * b)
            for module, f, b in zip(self.modules, forward, backward, strict=True)
        )
        return replace(self, modules=modules)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back to an equal profile."""
        return {
            "name": self.name,
            "source": self.source,
            "unit": self.unit,
            "modules": [
                {"name": m.name, "flops": m.flops, "activation_elements": m.activation_elements, "calls": m.calls,
                 "forward_s": m.forward_s, "backward_s": m.backward_s}
                for m in self.modules
            ],
            "tensors": [{"name": t.name, "shape": list(t.shape), "modules": list(t.modules)} for t in self.tensors],
            "ready_order": list(self.ready_order),
        } | {
            key: [asdict(one) for one in values]
            for key, values in (("mixtures", self.mixtures), ("stages", self.stages), ("attentions", self.attentions))
            if values
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Read what `to_json` wrote. Raises OrchError (E410) naming the key that is missing or unknown."""
        try:
            return cls(
                name=data["name"],
                modules=tuple(Module(**module) for module in data["modules"]),
                tensors=tuple(Tensor(t["name"], tuple(t["shape"]), tuple(t["modules"])) for t in data["tensors"]),
                ready_order=tuple(data["ready_order"]),
                source=data["source"],
                unit=data.get("unit", "sample"),
                mixtures=tuple(Mixture(**mixture) for mixture in data.get("mixtures", ())),
                stages=tuple(
                    Stage(**stage | {key: tuple(stage[key]) for key in ("attend", "gate")})
                    for stage in data.get("stages", ())
                ),
                attentions=tuple(Attention.read(one) for one in data.get("attentions", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _bad(str(data.get("name", "?")), f"not a profile: {error}") from None


def reverse_ready_order(modules: Iterable[Module], tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """Return the gradient-ready order of a backward pass that runs the modules in exact reverse.

    A tied tensor is ready when the last of its modules in backward (its first in forward) is done; tensors of one
    module come in reverse registration order.
    """
    place = {module.name: index for index, module in enumerate(modules)}
    numbered = [
        (min(place[module] for module in tensor.modules), index, tensor.name) for index, tensor in enumerate(tensors)
    ]
    return tuple(name for _, _, name in sorted(numbered, reverse=True))


def _shares(measured: list[float | None], modules: tuple[Module, ...]) -> list[float]:
    weights = [time for time in measured if time is not None]
    if len(weights) != len(modules) or not sum(weights) > 0:
        weights = [module.split_weight for module in modules]
    total = sum(weights)
    return [weight / total if total > 0 else 1.0 / len(weights) for weight in weights]


def _unique(profile: str, kind: str, names: Collection[str]) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _bad(profile, f"{kind} {name!r} appears twice")
        seen.add(name)


def _bad(profile: str, message: str) -> OrchError:
    return OrchError(f"profile {profile!r}: {message}", code="E410")
