"""Language models with mixtures of experts: GPT-2, BERT and Mixtral as transformers builds them, with the feed-forward
part of some blocks replaced, and a small one of our own for characters.

A sample is one sequence. The gate is a product without bias; experts are counted for a balanced layer.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from orch.models.draft import Draft
from orch.models.kinds import Interface, NextToken, Tokens
from orch.models.language import (
    BertBaseKnobs,
    CharTransformerKnobs,
    FeedForward,
    Gpt2Knobs,
    TransformerKnobs,
    bert_draft,
    bert_feed_forward,
    char_draft,
    char_feed_forward,
    gpt2_draft,
    gpt2_feed_forward,
    masked_token,
    next_token,
)
from orch.models.model import Model, ModelKnobs, choice, count
from orch.models.profile import SLOTTED, Mixture, Profile

COUNTED = "counted from the layers, balanced experts"
Capacity = Annotated[float, Field(gt=0, strict=True)]


def _capacity(default: float | None) -> Any:
    return Field(default, description="slots of an expert over its even share of the tokens; none: no token is dropped")


class MixtureKnobs(ModelKnobs):
    """What the mixtures of every model here have; it is mixed into the knobs of a transformer."""

    experts: int = count(4, "experts of a mixture", most=4096)
    top_k: int = count(2, "experts a token is sent to", most=64)
    every: int = count(2, "each how many-th block has a mixture; the last of each so many")
    capacity: Capacity | None = _capacity(None)
    balance: float = Field(
        0.01, ge=0, description="weight of the auxiliary loss that evens out the experts' loads, where tokens choose"
    )
    gate: Literal["softmax", "sigmoid", "cosine", "expert-choice", "soft"] = choice(
        "softmax",
        "how tokens find experts: by softmax (GShard, Switch), sigmoid (BASE, StableMoE) or cosine scores (X-MoE); "
        "expert-choice and soft (SoftMoE) fill an even share of slots from all tokens, later ones too",
    )
    order: Literal["sort", "einsum"] = choice(
        "sort",
        "how tokens become rows: by a stable sort, or by products with matrices of ones and zeros (GShard, DeepSpeed), "
        "which take rows x tokens operations",
    )
    # Whether what comes out at a place may depend on later tokens.
    looks_ahead: ClassVar[bool] = False

    @model_validator(mode="after")
    def _gate_fits(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than experts {self.experts}")
        if self.gate in SLOTTED and not self.looks_ahead:
            raise ValueError(f"gate {self.gate} looks at later tokens, which this model predicts; bert-moe may")
        return self

    def mixture(self, name: str, tokens: int, hidden: int, inner: int, *, gated: bool = False) -> Mixture:
        """Return the sizes of a layer that gets `tokens` of a sample."""
        products = 3 if gated else 2
        plain = Mixture(name, tokens, hidden, inner, self.experts, self.top_k, self.capacity, products, self.order)
        return plain.routed_by(self.gate)

    def mixed(self, layer: int) -> bool:
        """Whether block `layer` has a mixture."""
        return layer % self.every == self.every - 1


class CharMoeKnobs(MixtureKnobs, CharTransformerKnobs):
    """A small mixture-of-experts transformer for characters."""


class Gpt2MoeKnobs(MixtureKnobs, Gpt2Knobs):
    """GPT-2 small with a mixture in every other block."""

    experts: int = count(8, "experts of a mixture", most=4096)
    capacity: Capacity | None = _capacity(1.2)


class BertMoeKnobs(MixtureKnobs, BertBaseKnobs):
    """BERT-base with a mixture in every other block."""

    looks_ahead: ClassVar[bool] = True
    experts: int = count(8, "experts of a mixture", most=4096)
    capacity: Capacity | None = _capacity(1.2)


class MixtralKnobs(MixtureKnobs, TransformerKnobs):
    """Mixtral 8x7B."""

    seq_len: int = count(1024, "tokens of a sample")
    num_layers: int = count(32, "transformer blocks", most=1024)
    hidden: int = count(4096, "width of the residual stream")
    num_heads: int = count(32, "attention heads; hidden must be a multiple")
    vocab: int = count(32000, "different tokens")
    key_value_heads: int = count(8, "heads that keys and values have; num_heads is a multiple")
    inner: int = count(14336, "width of an expert")
    experts: int = count(8, "experts of a mixture", most=4096)
    every: int = count(1, "each how many-th block has a mixture; the last of each so many")

    @model_validator(mode="after")
    def _heads_share_keys(self) -> Self:
        if self.num_heads % self.key_value_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of key_value_heads {self.key_value_heads}")
        return self


class MoeLayersKnobs(MixtureKnobs, ModelKnobs):
    """Layers as papers about schedules configure them: mixtures, each with attention before it or without."""

    seq_len: int = count(1024, "tokens of a sample")
    num_layers: int = count(1, "layers", most=1024)
    hidden: int = count(1024, "width of a token")
    inner: int = count(4096, "width of an expert")
    gated: bool = Field(False, description="an expert has three products, as Mixtral's, in place of two")
    attention: bool = Field(False, description="attention comes before each mixture")
    keys: int | None = Field(None, ge=1, strict=True, description="width of keys, and of values; default: hidden")
    shared: int = count(
        1,
        "ranks that share a sample's tokens, and the weights of its attention; parallel.tensor draws what they tell one another",
    )
    every: int = count(1, "each how many-th layer has a mixture: every one", most=1)
    # They predict nothing.
    looks_ahead: ClassVar[bool] = True

    @model_validator(mode="after")
    def _shares_are_whole(self) -> Self:
        for name, value in (("seq_len", self.seq_len), ("hidden", self.hidden)):
            if value % self.shared:
                raise ValueError(f"{name} {value} is not a multiple of shared {self.shared}")
        return self


def _mixture(draft: Draft, name: str, knobs: MixtureKnobs, rows: int, hidden: int, inner: int, *, gated: bool) -> None:
    draft.mixture(
        name, rows, hidden, inner, experts=knobs.experts, top_k=knobs.top_k, capacity=knobs.capacity, gated=gated,
        gate=knobs.gate, order=knobs.order,
    )  # fmt: skip


def _some(knobs: MixtureKnobs, part: str, rows: int, hidden: int, dense: FeedForward) -> FeedForward:
    """Return what draws a mixture named `part` in blocks that have one, and a dense feed-forward part in the others."""

    def draw(draft: Draft, block: str, layer: int) -> None:
        if knobs.mixed(layer):
            _mixture(draft, f"{block}.{part}", knobs, rows, hidden, 4 * hidden, gated=False)
        else:
            dense(draft, block, layer)

    return draw


@lru_cache(maxsize=32)
def char_moe_profile(knobs: CharMoeKnobs) -> Profile:
    """Return the profile of the small transformer with mixtures in `orch.models.zoo.mixed`."""
    feed_forward = _some(knobs, "moe", knobs.seq_len, knobs.hidden, char_feed_forward(knobs))
    return char_draft(knobs, feed_forward).finish("char-moe", COUNTED)


@lru_cache(maxsize=32)
def gpt2_moe_profile(knobs: Gpt2MoeKnobs) -> Profile:
    """Return the profile of transformers' GPT2LMHeadModel with mixtures in place of some blocks' `mlp`."""
    feed_forward = _some(knobs, "mlp", knobs.seq_len, knobs.hidden, gpt2_feed_forward(knobs))
    return gpt2_draft(knobs, feed_forward).finish("gpt2-moe", COUNTED)


@lru_cache(maxsize=32)
def bert_moe_profile(knobs: BertMoeKnobs) -> Profile:
    """Return the profile of transformers' BertForPreTraining with mixtures in place of some blocks' feed-forward part."""
    feed_forward = _some(knobs, "intermediate", knobs.seq_len, knobs.hidden, bert_feed_forward(knobs))
    return bert_draft(knobs, feed_forward).finish("bert-moe", COUNTED)


@lru_cache(maxsize=32)
def mixtral_profile(knobs: MixtralKnobs) -> Profile:
    """Return the profile of transformers' MixtralForCausalLM; its norms scale only, its head is not tied."""
    draft, rows, hidden = Draft(), knobs.seq_len, knobs.hidden
    shared = hidden // knobs.num_heads * knobs.key_value_heads
    draft.embedding("model.embed_tokens", rows, knobs.vocab, hidden)
    draft.begin_blocks(causal=True)
    for layer in range(knobs.num_layers):
        block, start = f"model.layers.{layer}", len(draft.tensors)
        draft.scale(f"{block}.input_layernorm", rows, hidden)
        for part, outputs in (("q_proj", hidden), ("k_proj", shared), ("v_proj", shared)):
            draft.linear(f"{block}.self_attn.{part}", rows, hidden, outputs, bias=False)
        draft.attention(f"{block}.self_attn", rows, hidden, knobs.num_heads, fused=True)
        draft.linear(f"{block}.self_attn.o_proj", rows, hidden, hidden, bias=False)
        widths = ((f"{block}.self_attn.q_proj.weight", 0), (f"{block}.self_attn.k_proj.weight", 0),
                  (f"{block}.self_attn.v_proj.weight", 0), (f"{block}.self_attn.o_proj.weight", 1))  # fmt: skip
        enter = f"{block}.self_attn.q_proj"
        draft.shareable(f"{block}.self_attn", enter, knobs.key_value_heads, rows, hidden, widths)
        draft.end_attention()
        draft.scale(f"{block}.post_attention_layernorm", rows, hidden)
        if knobs.mixed(layer):
            _mixture(draft, f"{block}.mlp", knobs, rows, hidden, knobs.inner, gated=True)
        else:
            for part in ("gate_proj", "up_proj"):
                draft.linear(f"{block}.mlp.{part}", rows, hidden, knobs.inner, bias=False)
            draft.linear(f"{block}.mlp.down_proj", rows, knobs.inner, hidden, bias=False)
        # Registered last, whenever they run.
        draft.tensors[start:] = sorted(draft.tensors[start:], key=lambda tensor: "layernorm" in tensor.name)
    draft.scale("model.norm", rows, hidden)
    draft.linear("lm_head", rows, hidden, knobs.vocab, bias=False)
    return draft.finish("mixtral", COUNTED)


