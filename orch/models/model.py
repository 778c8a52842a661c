"""A model as the catalogue knows it: its knobs, its profile without torch, and where its builder stands.

Knobs are pydantic models with a doc, a range and a default each; pages, schemas and checks derive from them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orch.errors import OrchError, Position, did_you_mean
from orch.models.kinds import Interface

if TYPE_CHECKING:
    from torch import nn

    from orch.models.profile import Profile


K = TypeVar("K", bound="ModelKnobs")


class ModelKnobs(BaseModel):
    """Base of the knobs of a model or a data set: frozen, no unknown keys, whole numbers are whole."""

    # Built when first used: a command names one model, and building the validators of all costs tens of milliseconds.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, defer_build=True)


def count(default: int, doc: str, *, least: int = 1, most: int | None = None) -> Any:
    """A whole number; annotate it `int`."""
    return Field(default, description=doc, ge=least, le=most, strict=True)


Size = Annotated[int, Field(ge=1, strict=True)]


def sizes(default: tuple[int, ...], doc: str, *, most: int) -> Any:
    """Between one and `most` whole numbers above 0; annotate it `tuple[Size, ...]`."""
    return Field(default, description=doc, min_length=1, max_length=most)


def share(default: float, doc: str) -> Any:
    """A number in [0, 1); annotate it `float`."""
    return Field(default, description=doc, ge=0, lt=1)


def choice(default: str, doc: str) -> Any:
    """One of a few names; annotate it `Literal[...]`."""
    return Field(default, description=doc)


def validated(knobs: type[K], arguments: Mapping[str, Any], prefix: str, where: Position | None = None) -> K:
    """Return `arguments` as knobs. Raises OrchError (E423): which key below `prefix`, what is wrong, what there is."""
    try:
        return knobs.model_validate(dict(arguments))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        key = f"{prefix}.{path}" if path else prefix
        if first["type"] == "extra_forbidden":
            known = ", ".join(knobs.model_fields) or "none"
            hint = did_you_mean(path, knobs.model_fields) or f"its keys: {known}"
            raise OrchError(f"unknown key '{key}'", code="E423", where=where, hint=hint) from None
        message = first["msg"].removeprefix("Value error, ")
        found = "" if first["type"] == "value_error" else f"; found {first['input']!r}"
        raise OrchError(f"{key}: {message[0].lower()}{message[1:]}{found}", code="E423", where=where) from None


# Of each part of a model, the names with which its modules begin.
Parts = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Model:
    """A model by name. `builder` is `module:function` with (knobs) -> torch.nn.Module; empty for a model that has only
    a profile, which can be planned and simulated but not run. `mixed`: it has mixtures of experts; `shared`:
    ranks may share its attention when it runs. `parts`: the modules of each part, where it is parts one after another.
    """

    name: str
    family: str
    summary: str
    source: str
    knobs: type[ModelKnobs]
    profile: Callable[[Any], Profile]
    interface: Callable[[Any], Interface]
    builder: str = ""
    mixed: bool = False
    shared: bool = False
    parts: Callable[[Any], Parts] | None = None

    @property
    def runs(self) -> bool:
        """Whether the model can be built, not only planned."""
        return bool(self.builder)

    @cached_property
    def parameters(self) -> int:
        """Parameters at the default knobs."""
        return self.profile(self.knobs()).numel

    def build(self, knobs: ModelKnobs, seed: int) -> nn.Module:
        """Build the model with weights drawn from `seed`; loads torch. Equal seeds give bit-equal weights.

        Raises OrchError (E421) for a model that has only a profile, or whose library is not installed.
        """
        if not self.runs:
            message = f"model {self.name} has only a profile: it can be planned and simulated, not run"
            raise OrchError(message, code="E421", hint="models that run: orch list models")
        try:
            import torch

            module, _, function = self.builder.partition(":")
            build = getattr(importlib.import_module(module), function)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                built: nn.Module = build(knobs)
        except ModuleNotFoundError as error:
            message = f"model {self.name} needs {error.name}, which is not installed"
            raise OrchError(message, code="E421", hint="pip install 'orch[run]'") from None
        return built
