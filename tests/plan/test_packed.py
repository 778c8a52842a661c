"""Sizes of packed rows: as many numbers as ranks, however a crossing is cut."""

from orch.plan import Chunk, Rows, RowSizes, crossings
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import zipccl_rows


def test_a_chunk_and_a_turn_tell_as_many_numbers_as_the_whole() -> None:
    whole = RowSizes(Rows.buffer_of("sizes", 4, "int64"), "moe", "sizes_combine_backward", 10, 0, 10)
    chunk = whole.cut(2, 5, name="sizes.c1")
    assert (chunk.nbytes, chunk.buffer.name, chunk.chunk, chunk.of) == (32, "sizes.c1", Chunk(2, 5), "combine_backward")
    turn = whole.in_turn(1, 4, name="sizes.t1")
    assert (turn.nbytes, turn.chunk) == (32, Chunk(0, 10, 1, 4))


def test_a_turn_that_goes_nowhere_tells_nobody() -> None:
    model = mixture.layers(hidden=16)
    plain = mixture_training(model, Layout(4, 4), 1)
    plan = zipccl_rows.rewrite(plain, small.context(model, mixture.cluster(4)), zipccl_rows.Config())
    crossing = next(crossings(plan.steps[0]))
    turns = dict(zip([task.name for task in crossing.stages], crossing.in_turns(4, alone=True), strict=True))
    assert [task.name for task in turns["sizes.dispatch.0.moe"]] == [f"sizes.dispatch.0.moe.t{n}" for n in (1, 2, 3)]
    # What stays is packed and unpacked by its own rank.
    assert turns["unpack.dispatch.0.moe"][0].after == ("pack.dispatch.0.moe.t0", "counts.0.moe")