@lru_cache(maxsize=4096)
def moe_layers_profile(knobs: MoeLayersKnobs) -> Profile:
    """Return the profile of bare layers. Gates are not trained, so that a mixture alone has no gradient to send.

    Attention can be shared by any number of ranks that divides `hidden` and `keys`: heads are not counted.
    """
    draft, rows, hidden = Draft(), knobs.seq_len // knobs.shared, knobs.hidden
    keys = knobs.keys or hidden
    draft.begin_blocks(causal=True)
    for layer in range(knobs.num_layers):
        name = f"layers.{layer}"
        if knobs.attention:
            for part, outputs in (("qkv", hidden + 2 * keys), ("out", hidden)):
                if part == "out":
                    scores = 2 * rows * knobs.seq_len * hidden
                    draft.module(f"{name}#scores", scores, 0)
                    draft.module(f"{name}#values", scores, rows * hidden)
                weight = f"{name}.{part}.weight"
                draft.module(f"{name}.{part}", 2 * rows * hidden * outputs, rows * outputs, ready=(weight,))
                draft.tensor(weight, outputs // knobs.shared, hidden, modules=(f"{name}.{part}",))
            widths = ((f"{name}.qkv.weight", 0), (f"{name}.out.weight", 1))
            draft.shareable(name, f"{name}.qkv", gcd(hidden, keys), rows, hidden, widths)
            draft.end_attention()
        _mixture(draft, f"{name}.moe", knobs, rows, hidden, knobs.inner, gated=knobs.gated)
        draft.ready[f"{name}.moe.gate"] = ()
    return draft.finish("moe-layers", COUNTED)


def _made_up(knobs: MoeLayersKnobs) -> Interface:
    return Interface(Tokens(2, knobs.seq_len), NextToken())


MODELS = (
    Model(
        "char-moe",
        "mixture",
        "small GPT-2 for characters with a mixture of experts in every other block",
        f"ours; {COUNTED}",
        CharMoeKnobs,
        char_moe_profile,
        next_token,
        "orch.models.zoo.mixed:char_moe",
        mixed=True,
        shared=True,
    ),
    Model(
        "gpt2-moe",
        "mixture",
        "GPT-2 small with a mixture of experts in every other block",
        f"transformers GPT2LMHeadModel with blocks replaced; {COUNTED}",
        Gpt2MoeKnobs,
        gpt2_moe_profile,
        next_token,
        "orch.models.zoo.mixed:gpt2_moe",
        mixed=True,
        shared=True,
    ),
    Model(
        "bert-moe",
        "mixture",
        "BERT-base pre-training with a mixture of experts in every other block",
        f"transformers BertForPreTraining with blocks replaced; {COUNTED}",
        BertMoeKnobs,
        bert_moe_profile,
        masked_token,
        "orch.models.zoo.mixed:bert_moe",
        mixed=True,
    ),
    Model(
        "mixtral",
        "mixture",
        "Mixtral 8x7B: eight gated experts in every block, two a token",
        f"Jiang et al., arXiv:2401.04088; transformers MixtralConfig; {COUNTED}",
        MixtralKnobs,
        mixtral_profile,
        next_token,
        "orch.models.zoo.mixed:mixtral",
        mixed=True,
    ),
    Model(
        "moe-layers",
        "mixture",
        "bare mixture-of-experts layers, as papers about schedules configure them: planned and simulated only",
        f"ours; {COUNTED}",
        MoeLayersKnobs,
        moe_layers_profile,
        _made_up,
        mixed=True,
    ),
)
