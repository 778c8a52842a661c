"""Selecting, taking away and summing: on shapes and memory orders that real gradients have."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from techniques.compression.error_feedback_kernels import residual
from techniques.compression.top_k_kernels import mean, select, subtract


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=30), st.data())
def test_the_kept_are_the_largest_with_ties_to_the_left(values, data):
    k = data.draw(st.integers(1, len(values)))
    indices, kept = select(torch.tensor(values), k)
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))
    assert indices.tolist() == sorted(order[:k])
    assert kept.tolist() == [values[place] for place in sorted(order[:k])]


def test_what_was_sent_is_taken_away_in_logical_order():
    gradient = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    kept = residual(gradient)
    kept.copy_(gradient)
    indices, values = select(gradient.flatten(), 3)
    subtract(kept, indices, values)
    assert kept.flatten().tolist() == [*range(21), 0.0, 0.0, 0.0]


def test_rounding_of_the_wire_stays_in_the_residual():
    gradient = torch.tensor([1.0, 1.0 + 2**-10])
    indices, values = select(gradient, 1)
    kept = gradient.clone()
    subtract(kept, indices, values.to(torch.bfloat16))
    assert kept.tolist() == [1.0, 2**-10]


def test_half_precision_is_summed_in_full():
    values = [torch.full((1,), 256.0, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16)]
    assert mean([torch.zeros(1, dtype=torch.int32)] * 2, values, 1).tolist() == [128.5]
