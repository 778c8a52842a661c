"""The base of every part of a recipe, and the small types that its parts share.

Modules of pydantic models do without `from __future__ import annotations`: pydantic would compile each annotation's text.
A section that is a default is made by `model_construct`, which takes defaults as they are and builds no validator.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _name(value: str) -> str:
    if not value.strip() or not value.isprintable() or len(value) > 100 or value[0] in ".-" or set(value) & set("/\\"):
        raise ValueError(
            "must be printable text of at most 100 characters, without a slash and not beginning with . or -"
        )
    return value


class Section(BaseModel):
    """Base of every part of a recipe: frozen, no unknown keys, no silent conversion, finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class NearNameError(ValueError):
    """A refused name with the one that was probably meant."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


Count = Annotated[int, Field(ge=1)]

Name = Annotated[str, AfterValidator(_name)]
"""A name that becomes a folder or a file: of an experiment, a stack."""
