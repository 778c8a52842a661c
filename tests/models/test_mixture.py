"""Models with mixtures: their layers, what one of several ranks holds, and sizes that are published."""

import pytest

from orch.errors import OrchError
from orch.models.catalogue import model
from orch.models.profile import Mixture, Profile


@pytest.mark.parametrize("name", ["char-moe", "gpt2-moe", "bert-moe", "mixtral"])
def test_every_other_block_has_a_mixture_and_its_tensors_can_be_spread(name):
    chosen = model(name)
    profile = chosen.profile(chosen.knobs())
    knobs = chosen.knobs()
    assert len(profile.mixtures) == knobs.num_layers // knobs.every
    half = profile.spread(2, 2)
    for mixture in profile.mixtures:
        whole = [t for t in profile.tensors if t.modules == (mixture.experts_module,)]
        numel = {t.name.rpartition(".")[2]: half.tensor(t.name).numel / t.numel for t in whole}
        assert numel.pop("down_bias", 0.5) == 0.5  # every slice has the whole of what is added once
        assert set(numel.values()) == {0.25}
    assert profile.spread(1) is profile
    assert Profile.from_json(profile.to_json()) == profile


def test_mixtral_has_the_published_size():
    chosen = model("mixtral")
    profile = chosen.profile(chosen.knobs())
    assert profile.numel == 46_702_792_704
    # 12.9 billion of them work on a token: two of eight experts.
    experts = sum(t.numel for t in profile.tensors if ".experts." in t.name)
    assert profile.numel - experts * 6 // 8 == pytest.approx(12.9e9, rel=0.005)


def test_experts_are_counted_for_what_they_get():
    chosen = model("char-moe")
    flops = {}
    for capacity in (None, 1.0, 1.5):
        knobs = chosen.knobs(capacity=capacity)
        flops[capacity] = chosen.profile(knobs).module("blocks.1.moe.experts").flops
    assert flops[None] == flops[1.0] == 2 * 2 * (2 * 64) * 64 * 256
    assert flops[1.5] == 1.5 * flops[1.0]


def test_capacity_is_the_ceiling_of_an_even_share():
    # The brief's example: S = 10, E = 4, k = 2, f = 1.25 makes ceil(20 / 4 x 1.25) = 7 slots.
    assert Mixture("m", 10, 4, 8, 4, 2, 1.25).capacity(10) == 7
    assert Mixture("m", 10, 4, 8, 4, 1, 0.01).capacity(10) == 1
    assert Mixture("m", 10, 4, 8, 32, 2, 1.2).capacity(80) == 6  # 1.2 x 5 is not a little more than 6
    assert Mixture("m", 10, 4, 8, 4, 2).positions(10) == 10
    with pytest.raises(ValueError, match="drops no token"):
        Mixture("m", 10, 4, 8, 4, 2).capacity(10)


def test_a_token_cannot_have_more_experts_than_there_are():
    with pytest.raises(ValueError, match="top_k 5 is more than experts 4"):
        model("char-moe").knobs(top_k=5)


@pytest.mark.parametrize("gate", ["expert-choice", "soft"])
def test_a_model_that_predicts_the_next_token_has_no_gate_that_sees_it(gate):
    with pytest.raises(ValueError, match=f"gate {gate} looks at later tokens, which this model predicts"):
        model("char-moe").knobs(gate=gate)
    assert model("bert-moe").knobs(gate=gate).gate == gate


def test_a_mixture_needs_its_modules():
    profile = model("char-moe").profile(model("char-moe").knobs())
    data = profile.to_json()
    data["mixtures"][0]["name"] = "elsewhere"
    with pytest.raises(OrchError, match=r"mixture 'elsewhere' needs module 'elsewhere\.gate'"):
        Profile.from_json(data)


def test_bare_layers_have_what_papers_configure_and_gates_that_nobody_trains():
    chosen = model("moe-layers")
    bare = chosen.profile(chosen.knobs(experts=4, top_k=1, hidden=64, inner=128, seq_len=32))
    assert [module.name for module in bare.modules] == ["layers.0.moe.gate", "layers.0.moe.experts"]
    assert {name.rpartition(".")[0] for name in bare.ready_order} == {"layers.0.moe.experts"}
    assert bare.never_ready == ("layers.0.moe.gate.weight",)
    assert not chosen.runs
    knobs = {"experts": 4, "hidden": 64, "inner": 128, "seq_len": 32, "attention": True}
    whole = chosen.profile(chosen.knobs(**knobs))
    assert whole.module("layers.0#scores").flops == 2 * 32 * 32 * 64
    assert whole.tensor("layers.0.qkv.weight").shape == (192, 64)
    half = chosen.profile(chosen.knobs(**knobs, shared=2))
    assert (half.flops, half.module("layers.0#scores").flops) == (whole.flops / 2, 2 * 16 * 32 * 64)
    with pytest.raises(ValueError, match="seq_len 32 is not a multiple of shared 3"):
        chosen.knobs(seq_len=32, shared=3)
    (attention,) = whole.attentions
    assert (attention.enter, attention.leave) == ("layers.0.qkv", "layers.0.out")
    assert chosen.profile(chosen.knobs(**knobs, keys=16)).tensor("layers.0.qkv.weight").shape == (96, 64)
