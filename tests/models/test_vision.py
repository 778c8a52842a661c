"""The image models' profiles: published counts, image sizes, tables behind names."""

from __future__ import annotations

import pytest

from orch.models.catalogue import model
from orch.models.vision import ResNet101Knobs, ResNet152Knobs, ResNetKnobs, resnet_profile


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        # tensors, modules, parameters, forward GFLOP: the data-parallel baselines brief, section 5.
        (ResNetKnobs(), (161, 107, 25_557_032, 8.27)),
        (ResNet101Knobs(), (314, 209, 44_549_160, 15.73)),
        (ResNet152Knobs(), (467, 311, 60_192_808, 23.21)),
    ],
)
def test_published_counts(knobs: ResNetKnobs, expected: tuple[int, int, int, float]) -> None:
    profile = resnet_profile(knobs)
    found = (len(profile.tensors), len(profile.modules), profile.numel, round(profile.flops / 1e9, 2))
    assert found == expected


def test_the_shortcut_is_registered_first_runs_last_and_is_ready_first() -> None:
    profile = resnet_profile(ResNetKnobs(depths=(1,), image_size=32))
    tensors = [tensor.name for tensor in profile.tensors]
    block = "resnet.encoder.stages.0.layers.0"
    assert tensors.index(f"{block}.shortcut.convolution.weight") < tensors.index(f"{block}.layer.0.convolution.weight")
    ready = profile.ready_order
    assert ready.index(f"{block}.shortcut.convolution.weight") < ready.index(f"{block}.layer.2.convolution.weight")


def test_work_grows_with_the_image_and_parameters_do_not() -> None:
    small, large = resnet_profile(ResNetKnobs(image_size=64)), resnet_profile(ResNetKnobs(image_size=128))
    assert large.tensors == small.tensors
    assert 3.9 < large.flops / small.flops < 4


def test_tables_answer_by_name_at_any_size() -> None:
    chosen = model("densenet161")
    profiles = [chosen.profile(chosen.knobs(image_size=size)) for size in (224, 448)]
    assert 3.9 < profiles[1].flops / profiles[0].flops < 4
    inception = model("inception-v4")
    flops = [inception.profile(inception.knobs(image_size=size)).flops / 1e9 for size in (224, 299)]
    assert flops == pytest.approx([12.31, 24.63], abs=0.005)
    trace = model("googlenet-k80")
    assert trace.profile(trace.knobs()).measured


@pytest.mark.parametrize("name", ["densenet161", "inception-v4", "googlenet-k80"])
def test_tables_say_what_they_read(name: str) -> None:
    chosen = model(name)
    assert str(chosen.interface(chosen.knobs()).reads) == "images 3x224x224"
