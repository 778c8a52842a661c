"""Residuals: sums in place, for gradients of any memory order."""

import torch

from techniques.compression.error_feedback_kernels import compensate, residual


def test_the_residual_becomes_the_sum_and_so_does_the_gradient():
    gradient = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    kept = residual(gradient)
    compensate(gradient, kept, 1.0)
    kept -= torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    gradient = torch.ones(2, 2)
    compensate(gradient, kept, 0.5)
    assert gradient.tolist() == [[1.0, 2.0], [2.5, 3.0]]
    assert torch.equal(kept, gradient)


def test_memory_order_does_not_matter():
    gradient = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    kept = residual(gradient)
    compensate(gradient, kept, 1.0)
    assert kept.is_contiguous()
    assert kept.flatten().tolist() == list(range(24))
