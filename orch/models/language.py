"""Language models: GPT-2 and BERT as transformers builds them, and a small GPT-2 of our own for characters.

A sample is one sequence. Attention's products and the tied head are modules of the profile, so FLOPs grow with the
square of the sequence where they do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, Self

from pydantic import model_validator

from orch.models.draft import Draft
from orch.models.kinds import Interface, MaskedToken, NextToken, Tokens
from orch.models.model import Model, ModelKnobs, choice, count, share
from orch.models.profile import Profile

DERIVED = "counted from the layers; equal to a trace of the model that runs (a test holds it)"


class TransformerKnobs(ModelKnobs):
    """What every transformer here has; subclasses give the defaults."""

    seq_len: int = count(128, "tokens of a sample")
    num_layers: int = count(4, "transformer blocks", most=1024)
    hidden: int = count(128, "width of the residual stream")
    num_heads: int = count(4, "attention heads; hidden must be a multiple")
    vocab: int = count(128, "different tokens")

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden % self.num_heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of num_heads {self.num_heads}")
        return self


class LibraryKnobs(TransformerKnobs):
    """What transformers' configurations add."""

    positions: int = count(1024, "longest sequence the model has positions for")
    dropout: float = share(0.0, "share of activations dropped; 0 keeps stacks comparable step by step")
    attention: Literal["fused", "plain"] = choice(
        "fused", "fused never stores the scores (torch's scaled_dot_product_attention); plain does"
    )

    @model_validator(mode="after")
    def _sequence_fits(self) -> Self:
        if self.seq_len > self.positions:
            raise ValueError(f"seq_len {self.seq_len} is longer than positions {self.positions}")
        return self


class Gpt2Knobs(LibraryKnobs):
    """GPT-2 small."""

    seq_len: int = count(1024, "tokens of a sample")
    num_layers: int = count(12, "transformer blocks", most=1024)
    hidden: int = count(768, "width of the residual stream")
    num_heads: int = count(12, "attention heads; hidden must be a multiple")
    vocab: int = count(50257, "different tokens")


class Gpt2MediumKnobs(Gpt2Knobs):
    """GPT-2 medium."""

    num_layers: int = count(24, "transformer blocks", most=1024)
    hidden: int = count(1024, "width of the residual stream")
    num_heads: int = count(16, "attention heads; hidden must be a multiple")


class BertBaseKnobs(LibraryKnobs):
    """BERT-base with both pre-training heads."""

    seq_len: int = count(64, "tokens of a sample (64 in the papers' benchmarks)", least=4)
    num_layers: int = count(12, "transformer blocks", most=1024)
    hidden: int = count(768, "width of the residual stream")
    num_heads: int = count(12, "attention heads; hidden must be a multiple")
    vocab: int = count(30528, "different tokens, padded to a multiple of 64 as the benchmarks do", least=2)
    positions: int = count(512, "longest sequence the model has positions for")


class BertLargeKnobs(BertBaseKnobs):
    """BERT-large with both pre-training heads."""

    num_layers: int = count(24, "transformer blocks", most=1024)
    hidden: int = count(1024, "width of the residual stream")
    num_heads: int = count(16, "attention heads; hidden must be a multiple")


class CharTransformerKnobs(TransformerKnobs):
    """A small GPT-2 for characters."""

    seq_len: int = count(64, "characters of a sample")
    num_layers: int = count(2, "transformer blocks", most=1024)
    hidden: int = count(64, "width of the residual stream")


# Draws the feed-forward part of a layer: of a draft, the block's name, and the layer's number.
FeedForward = Callable[[Draft, str, int], None]


def gpt2_draft(knobs: LibraryKnobs, feed_forward: FeedForward) -> Draft:
    """Return the modules of transformers' GPT2LMHeadModel, head tied to the token embedding."""
    draft, rows, hidden = Draft(), knobs.seq_len, knobs.hidden
    draft.embedding("transformer.wte", rows, knobs.vocab, hidden, tied=("lm_head",))
    # Positions are looked up once for the whole batch; a sample is charged a full sequence, as it is added to each.
    draft.embedding("transformer.wpe", rows, knobs.positions, hidden)
    draft.begin_blocks(causal=True)
    for layer in range(knobs.num_layers):
        block = f"transformer.h.{layer}"
        draft.norm(f"{block}.ln_1", rows, hidden)
        draft.linear(f"{block}.attn.c_attn", rows, hidden, 3 * hidden, across=True)
        draft.attention(f"{block}.attn", rows, hidden, knobs.num_heads, fused=knobs.attention == "fused")
        draft.linear(f"{block}.attn.c_proj", rows, hidden, hidden, across=True)
        widths = (
            (f"{block}.attn.c_attn.weight", 1),
            (f"{block}.attn.c_attn.bias", 0),
            (f"{block}.attn.c_proj.weight", 0),
        )
        draft.shareable(f"{block}.attn", f"{block}.attn.c_attn", knobs.num_heads, rows, hidden, widths)
        draft.end_attention()
        draft.norm(f"{block}.ln_2", rows, hidden)
        feed_forward(draft, block, layer)
    draft.norm("transformer.ln_f", rows, hidden)
    draft.module("lm_head", 2 * rows * hidden * knobs.vocab, rows * knobs.vocab)
    return draft


