"""Devices: the sum of computing and moving, and what happens where a rate was never described."""

import numpy as np
import pytest

from orch.cluster.basis import Basis
from orch.cluster.device import Device
from orch.errors import OrchError

GPU = Device("gpu", "example", {"fp32": 1e13}, 5e11, 16e9, Basis("fitted"), owner="example-4x8")


def test_computing_and_moving_add_up():
    """ResNet-50, batch 64, forward: 8.27 GFLOP a sample at 10 TFLOP/s, and 12 bytes an element at 500 GB/s."""
    assert GPU.compute_s(64 * 8.27e9, 12 * 64 * 1.0e6) == pytest.approx(0.052928 + 0.001536)


def test_arrays_broadcast():
    assert GPU.compute_s(np.array([0.0, 1e13]), np.array([[0.0], [5e11]])).tolist() == [[0.0, 1.0], [1.0, 2.0]]


def test_scaled_stretches_computing_and_moving():
    assert GPU.scaled(3.0).compute_s(1e13, 5e11) == pytest.approx(6.0)
    assert GPU.scaled(np.array([1.0, 2.0])).compute_s(1e13, 0.0).tolist() == [1.0, 2.0]


def test_band_comes_from_the_file_else_from_the_kind():
    assert GPU.relative_band() == 0.15
    assert Device("gpu", "x", band=0.02).relative_band() == 0.02


def test_a_missing_rate_is_named_with_the_way_out():
    with pytest.raises(OrchError) as caught:
        GPU.compute_s(1.0, 0.0, "bf16")
    assert str(caught.value) == (
        "cluster example-4x8: device.rate of bf16 is not described (it has fp32); "
        "add device.rate: {bf16: 10TFLOP/s} with its source [E302]"
    )


def test_a_missing_bandwidth_is_named_and_not_needed_for_computing():
    bare = Device("cpu", "x", {"fp32": 1e9}, owner="bare")
    assert bare.compute_s(2e9) == 2.0
    with pytest.raises(OrchError, match=r"cluster bare: device.memory_bandwidth is not described; add .* \[E302\]"):
        bare.compute_s(0.0, 1.0)
    with pytest.raises(OrchError, match="it has none"):
        Device("cpu", "x").compute_s(1.0)
