"""Numbers as sign, mantissa and a three-bit code of the exponent; exponents outside a row's window of seven stand behind.

Q rows of M numbers, K = ceil(M / 8); W bytes of a row whose length is known: the window's first exponent, the bytes of signs and
mantissas, the codes, and where signs and mantissas fill no whole bytes three bits more of each. E exponents escape.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

# u* of a window of seven exponents over normal numbers: their upper end lies between 2.429 and 4.858 sigmas (derived).
EDGE = 2.429
WINDOW = 7
# E|x| = sigma sqrt(2 / pi) of normal numbers; squares would overflow.
OF_MEAN = math.sqrt(math.pi / 2)


class Float(NamedTuple):
    """How a dtype lies in memory: as integers, with so many bits of mantissa and of exponent."""

    dtype: torch.dtype
    integers: torch.dtype
    mantissa: int
    exponent: int

    @property
    def rest(self) -> int:
        """Bits that are sent as they are: sign and mantissa."""
        return self.mantissa + 1

    @property
    def whole(self) -> int:
        """Whole bytes of them."""
        return self.rest // 8

    def width(self, numbers: int) -> int:
        """Return W of rows of so many numbers."""
        return 1 + self.whole * numbers + 3 * -(-numbers // 8) * (2 if self.rest % 8 else 1)


FLOATS = {
    "fp32": Float(torch.float32, torch.int32, 23, 8),
    "bf16": Float(torch.bfloat16, torch.int16, 7, 8),
    "fp16": Float(torch.float16, torch.int16, 10, 5),
}


def encode(rows: Tensor, counts: list[int], dtype: str) -> tuple[Tensor, list[int]]:
    """Return `rows` [Q, M] of `dtype` as bytes [B, 1], and the bytes of each part of `counts` rows; a part that would get no
    smaller stands as it is.
    """
    if not rows.numel():
        return torch.empty(0, 1, dtype=torch.uint8, device=rows.device), [0] * len(counts)
    rows = rows.contiguous()
    known, escapes, behind = _coded(rows, FLOATS[dtype])
    ends = torch.split(behind, counts)
    raw = rows.view(torch.uint8)
    parts, begin, at = [], 0, 0
    for count, own in zip(counts, ends, strict=True):
        end, to = begin + count, at + int(own.sum())
        if count * known.shape[1] + to - at < count * raw.shape[1]:
            parts.append(torch.cat([known[begin:end].reshape(-1), escapes[at:to]]))
        else:
            parts.append(raw[begin:end].reshape(-1))
        begin, at = end, to
    sizes = [part.numel() for part in parts]
    return torch.cat(parts).unsqueeze(1), sizes


def decode(packed: Tensor, counts: list[int], sizes: list[int], hidden: int, dtype: str) -> Tensor:
    """Return rows [Q, M] of `dtype` from bytes [B, 1], of each part its rows and bytes."""
    form = FLOATS[dtype]
    width, raw = form.width(hidden), form.dtype.itemsize * hidden
    pieces = list(zip(torch.split(packed.view(-1), sizes), counts, strict=True))
    coded = [(piece, count) for piece, count in pieces if piece.numel() < count * raw]
    known = [piece[: count * width].view(count, width) for piece, count in coded]
    behind = [piece[count * width :] for piece, count in coded]
    empty = packed.new_empty(0, width)
    read = _read(torch.cat([empty, *known]), torch.cat([empty.view(-1), *behind]), hidden, form)
    done = iter(torch.split(read.view(form.dtype), [count for _, count in coded]))
    plain = [
        next(done) if piece.numel() < count * raw else piece.clone().view(form.dtype).view(count, hidden)
        for piece, count in pieces
    ]
    return torch.cat(plain) if plain else read.view(form.dtype)


def _coded(rows: Tensor, form: Float) -> tuple[Tensor, Tensor, Tensor]:
    """Return what is of known length [Q, W], the escaped exponents [E] row by row, and how many each row has [Q]."""
    bits = rows.view(form.integers).to(torch.int32)
    exponent = (bits >> form.mantissa) & ((1 << form.exponent) - 1)
    base = _base(rows, form).unsqueeze(1)
    code = exponent - (base - 1)
    code.masked_fill_((code < 1) | (code > WINDOW), 0)
    escaped = code == 0
    rest = (bits & ((1 << form.mantissa) - 1)) | (((bits >> (form.mantissa + form.exponent)) & 1) << form.mantissa)
    parts = [base.to(torch.uint8), _bytes(rest, form.whole), _threes(code)]
    if form.rest % 8:
        parts.append(_threes(rest >> (8 * form.whole)))
    return torch.cat(parts, 1), exponent[escaped].to(torch.uint8), escaped.sum(1)


def _read(known: Tensor, escapes: Tensor, hidden: int, form: Float) -> Tensor:
    """Return the integers [Q, M] that were coded."""
    first, second = 1 + form.whole * hidden, 3 * -(-hidden // 8)
    code = _of_threes(known[:, first : first + second], hidden)
    exponent = code + (known[:, :1].to(torch.int32) - 1)
    exponent[code == 0] = escapes.to(torch.int32)
    rest = _of_bytes(known[:, 1:first], hidden)
    if form.rest % 8:
        rest |= _of_threes(known[:, first + second :], hidden) << (8 * form.whole)
    sign = (rest >> form.mantissa) & 1
    mantissa = rest & ((1 << form.mantissa) - 1)
    whole = mantissa | (exponent << form.mantissa)
    return (whole | (sign << (form.mantissa + form.exponent))).to(form.integers)


def _base(rows: Tensor, form: Float) -> Tensor:
    """Return the first exponent [Q] of each row's window: by the sigma of its finite numbers, 0 for a row of zeros."""
    if not rows.shape[1]:
        return torch.zeros(rows.shape[0], dtype=torch.int32, device=rows.device)
    numbers = rows.float().abs().nan_to_num(0.0, 0.0, 0.0)
    sigma = numbers.mean(1) * (OF_MEAN * EDGE)
    bias = (1 << (form.exponent - 1)) - 1
    # frexp: sigma <= 2^power, so the window's upper end is there.
    power = torch.frexp(sigma.clamp(max=torch.finfo(torch.float32).max))[1]
    base = torch.where(sigma > 0, power + bias - WINDOW, torch.zeros_like(power))
    return base.clamp(0, (1 << form.exponent) - 1 - WINDOW).to(torch.int32)


