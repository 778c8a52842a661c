"""What a rank holds of a model that is shared out, and whose batch it reads."""

import pytest

from orch.models.catalogue import model
from orch.runtime.held import keep_own, own_parameters, reader, threads_of
from orch.workload import Layout


@pytest.mark.parametrize(("tensor", "experts", "slices"), [(1, 2, 2), (2, 4, 1), (2, 2, 2), (4, 1, 1)])
def test_parameters_are_those_of_the_local_profile(tensor: int, experts: int, slices: int) -> None:
    chosen = model("char-moe")
    knobs = chosen.knobs(num_layers=2, hidden=16, num_heads=4, seq_len=8, vocab=12)
    layout = Layout(4, experts, slices, tensor)
    local, groups = layout.local(chosen.profile(knobs)), layout.groups()
    for rank in range(4):
        built = chosen.build(knobs, 0)
        whole = {name: parameter.shape for name, parameter in built.named_parameters()}
        keep_own(built, rank, {name: group.block_of(rank) for name, group in groups.items()})
        found = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
        assert found == {tensor.name: tensor.shape for tensor in local.tensors}
        assert {name for name in found if found[name] != whole[name]} <= own_parameters(built, groups)


def test_those_who_share_samples_read_the_same_batch() -> None:
    groups = Layout(8, 2, 2, 4).groups()
    blocks = [{name: group.block_of(rank) for name, group in groups.items()} for rank in range(8)]
    assert [reader(rank, 8, blocks[rank]) for rank in range(8)] == [(0, 2)] * 4 + [(1, 2)] * 4
    assert reader(5, 8, {}) == (5, 8)
    assert [threads_of(name) for name in ("tensor", "experts", "world")] == [1, 1, 2]
