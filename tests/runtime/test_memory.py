"""Measured memory: what is held counts, what was there before does not, and the parameters of the model do."""

import pytest
import torch
from torch import nn

from orch.runtime import memory
from orch.runtime.memory import Rise

MIB = 1 << 20
MODEL = nn.Linear(256, 256, bias=False)


def test_what_is_held_at_once_is_counted_with_the_parameters() -> None:
    rise = Rise(torch.device("cpu"))
    small = rise.peak_bytes(MODEL)
    if small is None:
        pytest.skip("this kernel tells no largest resident size")
    held = torch.ones(64 * MIB // 4)
    del held
    large = rise.peak_bytes(MODEL)
    assert large is not None
    assert small >= 256 * 256 * 4
    assert 48 * MIB < large - small < 96 * MIB


def test_where_the_kernel_says_nothing_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "no" / "such" / "file")
    assert Rise(torch.device("cpu")).peak_bytes(MODEL) is None