def _bytes(numbers: Tensor, count: int) -> Tensor:
    """Return the lowest `count` bytes of numbers [Q, M], [Q, count M]."""
    if not numbers.numel():
        return torch.empty(numbers.shape[0], count * numbers.shape[1], dtype=torch.uint8, device=numbers.device)
    return numbers.contiguous().view(torch.uint8).view(*numbers.shape, 4)[:, :, :count].reshape(numbers.shape[0], -1)


def _of_bytes(known: Tensor, hidden: int) -> Tensor:
    """Return the numbers [Q, M] of which these are the lowest bytes."""
    if not known.numel():
        return torch.zeros(known.shape[0], hidden, dtype=torch.int32, device=known.device)
    each = known.reshape(known.shape[0], hidden, -1)
    return F.pad(each, (0, 4 - each.shape[2])).view(torch.int32).squeeze(2)


def _threes(numbers: Tensor) -> Tensor:
    """Return numbers of three bits [Q, M] as bytes [Q, 3K], eight numbers in three."""
    count = -(-numbers.shape[1] // 8)
    eights = F.pad(numbers, (0, 8 * count - numbers.shape[1])).view(numbers.shape[0], count, 8)
    # A sum over so short a dim takes several times as long as these.
    whole = eights.new_empty(eights.shape[:2]).copy_(eights[:, :, 0])
    for place in range(1, 8):
        whole |= eights[:, :, place] << (3 * place)
    return _bytes(whole, 3)


def _of_threes(known: Tensor, hidden: int) -> Tensor:
    """Return the numbers [Q, M] that stand eight in three bytes."""
    eights = _of_bytes(known, known.shape[1] // 3).unsqueeze(2)
    return ((eights >> _places(known)) & 7).flatten(1)[:, :hidden]


def _places(like: Tensor) -> Tensor:
    return torch.arange(0, 24, 3, dtype=torch.int32, device=like.device)
