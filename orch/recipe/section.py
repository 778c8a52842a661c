"""The base of every part of a recipe, and the small types that its parts share.

Modules of pydantic models do without `from __future__ import annotations`: pydantic would compile each annotation's text.
A section that is a default is made by `model_construct`, which takes defaults as they are and builds no validator.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every part of a recipe: frozen, no unknown keys, no silent conversion, finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class NearNameError(ValueError):
    """A refused name with the one that was probably meant."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


Count = Annotated[int, Field(ge=1)]
