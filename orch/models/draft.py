"""Write a profile down layer by layer, in the order the layers run; counted as `orch.models.zoo.trace` counts.

Gradient-ready order is what autograd does with such layers: modules in reverse, a product's bias before its weight, a
normalisation's weight before its bias, a tied tensor when its last use in backward is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orch.models.attention import Attention
from orch.models.profile import SLOTTED, Mixture, Module, Profile, Tensor
from orch.models.stage import Stage

NORM_FLOPS_PER_ELEMENT = 8.0
# How wide a gate of cosines projects tokens (X-MoE's, as Tutel has it).
PROJECTED = 256


@dataclass
class Draft:
    """A profile in the making. Modules go in the order they run; tensors in the order they are registered."""

    modules: list[Module] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    ready: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mixtures: list[Mixture] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    # Where the stage being written begins, None before the first block; where its attention has ended.
    _stage: int | None = None
    _attended: int = 0
    _causal: bool = False

    def module(self, name: str, flops: float, elements: float, *, ready: tuple[str, ...] = ()) -> None:
        """Add a module; `ready` are the tensors whose gradients it completes, in the order they come."""
        self.modules.append(Module(name, float(flops), float(elements)))
        self.ready[name] = ready

    def tensor(self, name: str, *shape: int, modules: tuple[str, ...]) -> None:
        """Register a tensor."""
        self.tensors.append(Tensor(name, shape, modules))

    def linear(
        self, name: str, rows: int, inputs: int, outputs: int, *, bias: bool = True, across: bool = False
    ) -> None:
        """A product of `rows` rows a sample; `across`: the weight is kept [inputs, outputs], as GPT-2 has it."""
        ready = (f"{name}.bias", f"{name}.weight") if bias else (f"{name}.weight",)
        self.module(name, 2 * rows * inputs * outputs, rows * outputs, ready=ready)
        self.tensor(f"{name}.weight", *((inputs, outputs) if across else (outputs, inputs)), modules=(name,))
        if bias:
            self.tensor(f"{name}.bias", outputs, modules=(name,))

    def convolution(self, name: str, side: int, inputs: int, outputs: int, kernel: int) -> None:
        """A square convolution without bias, on `side` x `side` output pixels."""
        self.module(name, 2 * side**2 * outputs * inputs * kernel**2, side**2 * outputs, ready=(f"{name}.weight",))
        self.tensor(f"{name}.weight", outputs, inputs, kernel, kernel, modules=(name,))

    def norm(self, name: str, rows: int, size: int) -> None:
        """A normalisation of `rows` rows of `size` numbers a sample."""
        elements = rows * size
        self.module(name, NORM_FLOPS_PER_ELEMENT * elements, elements, ready=(f"{name}.weight", f"{name}.bias"))
        self.tensor(f"{name}.weight", size, modules=(name,))
        self.tensor(f"{name}.bias", size, modules=(name,))

    def scale(self, name: str, rows: int, size: int) -> None:
        """A normalisation without a bias (RMS norm)."""
        self.module(name, NORM_FLOPS_PER_ELEMENT * rows * size, rows * size, ready=(f"{name}.weight",))
        self.tensor(f"{name}.weight", size, modules=(name,))

    def embedding(self, name: str, rows: float, vocab: int, size: int, *, tied: tuple[str, ...] = ()) -> None:
        """A look-up of `rows` rows a sample; `tied` are later modules that use its table as a weight."""
        self.module(name, 0, rows * size, ready=(f"{name}.weight",))
        self.tensor(f"{name}.weight", vocab, size, modules=(name, *tied))

    def attention(self, name: str, seq_len: int, hidden: int, heads: int, *, fused: bool) -> None:
        """The products QK^T and PV of one block. A fused kernel never stores the scores."""
        self.module(f"{name}#scores", 2 * seq_len**2 * hidden, 0 if fused else heads * seq_len**2)
        self.module(f"{name}#values", 2 * seq_len**2 * hidden, seq_len * hidden)

    def shareable(
        self, name: str, enter: str, heads: int, rows: int, hidden: int, widths: tuple[tuple[str, int], ...]
    ) -> None:
        """Let ranks share the attention whose modules are `enter` and all behind it: see `orch.models.attention`."""
        names = [module.name for module in self.modules]
        self.attentions.append(Attention(name, heads, rows, hidden, tuple(names[names.index(enter) :]), widths))

    def mixture(
        self,
        name: str,
        rows: int,
        hidden: int,
        inner: int,
        *,
        experts: int,
        top_k: int,
        capacity: float | None,
        gated: bool,
        gate: str = "softmax",
        order: str = "sort",
    ) -> None:
        """A mixture of `experts`, each a product up to `inner` and one down again, with biases; `gated` ones have a
        second product up and no biases (Mixtral's). Counted for rows that fill the capacity, or for `top_k` a token.
        """
        products = 3 if gated else 2
        layer = Mixture(name, rows, hidden, inner, experts, top_k, capacity, products, order).routed_by(gate)
        self._gate(layer, rows, gate)
        self._end_stage(layer, rows, gate)
        routed = layer.tokens * layer.top_k * (layer.capacity_factor or 1.0)
        owner = layer.experts_module
        shapes: dict[str, tuple[int, ...]] = {"up": (hidden, inner), "down": (inner, hidden)}
        shapes |= {"gate": (hidden, inner)} if gated else {"up_bias": (inner,), "down_bias": (hidden,)}
        elements = routed * (inner * (products - 1) + hidden)
        tensors = tuple(f"{owner}.{part}" for part in shapes)
        self.module(owner, 2 * products * routed * hidden * inner, elements, ready=tensors[::-1])
        for tensor, shape in zip(tensors, shapes.values(), strict=True):
            self.tensor(tensor, experts, *shape, modules=(owner,))
        self.mixtures.append(layer)
        if self._stage is not None:
            self._stage = len(self.modules)

    def _gate(self, layer: Mixture, rows: int, gate: str) -> None:
        """The gate of `layer` for `rows` tokens. That of slots mixes tokens into them and outputs out of them too."""
        owner, wide = layer.gate_module, PROJECTED if gate == "cosine" else layer.hidden
        scored = layer.tokens if gate == "soft" else layer.experts
        shapes: dict[str, tuple[int, ...]] = {"weight": (scored, wide)}
        flops, elements = 2 * rows * wide * scored, rows * scored
        ready: tuple[str, ...] = ("weight",)
        if gate == "soft":
            flops, elements = 3 * flops, 2 * elements + layer.tokens * layer.hidden
        elif gate == "cosine":
            shapes |= {"temperature": (1,), "project": (wide, layer.hidden), "project_bias": (wide,)}
            flops, elements = flops + 2 * rows * layer.hidden * wide, elements + rows * wide
            ready = ("temperature", "weight", "project_bias", "project")
        self.module(owner, flops, elements, ready=tuple(f"{owner}.{part}" for part in ready))
        for part, shape in shapes.items():
            self.tensor(f"{owner}.{part}", *shape, modules=(owner,))

    def begin_blocks(self, *, causal: bool) -> None:
        """Say that blocks follow, one after another, whose dense work may be cut into samples; in `causal` ones along the
        tokens too. After the attention of each comes `end_attention`.
        """
        self._stage, self._causal = len(self.modules), causal
        self._attended = self._stage

    def end_attention(self) -> None:
        """Say that from here on a block knows each token by itself."""
        self._attended = len(self.modules)

    def _end_stage(self, layer: Mixture, rows: int, gate: str) -> None:
        """Note the dense work that leads to `layer`, whose gate has just been written."""
        if self._stage is None or gate in SLOTTED:
            return
        begin, middle = self._stage, max(self._stage, self._attended)
        attend = self.modules[begin:middle]
        total = sum(module.flops for module in attend)
        square = sum(module.flops for module in attend if "#" in module.name)
        names = [module.name for module in self.modules]
        self.stages.append(
            Stage(layer.name, tuple(names[begin:middle]), tuple(names[middle:]), rows, self._causal,
                  square / total if total else 0.0)
        )  # fmt: skip

    def register_first(self, start: int, end: int) -> None:
        """Move the tensors added since `end` before those added from `start` on: run late, registered early."""
        self.tensors[start:] = self.tensors[end:] + self.tensors[start:end]

    def finish(self, name: str, source: str) -> Profile:
        """Return the profile."""
        ready = [tensor for module in reversed(self.modules) for tensor in self.ready[module.name]]
        return Profile(
            name, tuple(self.modules), tuple(self.tensors), tuple(ready), source, mixtures=tuple(self.mixtures),
            stages=tuple(self.stages), attentions=tuple(self.attentions),
        )  # fmt: skip
