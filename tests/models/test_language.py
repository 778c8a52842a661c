"""The language models' profiles: published counts, the tied head, attention that grows with the square."""

from __future__ import annotations

import time

import pytest

from orch.models.language import (
    BertBaseKnobs,
    BertLargeKnobs,
    CharTransformerKnobs,
    Gpt2Knobs,
    Gpt2MediumKnobs,
    bert_profile,
    char_transformer_profile,
    gpt2_profile,
)
from orch.models.profile import Profile

GPT2 = Gpt2Knobs(seq_len=64)


@pytest.mark.parametrize(
    ("profile", "tensors", "parameters", "gflop"),
    [
        # The summary of the data-parallel baselines brief, section 5; attention's products were not counted there, and
        # the bias of BERT's decoder was taken for a normalisation (8 FLOP an output element), which it is not.
        (bert_profile(BertBaseKnobs()), 206, 110_111_042, 13.98 - 8 * 64 * 30528 / 1e9),
        (bert_profile(BertLargeKnobs()), 398, 336_232_258, 42.83 - 8 * 64 * 30528 / 1e9),
        (gpt2_profile(GPT2), 148, 124_439_808, 15.82),
        (gpt2_profile(Gpt2MediumKnobs(seq_len=64)), 292, 354_823_168, 45.27),
    ],
)
def test_published_counts(profile: Profile, tensors: int, parameters: int, gflop: float) -> None:
    products = sum(module.flops for module in profile.modules if "#" in module.name)
    assert (len(profile.tensors), profile.numel) == (tensors, parameters)
    assert (profile.flops - products) / 1e9 == pytest.approx(gflop, abs=0.006)
    assert products > 0


def test_the_head_runs_last_and_its_gradient_comes_last() -> None:
    profile = gpt2_profile(GPT2)
    assert profile.modules[-1].name == "lm_head"
    assert profile.modules[-1].flops == 2 * 64 * 768 * 50257
    assert profile.ready_order[-1] == "transformer.wte.weight"
    assert profile.backward_segments()[0].modules[0].name == "lm_head"


def test_attention_grows_with_the_square_of_the_sequence_and_the_rest_does_not() -> None:
    short, long = gpt2_profile(Gpt2Knobs(seq_len=256)), gpt2_profile(Gpt2Knobs(seq_len=1024))
    for name, factor in (("transformer.h.0.attn#scores", 16), ("transformer.h.0.mlp.c_fc", 4)):
        assert long.module(name).flops == factor * short.module(name).flops
    assert long.tensors == short.tensors


def test_plain_attention_stores_its_scores() -> None:
    name = "transformer.h.0.attn#scores"
    assert gpt2_profile(GPT2).module(name).activation_elements == 0
    assert gpt2_profile(Gpt2Knobs(seq_len=64, attention="plain")).module(name).activation_elements == 12 * 64 * 64


def test_the_small_transformer_is_a_small_gpt2() -> None:
    profile = char_transformer_profile(CharTransformerKnobs())
    assert profile.tensor("tokens.weight").modules == ("tokens", "head")
    assert len(char_transformer_profile(CharTransformerKnobs(num_layers=3)).tensors) == len(profile.tensors) + 12


def test_bert_large_is_described_in_milliseconds() -> None:
    seconds = []
    for _ in range(5):
        bert_profile.cache_clear()
        start = time.process_time()
        bert_profile(BertLargeKnobs())
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.01
