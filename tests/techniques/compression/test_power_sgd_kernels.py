"""Factors: orthonormal, reproducible, and finite where a gradient is zero."""

import pytest
import torch

from techniques.compression.power_sgd_kernels import as_matrix, factor, orthonormal, product


@pytest.mark.parametrize("shape", [(7, 3), (3, 3), (5, 1)])
def test_a_basis_is_orthonormal_and_spans_the_columns(shape):
    columns = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    basis = orthonormal(columns)
    torch.testing.assert_close(basis.T @ basis, torch.eye(shape[1]))
    torch.testing.assert_close(basis @ (basis.T @ columns), columns)


@pytest.mark.parametrize("columns", [torch.zeros(4, 2), torch.ones(4, 2)])
def test_zero_and_dependent_columns_give_finite_bases(columns):
    basis = orthonormal(columns)
    assert basis.isfinite().all()
    torch.testing.assert_close(basis.T @ basis, torch.eye(2))


def test_equal_seeds_give_equal_factors():
    first, second = (factor(6, 2, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_a_matrix_has_the_first_dim_in_rows():
    gradient = torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last)
    assert as_matrix(gradient).tolist() == torch.arange(24.0).view(2, 12).tolist()
    assert product(torch.ones(2, 1), torch.tensor([[1.0], [2.0]], dtype=torch.bfloat16)).tolist() == [[1.0, 2.0]] * 2