def gpt2_feed_forward(knobs: LibraryKnobs) -> FeedForward:
    """Return what draws a dense feed-forward part of GPT-2."""
    rows, hidden = knobs.seq_len, knobs.hidden

    def draw(draft: Draft, block: str, layer: int) -> None:
        del layer
        draft.linear(f"{block}.mlp.c_fc", rows, hidden, 4 * hidden, across=True)
        draft.linear(f"{block}.mlp.c_proj", rows, 4 * hidden, hidden, across=True)

    return draw


@lru_cache(maxsize=32)
def gpt2_profile(knobs: LibraryKnobs) -> Profile:
    """Return the profile of GPT-2."""
    return gpt2_draft(knobs, gpt2_feed_forward(knobs)).finish("gpt2", DERIVED)


def bert_draft(knobs: LibraryKnobs, feed_forward: FeedForward) -> Draft:
    """Return the modules of transformers' BertForPreTraining, decoder tied to the word embedding."""
    draft, rows, hidden = Draft(), knobs.seq_len, knobs.hidden
    _bert_embeddings(draft, knobs)
    draft.begin_blocks(causal=False)
    for layer in range(knobs.num_layers):
        block = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            draft.linear(f"{block}.attention.self.{part}", rows, hidden, hidden)
        draft.attention(f"{block}.attention.self", rows, hidden, knobs.num_heads, fused=knobs.attention == "fused")
        draft.linear(f"{block}.attention.output.dense", rows, hidden, hidden)
        parts = [f"{block}.attention.self.{part}" for part in ("query", "key", "value")]
        widths = (*((f"{part}.{kind}", 0) for part in parts for kind in ("weight", "bias")),
                  (f"{block}.attention.output.dense.weight", 1))  # fmt: skip
        draft.shareable(f"{block}.attention", parts[0], knobs.num_heads, rows, hidden, widths)
        draft.norm(f"{block}.attention.output.LayerNorm", rows, hidden)
        draft.end_attention()
        feed_forward(draft, block, layer)
        draft.norm(f"{block}.output.LayerNorm", rows, hidden)
    _bert_heads(draft, knobs)
    return draft


def bert_feed_forward(knobs: LibraryKnobs) -> FeedForward:
    """Return what draws a dense feed-forward part of BERT."""
    rows, hidden = knobs.seq_len, knobs.hidden

    def draw(draft: Draft, block: str, layer: int) -> None:
        del layer
        draft.linear(f"{block}.intermediate.dense", rows, hidden, 4 * hidden)
        draft.linear(f"{block}.output.dense", rows, 4 * hidden, hidden)

    return draw


@lru_cache(maxsize=32)
def bert_profile(knobs: LibraryKnobs) -> Profile:
    """Return the profile of BERT."""
    return bert_draft(knobs, bert_feed_forward(knobs)).finish("bert", DERIVED)


def _bert_embeddings(draft: Draft, knobs: LibraryKnobs) -> None:
    rows, hidden, embeddings = knobs.seq_len, knobs.hidden, "bert.embeddings"
    draft.embedding(f"{embeddings}.word_embeddings", rows, knobs.vocab, hidden, tied=("cls.predictions.decoder",))
    start = len(draft.tensors)
    draft.embedding(f"{embeddings}.token_type_embeddings", rows, 2, hidden)
    draft.embedding(f"{embeddings}.position_embeddings", rows, knobs.positions, hidden)
    draft.register_first(start, start + 1)
    draft.norm(f"{embeddings}.LayerNorm", rows, hidden)


