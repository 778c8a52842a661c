"""Flat buffers: alignment, packing, means, handing back, whatever the shapes and dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orch.plan import Buffer, Segment
from orch.runtime.buffers import FlatBuffer

CPU = torch.device("cpu")


def gradients(*sizes: int, dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    found = {}
    for number, size in enumerate(sizes):
        parameter = nn.Parameter(torch.zeros(size, dtype=dtype))
        parameter.grad = torch.arange(size, dtype=dtype) + 10 * number + 1
        found[f"t{number}"] = parameter
    return found


def layout(parameters: dict[str, nn.Parameter], dtype: str, pad_to: int = 1) -> Buffer:
    return Buffer("b", tuple(Segment(name, p.numel(), dtype, name) for name, p in parameters.items()), pad_to)


@pytest.mark.parametrize("sizes", [(1,), (3, 5), (7, 1, 2), (20000, 30000), (100000,)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_mean_is_packed_and_handed_back(sizes: tuple[int, ...], ranks: int) -> None:
    parameters = gradients(*sizes)
    expected = {name: parameter.grad.clone() / ranks for name, parameter in parameters.items()}
    buffer = FlatBuffer(layout(parameters, "fp32"), parameters, 0, ranks, CPU)
    buffer.pack(mean=True)
    buffer.hand_back()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name])
        assert parameter.grad.untyped_storage().data_ptr() == buffer.bytes.untyped_storage().data_ptr()


def test_another_dtype_on_the_wire_is_copied_back() -> None:
    parameters = gradients(4)
    buffer = FlatBuffer(layout(parameters, "bf16"), parameters, 0, 2, CPU)
    buffer.pack(mean=True)
    assert buffer.flat.dtype == torch.bfloat16
    assert buffer.flat.nbytes == 8
    buffer.hand_back()
    assert torch.equal(parameters["t0"].grad, torch.tensor([0.5, 1.0, 1.5, 2.0]))
    parameters["t0"].grad = None
    buffer.hand_back()
    assert parameters["t0"].grad.dtype == torch.float32


def test_a_gradient_in_another_memory_order_keeps_its_shape() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
    parameter.grad = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    expected = parameter.grad.clone()
    buffer = FlatBuffer(layout({"w": parameter}, "fp32"), {"w": parameter}, 0, 1, CPU)
    buffer.pack(mean=True)
    buffer.hand_back()
    assert torch.equal(parameter.grad, expected)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_padding_makes_equal_shards_and_is_no_gradient(ranks: int) -> None:
    parameters = gradients(7)
    buffer = FlatBuffer(layout(parameters, "fp32", pad_to=ranks), parameters, ranks - 1, ranks, CPU)
    assert buffer.flat.numel() % ranks == 0
    assert buffer.shard is not None
    assert buffer.shard.numel() * ranks == buffer.flat.numel()
    buffer.pack(mean=False)
    assert torch.equal(buffer.flat[7:], torch.zeros(buffer.flat.numel() - 7))


def test_mixed_dtypes_are_aligned_bytes() -> None:
    segments = (
        Segment("bits", 5, "uint8", "t0"),
        Segment("values", 3, "fp32", "t0"),
        Segment("places", 3, "int64", "t0"),
    )
    buffer = FlatBuffer(Buffer("b", segments), gradients(9), 1, 2, CPU)
    assert buffer.flat.dtype == torch.uint8
    buffer.views["values"].copy_(torch.tensor([1.0, 2.0, 3.0]))
    buffer.views["places"].copy_(torch.tensor([7, 8, 9]))
    buffer.receive()[0].copy_(buffer.bytes)
    first, second = buffer.parts("values")
    assert torch.equal(first, torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(second, torch.zeros(3))
    assert torch.equal(buffer.parts("places")[0], torch.tensor([7, 8, 9]))


def test_a_payload_beside_gradients_is_a_mean_too() -> None:
    parameters = gradients(2)
    segments = (Segment("t0", 2, "fp32", "t0"), Segment("t1.p", 2, "fp32", "t1"))
    buffer = FlatBuffer(Buffer("b", segments), parameters, 0, 4, CPU)
    buffer.views["t1.p"].fill_(8.0)
    buffer.pack(mean=True)
    assert torch.equal(buffer.flat, torch.tensor([0.25, 0.5, 2.0, 2.0]))
    buffer.hand_back()
    assert torch.equal(parameters["t0"].grad, torch.tensor([0.25, 0.5]))


def test_a_gradient_in_parts_comes_back_part_by_part() -> None:
    parameter = nn.Parameter(torch.zeros(3, 4))
    parameter.grad = torch.arange(12.0).view(4, 3).T  # not contiguous: its elements are those of its own order
    whole = parameter.grad.reshape(-1).clone()
    parts = [
        FlatBuffer(
            Buffer(f"b{begin}", (Segment(f"w@{begin}", numel, "fp32", "w", begin),)), {"w": parameter}, 0, 2, CPU
        )
        for begin, numel in ((0, 5), (5, 7))
    ]
    parts[0].pack(mean=True)
    assert torch.equal(parts[0].flat, whole[:5] / 2)
    parts[0].flat.mul_(10)
    parts[0].hand_back()
    parts[1].pack(mean=True)
    # The second part is still this rank's own, though the first has been reduced.
    assert torch.equal(parts[1].flat, whole[5:] / 2)
    parts[1].flat.mul_(10)
    parts[1].hand_back()
    assert parameter.grad.shape == (3, 4)
    assert torch.equal(parameter.grad.reshape(-1), whole * 5)
