"""Rebuild the tables under `orch/models/profiles` from the libraries that define the models.

    python tools/make_profiles.py            # all whose library is installed; --check compares instead of writing
    python tools/make_profiles.py vgg16

Only nets whose code is not ours and not transformers' have tables; the others are counted from their layers. Models
are built on the meta device, so nothing is computed. The K80 trace of GoogLeNet was measured by others and has
no builder.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from orch.models.profile import Profile
from orch.models.tables import PROFILES, TABLE_IMAGE_SIZE, load, save
from orch.models.zoo.trace import trace

BATCH = 2  # batch normalisation needs more than one value a channel


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one table is made: a builder, the library it comes from, the size of its square images."""

    title: str
    library: str
    build: Callable[[], nn.Module]
    image_size: int = TABLE_IMAGE_SIZE


def _torchvision(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision  # type: ignore[import-untyped, import-not-found, unused-ignore]

        return getattr(torchvision.models, name)(**arguments)  # type: ignore[no-any-return]

    return build


def _inception_v4() -> nn.Module:
    import timm  # type: ignore[import-untyped, import-not-found, unused-ignore]

    return timm.create_model("inception_v4")  # type: ignore[no-any-return]


RECIPES = {
    "densenet161": Recipe("DenseNet-161, 1000 classes", "torchvision", _torchvision("densenet161")),
    "densenet201": Recipe("DenseNet-201, 1000 classes", "torchvision", _torchvision("densenet201")),
    "googlenet": Recipe(
        "GoogLeNet with batch normalisation and both auxiliary heads, 1000 classes (papers' Caffe one: googlenet-k80)",
        "torchvision",
        _torchvision("googlenet", init_weights=False, aux_logits=True),
    ),
    "vgg16": Recipe("VGG-16, 1000 classes", "torchvision", _torchvision("vgg16", init_weights=False)),
    "vgg19": Recipe("VGG-19, 1000 classes", "torchvision", _torchvision("vgg19", init_weights=False)),
    "inception-v4": Recipe(
        "Inception-v4, 1000 classes, at the size of the DeAR benchmark (its own is 299)", "timm", _inception_v4
    ),
    "inception-v4-299": Recipe("Inception-v4, 1000 classes, at its own size", "timm", _inception_v4, image_size=299),
}


def make(name: str) -> tuple[Profile, nn.Module]:
    """Return the profile of a table's model, and the model, on the meta device.

    Raises ModuleNotFoundError when the library that defines the model is not installed.
    """
    recipe = RECIPES[name]
    with torch.device("meta"):
        model = recipe.build().train()
    return _at(model, name, recipe, recipe.image_size), model


def growing(name: str, profile: Profile, model: nn.Module) -> set[str]:
    """Return the names of the modules that do more on a larger image."""
    larger = _at(model, name, RECIPES[name], 2 * RECIPES[name].image_size)
    return {module.name for module, more in zip(profile.modules, larger.modules, strict=True) if more != module}


def _at(model: nn.Module, name: str, recipe: Recipe, size: int) -> Profile:
    version = importlib.metadata.version(recipe.library)
    source = (
        f"derived from {recipe.library} {version}: one forward and backward pass on the meta device, images "
        f"3x{size}x{size}; 2 FLOP a multiply-add, 8 an output element of a normalisation; ready: the order observed in "
        "that backward pass"
    )
    return trace(
        model,
        lambda built: _loss(built(torch.empty(BATCH, 3, size, size, device="meta"))),
        batch=BATCH,
        name=name,
        source=source,
    )


def _loss(output: Any) -> torch.Tensor:
    """Return a scalar that every head of the model reaches."""
    if isinstance(output, torch.Tensor):
        return output.sum()
    heads = [getattr(output, head, None) for head in ("logits", "aux_logits1", "aux_logits2")]
    return torch.stack([head.sum() for head in heads if head is not None]).sum()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the tables; returns 1 when a checked table differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--check", action="store_true", help="compare with the kept tables, write nothing")
    parser.add_argument("--into", type=Path, default=PROFILES, help="the folder of the tables")
    options = parser.parse_args(arguments)
    different = False
    for name in options.names or RECIPES:
        try:
            profile, model = make(name)
        except (ModuleNotFoundError, importlib.metadata.PackageNotFoundError) as error:
            print(f"{name}: left as it is ({error})")
            continue
        if options.check:
            kept = load(options.into / name)
            same = (kept.modules, kept.tensors, kept.ready_order) == (
                profile.modules,
                profile.tensors,
                profile.ready_order,
            )
            different |= not same
            print(f"{name}: {'equal' if same else 'DIFFERENT'}")
        else:
            save(profile, options.into / name, per_pixel=growing(name, profile, model), title=RECIPES[name].title)
            print(f"{name}: {len(profile.modules)} modules, {len(profile.tensors)} tensors, {profile.numel} parameters")
    return int(different)


if __name__ == "__main__":
    sys.exit(main())
