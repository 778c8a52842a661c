"""Tensor functions of half precision. Shapes: n elements."""

from __future__ import annotations

from torch import Tensor


def widened(mean: Tensor, like: Tensor) -> Tensor:
    """Return the mean [n] in the shape and format of `like`."""
    return mean.to(like.dtype).view_as(like)
