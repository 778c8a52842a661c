"""Image models: residual nets as transformers builds them, and the papers' other nets, known by their tables.

A sample is one square image. The residual nets run and are counted layer by layer, so every size is exact; the others
have only a profile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from orch.models.draft import Draft
from orch.models.kinds import Classes, Image, Interface
from orch.models.model import Model, ModelKnobs, Size, count, sizes
from orch.models.profile import Profile
from orch.models.tables import PROFILES, at_image_size, load

EXPANSION = 4  # a bottleneck block's output is four times as wide as its middle
DEPTHS = "bottleneck blocks of each stage"
RESNET_SOURCE = (
    "He et al. 2016; transformers ResNetForImageClassification; counted from the layers; equal to a trace of the model "
    "that runs (a test holds it)"
)


class ResNetKnobs(ModelKnobs):
    """A residual net of bottleneck blocks; depths are those of ResNet-50."""

    image_size: int = count(224, "pixels a side of an image", least=8, most=4096)
    channels: int = count(3, "channels of an image")
    num_classes: int = count(1000, "classes to tell apart", least=2)
    width: int = count(64, "channels after the first convolution; blocks end 4, 8, 16 and 32 times as wide")
    depths: tuple[Size, ...] = sizes((3, 4, 6, 3), DEPTHS, most=8)


class ResNet101Knobs(ResNetKnobs):
    """The depths of ResNet-101."""

    depths: tuple[Size, ...] = sizes((3, 4, 23, 3), DEPTHS, most=8)


class ResNet152Knobs(ResNetKnobs):
    """The depths of ResNet-152."""

    depths: tuple[Size, ...] = sizes((3, 8, 36, 3), DEPTHS, most=8)


class TableKnobs(ModelKnobs):
    """A net known by its table."""

    image_size: int = count(224, "pixels a side of an image; work grows with the area", least=32, most=4096)


class InceptionKnobs(ModelKnobs):
    """Inception-v4, counted at two sizes because its convolutions do not pad."""

    image_size: Literal[224, 299] = 224


class TraceKnobs(ModelKnobs):
    """A measured trace: nothing to set."""


def _halved(side: int) -> int:
    """Return the output side of a padded layer of stride 2."""
    return (side - 1) // 2 + 1


@lru_cache(maxsize=32)
def resnet_profile(knobs: ResNetKnobs) -> Profile:
    """Return the profile of transformers' bottleneck ResNet. The shortcut is registered first and runs last."""
    draft, width = Draft(), knobs.width
    side = _halved(knobs.image_size)
    _layer(draft, "resnet.embedder.embedder", side, knobs.channels, width, 7)
    side, inputs = _halved(side), width
    for stage, blocks in enumerate(knobs.depths):
        outputs = width * EXPANSION * 2**stage
        for block in range(blocks):
            prefix = f"resnet.encoder.stages.{stage}.layers.{block}"
            before, side = side, _halved(side) if stage and not block else side
            start, middle = len(draft.tensors), outputs // EXPANSION
            _layer(draft, f"{prefix}.layer.0", before, inputs, middle, 1)
            _layer(draft, f"{prefix}.layer.1", side, middle, middle, 3)
            _layer(draft, f"{prefix}.layer.2", side, middle, outputs, 1)
            if inputs != outputs or side != before:
                end = len(draft.tensors)
                _layer(draft, f"{prefix}.shortcut", side, inputs, outputs, 1)
                draft.register_first(start, end)
            inputs = outputs
    draft.linear("classifier.1", 1, inputs, knobs.num_classes)
    return draft.finish("resnet", RESNET_SOURCE)


def _layer(draft: Draft, name: str, side: int, inputs: int, outputs: int, kernel: int) -> None:
    draft.convolution(f"{name}.convolution", side, inputs, outputs, kernel)
    draft.norm(f"{name}.normalization", side**2, outputs)


def _resnet_interface(knobs: ResNetKnobs) -> Interface:
    return Interface(Image(knobs.channels, knobs.image_size, knobs.image_size), Classes(knobs.num_classes))


def _resnet(name: str, summary: str, knobs: type[ResNetKnobs]) -> Model:
    builder = "orch.models.zoo.vision:resnet"
    return Model(name, "vision", summary, RESNET_SOURCE, knobs, resnet_profile, _resnet_interface, builder)


def _of_table(name: str, summary: str, source: str) -> Model:
    def profile(knobs: TableKnobs) -> Profile:
        return at_image_size(PROFILES / name, knobs.image_size)

    def interface(knobs: TableKnobs) -> Interface:
        return Interface(Image(3, knobs.image_size, knobs.image_size), Classes(1000))

    return Model(name, "vision", summary, source, TableKnobs, profile, interface)


def _inception_profile(knobs: InceptionKnobs) -> Profile:
    return load(PROFILES / ("inception-v4" if knobs.image_size == 224 else "inception-v4-299"))


def _inception_interface(knobs: InceptionKnobs) -> Interface:
    return Interface(Image(3, knobs.image_size, knobs.image_size), Classes(1000))


def _k80_profile(_: TraceKnobs) -> Profile:
    return load(PROFILES / "googlenet-k80")


def _k80_interface(_: TraceKnobs) -> Interface:
    return Interface(Image(3, 224, 224), Classes(1000))


MODELS = (
    _resnet("resnet50", "ResNet-50", ResNetKnobs),
    _resnet("resnet101", "ResNet-101", ResNet101Knobs),
    _resnet("resnet152", "ResNet-152", ResNet152Knobs),
    _of_table(
        "densenet161", "DenseNet-161: many tensors, few parameters", "Huang et al. 2017; torchvision's definition"
    ),
    _of_table(
        "densenet201", "DenseNet-201: many tensors, few parameters", "Huang et al. 2017; torchvision's definition"
    ),
    _of_table("googlenet", "GoogLeNet with batch normalisation and auxiliary heads", "torchvision's definition"),
    Model(
        "googlenet-k80",
        "vision",
        "GoogLeNet of Caffe, layer times measured on one Tesla K80 die",
        "B-Caffe repository, log data of February 2018",
        TraceKnobs,
        _k80_profile,
        _k80_interface,
    ),
    Model(
        "inception-v4",
        "vision",
        "Inception-v4",
        "Szegedy et al. 2017; timm's definition",
        InceptionKnobs,
        _inception_profile,
        _inception_interface,
    ),
    _of_table(
        "vgg16", "VGG-16: three tensors hold nine tenths of it", "Simonyan, Zisserman 2015; torchvision's definition"
    ),
    _of_table("vgg19", "VGG-19: three tensors hold most of it", "Simonyan, Zisserman 2015; torchvision's definition"),
)
