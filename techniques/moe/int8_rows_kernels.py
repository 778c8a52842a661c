"""Eight bits a number between the smallest and the largest of a row. Q rows of M numbers."""

import torch
from torch import Tensor


def encode(rows: Tensor, *, down: bool = False) -> Tensor:
    """Return `rows` [Q, M] as bytes [Q, M + 8]; each number off by at most 1/510 of its row's range, `down`: 1/255."""
    rows = rows.float()
    if not rows.numel():
        return torch.empty(rows.shape[0], rows.shape[1] + 8, dtype=torch.uint8, device=rows.device)
    least, most = rows.aminmax(dim=1, keepdim=True)
    size = most - least
    # A row of one number only has no range: whatever stands there, its numbers are the least one.
    scaled = (rows - least) / torch.where(size > 0, size, torch.ones_like(size)) * 255.0
    numbers = (scaled if down else scaled.round()).clamp(0, 255).to(torch.uint8)
    return torch.cat([numbers, least.contiguous().view(torch.uint8), size.contiguous().view(torch.uint8)], 1)


def decode(packed: Tensor) -> Tensor:
    """Return bytes [Q, M + 8] as rows [Q, M], fp32."""
    numbers = packed[:, :-8].float()
    least, size = (packed[:, a:b].flatten().clone().view(torch.float32).unsqueeze(1) for a, b in ((-8, -4), (-4, None)))
    return numbers / 255.0 * size + least
