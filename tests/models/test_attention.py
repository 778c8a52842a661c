"""Attention that ranks share: what each of them holds and computes, and what cannot be shared."""

import json

import pytest

from orch.errors import OrchError
from orch.models.attention import sharded
from orch.models.catalogue import model
from orch.models.profile import Profile
from orch.testing import mixture


def profile(name: str, **knobs: object) -> Profile:
    chosen = model(name)
    return chosen.profile(chosen.knobs(**knobs))


SMALL = {"num_layers": 2, "hidden": 32, "num_heads": 4, "seq_len": 16, "experts": 4}


@pytest.mark.parametrize("name", ["char-moe", "gpt2-moe", "bert-moe", "mixtral"])
def test_each_rank_computes_its_share_of_attention_and_all_of_the_rest(name: str) -> None:
    more = {"key_value_heads": 2} if name == "mixtral" else {}
    whole = profile(name, **SMALL, **more)
    half = sharded(whole, 2)
    inside = {module for one in whole.attentions for module in one.modules}
    assert len(whole.attentions) == 2
    for before, after in zip(whole.modules, half.modules, strict=True):
        assert after.flops == (before.flops / 2 if before.name in inside else before.flops)
    cut = {tensor for one in whole.attentions for tensor, _ in one.widths}
    for tensor in whole.tensors:
        assert half.tensor(tensor.name).numel == (tensor.numel // 2 if tensor.name in cut else tensor.numel)
    for one in whole.attentions:
        # What leaves attention is a part of a sum: as large as the whole, and its bias is nobody's share.
        assert half.module(one.leave).activation_elements == whole.module(one.leave).activation_elements
        assert not any(tensor.startswith(f"{one.leave}.bias") for tensor, _ in one.widths)
    assert sharded(whole, 1) is whole


def test_shares_of_tokens_divide_all_work() -> None:
    whole = profile("moe-layers", attention=True, hidden=32, inner=16, seq_len=16, experts=4, num_layers=2)
    half = sharded(whole, 2, shares=True)
    assert half.flops == whole.flops / 2
    assert {one.tokens for one in half.mixtures} == {8}


def test_measured_times_are_shared_as_well() -> None:
    whole = profile("char-moe", **SMALL).scaled_to(3.0, 6.0)
    half = sharded(whole, 4)
    assert half.module("blocks.0.qkv").forward_s == whole.module("blocks.0.qkv").forward_s / 4
    assert half.module("blocks.0.norm1").backward_s == whole.module("blocks.0.norm1").backward_s


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(OrchError, match=r"4 heads of blocks\.0 cannot be shared out among 3 workers"):
        sharded(profile("char-moe", **SMALL), 3)
    with pytest.raises(OrchError, match="layers has no attention that 2 workers could share"):
        sharded(mixture.layers(), 2)
    # Where there is nothing but mixtures, all of them are entered by all who share a sample.
    assert sharded(profile("moe-layers"), 2).flops == profile("moe-layers").flops
    with pytest.raises(OrchError, match="15 tokens of blocks"):
        sharded(profile("char-moe", **{**SMALL, "seq_len": 15}), 2, shares=True)


def test_attention_goes_through_json_and_names_modules_that_exist() -> None:
    whole = profile("char-moe", **SMALL)
    data = json.loads(json.dumps(whole.to_json()))
    assert Profile.from_json(data) == whole
    data["attentions"][0]["modules"][0] = "elsewhere"
    with pytest.raises(OrchError, match=r"attention 'blocks\.0' needs module 'elsewhere'"):
        Profile.from_json(data)


def test_a_profile_that_shows_fewer_modules_keeps_the_attention() -> None:
    (first, _) = profile("char-moe", **SMALL).attentions
    seen = first.among(["blocks.0.qkv", "blocks.0.out", "blocks.0.norm1"])
    assert (seen.enter, seen.leave, len(seen.modules)) == ("blocks.0.qkv", "blocks.0.out", 2)
