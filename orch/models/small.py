"""Small models of our own, for real runs on a few CPU cores: each is an extreme of what techniques care about.

`resnet-digits` is the ordinary one; `mlp` has few large tensors, `tiny-tensors` many small ones. Profiles are drawn when
one is asked for: a recipe is checked without.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from orch.models.kinds import Classes, Flat, Image, Interface
from orch.models.model import Model, ModelKnobs, Parts, Size, count, sizes

if TYPE_CHECKING:
    from orch.models.draft import Draft
    from orch.models.profile import Profile

SOURCE = "ours; counted from the layers; equal to a trace of the model that runs (a test holds it)"


class ResNetDigitsKnobs(ModelKnobs):
    """A small residual net."""

    width: int = count(16, "channels of the first half of the blocks; the second half has twice as many")
    depth: int = count(4, "residual blocks of two convolutions", most=256)
    image_size: int = count(8, "pixels a side of an image", least=2, most=4096)
    channels: int = count(1, "channels of an image")
    num_classes: int = count(10, "classes to tell apart", least=2)


class MlpKnobs(ModelKnobs):
    """A multi-layer perceptron."""

    inputs: int = count(64, "numbers of a sample (an image of 1x8x8 has 64)")
    widths: tuple[Size, ...] = sizes((1024, 1024), "width of each hidden layer", most=256)
    num_classes: int = count(10, "classes to tell apart", least=2)


class TinyTensorsKnobs(ModelKnobs):
    """A deep, narrow net without biases: one small tensor a layer."""

    layers: int = count(60, "layers, and so parameter tensors", least=2, most=4096)
    width: int = count(32, "width of each hidden layer")
    inputs: int = count(64, "numbers of a sample (an image of 1x8x8 has 64)")
    num_classes: int = count(10, "classes to tell apart", least=2)


def blocks(knobs: ResNetDigitsKnobs) -> list[tuple[int, int, int]]:
    """Return (input channels, output channels, stride) of each residual block: the second half is wide and coarse."""
    shapes, inputs = [], knobs.width
    for block in range(knobs.depth):
        wide = block >= (knobs.depth + 1) // 2
        outputs = knobs.width * (2 if wide else 1)
        shapes.append((inputs, outputs, 2 if outputs != inputs else 1))
        inputs = outputs
    return shapes


@lru_cache(maxsize=32)
def resnet_digits_profile(knobs: ResNetDigitsKnobs) -> Profile:
    """Return the profile of the small residual net."""
    from orch.models.draft import Draft

    draft, side = Draft(), knobs.image_size
    _layer(draft, "stem", "norm", side, knobs.channels, knobs.width, 3)
    channels = knobs.width
    for number, (inputs, channels, stride) in enumerate(blocks(knobs)):
        side = (side - 1) // stride + 1
        prefix = f"blocks.{number}"
        _layer(draft, f"{prefix}.conv1", f"{prefix}.norm1", side, inputs, channels, 3)
        _layer(draft, f"{prefix}.conv2", f"{prefix}.norm2", side, channels, channels, 3)
        if stride != 1:
            _layer(draft, f"{prefix}.shortcut", f"{prefix}.shortcut_norm", side, inputs, channels, 1)
    draft.linear("head", 1, channels, knobs.num_classes)
    return draft.finish("resnet-digits", SOURCE)


def _layer(draft: Draft, name: str, norm: str, side: int, inputs: int, outputs: int, kernel: int) -> None:
    draft.convolution(name, side, inputs, outputs, kernel)
    draft.norm(norm, side**2, outputs)


@lru_cache(maxsize=32)
def mlp_profile(knobs: MlpKnobs) -> Profile:
    """Return the profile of the perceptron."""
    from orch.models.draft import Draft

    draft, inputs = Draft(), knobs.inputs
    for number, width in enumerate(knobs.widths):
        draft.linear(f"hidden.{number}", 1, inputs, width)
        inputs = width
    draft.linear("head", 1, inputs, knobs.num_classes)
    return draft.finish("mlp", SOURCE)


@lru_cache(maxsize=32)
def tiny_tensors_profile(knobs: TinyTensorsKnobs) -> Profile:
    """Return the profile of the deep, narrow net."""
    from orch.models.draft import Draft

    draft, inputs = Draft(), knobs.inputs
    for number in range(knobs.layers - 1):
        draft.linear(f"hidden.{number}", 1, inputs, knobs.width, bias=False)
        inputs = knobs.width
    draft.linear("head", 1, inputs, knobs.num_classes, bias=False)
    return draft.finish("tiny-tensors", SOURCE)


def resnet_digits_parts(knobs: ResNetDigitsKnobs) -> Parts:
    """Return the parts of the small residual net: stem, blocks, head."""
    return (("stem", "norm"), *((f"blocks.{number}",) for number in range(knobs.depth)), ("head",))


def mlp_parts(knobs: MlpKnobs) -> Parts:
    """Return the layers of the perceptron."""
    return (*((f"hidden.{number}",) for number in range(len(knobs.widths))), ("head",))


def tiny_tensors_parts(knobs: TinyTensorsKnobs) -> Parts:
    """Return the layers of the deep, narrow net."""
    return (*((f"hidden.{number}",) for number in range(knobs.layers - 1)), ("head",))


def _images(knobs: ResNetDigitsKnobs) -> Interface:
    return Interface(Image(knobs.channels, knobs.image_size, knobs.image_size), Classes(knobs.num_classes))


def _rows(knobs: MlpKnobs | TinyTensorsKnobs) -> Interface:
    return Interface(Flat(knobs.inputs), Classes(knobs.num_classes))


MODELS = (
    Model(
        "resnet-digits",
        "small",
        "small residual net for 8x8 digits: tens of tensors of mixed size",
        SOURCE,
        ResNetDigitsKnobs,
        resnet_digits_profile,
        _images,
        "orch.models.zoo.small:resnet_digits",
        parts=resnet_digits_parts,
    ),
    Model(
        "mlp",
        "small",
        "perceptron: few large tensors, little compute, so communication dominates",
        SOURCE,
        MlpKnobs,
        mlp_profile,
        _rows,
        "orch.models.zoo.small:mlp",
        parts=mlp_parts,
    ),
    Model(
        "tiny-tensors",
        "small",
        "deep and narrow: one tiny tensor a layer, so start-up dominates",
        SOURCE,
        TinyTensorsKnobs,
        tiny_tensors_profile,
        _rows,
        "orch.models.zoo.small:tiny_tensors",
        parts=tiny_tensors_parts,
    ),
)
