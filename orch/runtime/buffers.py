"""Flat buffers: what a collective hands over, with views for gradients and payloads.

Letters: P ranks of the group, N items of a buffer (padding included), B its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from orch.plan import ITEM_SIZE, Buffer

DTYPES = {
    "fp64": torch.float64, "int64": torch.int64, "fp32": torch.float32, "int32": torch.int32, "fp16": torch.float16,
    "bf16": torch.bfloat16, "int8": torch.int8, "uint8": torch.uint8,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Above this mean size each gradient is scaled while it is copied; below, one call copies them all and one scales the
# bucket, which is in cache by then. Processor time, 2 cores: 60 gradients of 1 KiB 62 us against 352 us apart, 10 of 256 KiB 428 us
# against 374 us, 4 of 4 MiB 2.5 ms against 1.6 ms.
SCALE_WHILE_COPYING_BYTES = 128 * 1024


class FlatBuffer:
    """The memory of one plan buffer on one rank.

    `flat` [N] of the segments' dtype, or of bytes [B] where dtypes differ; `shard` [N / P] is this rank's part of it;
    `gathered` [P, B] bytes receives an all-gather. Segments stand by descending item size, so that each is aligned;
    gradients are packed scaled by 1/P, which makes the sum of a collective a mean, and are handed back as views (copied
    where dtypes differ).
    """

    def __init__(
        self, layout: Buffer, parameters: Mapping[str, Tensor], place: int, ranks: int, device: torch.device
    ) -> None:
        self.layout = layout
        self.ranks = ranks
        self._scale = 1.0 / ranks
        segments = sorted(layout.segments, key=lambda segment: -ITEM_SIZE[segment.dtype])
        raw = torch.zeros(layout.nbytes, dtype=torch.uint8, device=device)
        dtypes = {segment.dtype for segment in segments}
        self.flat = raw.view(DTYPES[dtypes.pop()]) if len(dtypes) == 1 else raw
        self.bytes = raw
        self._spans: dict[str, tuple[int, int, torch.dtype]] = {}
        self.views: dict[str, Tensor] = {}
        begin = 0
        for segment in segments:
            end = begin + segment.nbytes
            self._spans[segment.name] = (begin, end, DTYPES[segment.dtype])
            self.views[segment.name] = raw[begin:end].view(DTYPES[segment.dtype])
            begin = end
        length = self.flat.numel() // ranks
        self.shard = self.flat[place * length : (place + 1) * length] if length * ranks == self.flat.numel() else None
        self._gathered: Tensor | None = None
        self._exchanged: Tensor | None = None
        names = [segment.name for segment in layout.segments if segment.is_gradient and segment.begin is None]
        # Parts of gradients: they are copied in and back, for no buffer holds the whole.
        self._parts = [
            (parameters[segment.tensor], self.views[segment.name], segment.begin)
            for segment in layout.segments
            if segment.begin is not None
        ]
        self._parameters = [parameters[name] for name in names]
        self._targets = [self.views[name].view(parameters[name].shape) for name in names]
        self._only_gradients = len(names) + len(self._parts) == len(segments)
        small = sum(target.nbytes for target in self._targets) < SCALE_WHILE_COPYING_BYTES * len(names)
        self._together = (small and len(names) > 1) or not self._only_gradients

    def pack(self, *, mean: bool) -> None:
        """Copy the local gradients in; with `mean`, scale the whole buffer by 1/P. Call it without autograd recording."""
        scale = self._scale if mean else 1.0
        together = self._together or scale == 1.0
        for parameter, target, begin in self._parts:
            part = parameter.grad.reshape(-1)[begin : begin + target.numel()]  # type: ignore[union-attr]
            target.copy_(part) if together else torch.mul(part, scale, out=target)
        if together:
            if self._targets:
                torch._foreach_copy_(self._targets, [parameter.grad for parameter in self._parameters])  # type: ignore[misc]
            if scale != 1.0:
                self.flat.mul_(scale)
        else:
            for parameter, target in zip(self._parameters, self._targets, strict=True):
                torch.mul(parameter.grad, scale, out=target)  # type: ignore[arg-type]

    def hand_back(self) -> None:
        """Make the reduced values the parameters' gradients: views of this buffer, or copies where dtypes differ, and of
        parts.
        """
        for parameter, target, begin in self._parts:
            assert parameter.grad is not None
            if not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()
            parameter.grad.view(-1)[begin : begin + target.numel()].copy_(target)
        for parameter, target in zip(self._parameters, self._targets, strict=True):
            if target.dtype == parameter.dtype:
                parameter.grad = target
            elif parameter.grad is not None:
                parameter.grad.copy_(target)
            else:
                parameter.grad = target.to(parameter.dtype)

    def receive(self) -> Tensor:
        """Return the buffer [P, B] that an all-gather of whole buffers fills."""
        if self._gathered is None:
            self._gathered = torch.zeros(self.ranks, self.bytes.numel(), dtype=torch.uint8, device=self.bytes.device)
        return self._gathered

    def exchange(self) -> Tensor:
        """Return a second buffer [N], in which a reduce-scatter collects what the other ranks send."""
        if self._exchanged is None:
            self._exchanged = torch.zeros_like(self.flat)
        return self._exchanged

    def parts(self, name: str) -> list[Tensor]:
        """Return segment `name` as each rank sent it: flat views [numel], in rank order."""
        begin, end, dtype = self._spans[name]
        return [row[begin:end].view(dtype) for row in self.receive()]