def _bert_heads(draft: Draft, knobs: LibraryKnobs) -> None:
    rows, hidden = knobs.seq_len, knobs.hidden
    draft.linear("bert.pooler.dense", 1, hidden, hidden)
    draft.tensor("cls.predictions.bias", knobs.vocab, modules=("cls.predictions.decoder",))
    draft.linear("cls.predictions.transform.dense", rows, hidden, hidden)
    draft.norm("cls.predictions.transform.LayerNorm", rows, hidden)
    flops = 2 * rows * hidden * knobs.vocab
    draft.module("cls.predictions.decoder", flops, rows * knobs.vocab, ready=("cls.predictions.bias",))
    draft.linear("cls.seq_relationship", 1, hidden, 2)


def char_draft(knobs: TransformerKnobs, feed_forward: FeedForward) -> Draft:
    """Return the modules of the small transformer in `orch.models.zoo.language`."""
    draft, rows, hidden = Draft(), knobs.seq_len, knobs.hidden
    draft.embedding("tokens", rows, knobs.vocab, hidden, tied=("head",))
    draft.embedding("positions", rows, rows, hidden)
    draft.begin_blocks(causal=True)
    for layer in range(knobs.num_layers):
        block = f"blocks.{layer}"
        draft.norm(f"{block}.norm1", rows, hidden)
        draft.linear(f"{block}.qkv", rows, hidden, 3 * hidden)
        draft.attention(block, rows, hidden, knobs.num_heads, fused=True)
        draft.linear(f"{block}.out", rows, hidden, hidden)
        widths = ((f"{block}.qkv.weight", 0), (f"{block}.qkv.bias", 0), (f"{block}.out.weight", 1))
        draft.shareable(block, f"{block}.qkv", knobs.num_heads, rows, hidden, widths)
        draft.end_attention()
        draft.norm(f"{block}.norm2", rows, hidden)
        feed_forward(draft, block, layer)
    draft.norm("norm", rows, hidden)
    draft.module("head", 2 * rows * hidden * knobs.vocab, rows * knobs.vocab)
    return draft


def char_feed_forward(knobs: TransformerKnobs) -> FeedForward:
    """Return what draws a dense feed-forward part of the small transformer."""
    rows, hidden = knobs.seq_len, knobs.hidden

    def draw(draft: Draft, block: str, layer: int) -> None:
        del layer
        draft.linear(f"{block}.up", rows, hidden, 4 * hidden)
        draft.linear(f"{block}.down", rows, 4 * hidden, hidden)

    return draw


@lru_cache(maxsize=32)
def char_transformer_profile(knobs: CharTransformerKnobs) -> Profile:
    """Return the profile of the small transformer."""
    return char_draft(knobs, char_feed_forward(knobs)).finish("char-transformer", DERIVED)


def next_token(knobs: TransformerKnobs) -> Interface:
    """Return what a model that predicts each next token takes and gives."""
    return Interface(Tokens(knobs.vocab, knobs.seq_len), NextToken())


def masked_token(knobs: TransformerKnobs) -> Interface:
    """Return what a model that predicts masked tokens takes and gives."""
    return Interface(Tokens(knobs.vocab, knobs.seq_len), MaskedToken(knobs.vocab))


def _gpt2(name: str, summary: str, knobs: type[LibraryKnobs]) -> Model:
    source = f"Radford et al. 2019; transformers GPT2LMHeadModel; {DERIVED}"
    return Model(name, "language", summary, source, knobs, gpt2_profile, next_token, "orch.models.zoo.language:gpt2")


def _bert(name: str, summary: str, knobs: type[LibraryKnobs]) -> Model:
    source = f"Devlin et al. 2019; transformers BertForPreTraining; {DERIVED}"
    return Model(name, "language", summary, source, knobs, bert_profile, masked_token, "orch.models.zoo.language:bert")


MODELS = (
    Model(
        "char-transformer",
        "language",
        "small GPT-2 for characters, trains on pydoc_text in minutes on a CPU",
        f"ours; {DERIVED}",
        CharTransformerKnobs,
        char_transformer_profile,
        next_token,
        "orch.models.zoo.language:char_transformer",
    ),
    _gpt2("gpt2", "GPT-2 small, head tied to the token embedding", Gpt2Knobs),
    _gpt2("gpt2-medium", "GPT-2 medium, head tied to the token embedding", Gpt2MediumKnobs),
    _bert("bert-base", "BERT-base pre-training: masked tokens and next sentence", BertBaseKnobs),
    _bert("bert-large", "BERT-large pre-training: masked tokens and next sentence", BertLargeKnobs),
)
