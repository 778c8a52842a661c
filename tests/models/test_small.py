"""The small models' profiles: how their knobs shape them."""

from __future__ import annotations

from orch.models.small import (
    MlpKnobs,
    ResNetDigitsKnobs,
    TinyTensorsKnobs,
    blocks,
    mlp_profile,
    resnet_digits_profile,
    tiny_tensors_profile,
)


def test_the_digits_net_is_ordinary() -> None:
    profile = resnet_digits_profile(ResNetDigitsKnobs())
    assert (len(profile.tensors), profile.numel) == (32, 42938)
    assert blocks(ResNetDigitsKnobs(depth=3, width=4)) == [(4, 4, 1), (4, 4, 1), (4, 8, 2)]
    assert profile.module("blocks.3.conv2").activation_elements == 4 * 4 * 32


def test_width_and_depth_scale_the_digits_net() -> None:
    narrow, wide = (resnet_digits_profile(ResNetDigitsKnobs(width=w)) for w in (16, 32))
    assert 3.5 < wide.flops / narrow.flops < 4
    assert len(resnet_digits_profile(ResNetDigitsKnobs(depth=8)).tensors) == 32 + 4 * 6


def test_the_perceptron_has_few_large_tensors_and_the_deep_net_many_small_ones() -> None:
    mlp, tiny = mlp_profile(MlpKnobs()), tiny_tensors_profile(TinyTensorsKnobs())
    assert (len(mlp.tensors), max(t.numel for t in mlp.tensors)) == (6, 1024 * 1024)
    assert (len(tiny.tensors), max(t.numel for t in tiny.tensors)) == (60, 2048)
    assert len(tiny_tensors_profile(TinyTensorsKnobs(layers=200)).tensors) == 200
    assert [t.shape for t in mlp_profile(MlpKnobs(widths=(5,))).tensors] == [(5, 64), (5,), (10, 5), (10,)]
