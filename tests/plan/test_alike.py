"""Operations that are alike cost the same, and others do not."""

from orch.plan import AllReduce, AllToAll, Buffer, Expert, Segment
from orch.plan.alike import alike
from orch.testing import mixture


def test_operations_alike_cost_the_same():
    where = mixture.cluster(4, alpha_s=1e-3, beta_s_per_byte=1e-6, rate_flops=1e9, launch_s=1e-5)
    whole = AllToAll(AllToAll.buffer_of("rows", 12, "fp32"), "moe", "dispatch", 6, 0, 6)
    expert = Expert("moe", 1e6, 0.0, "fp32", None, 6, 0, 6)
    for op, cut in (
        (whole, lambda a, b: whole.cut(a, b, name="c")),
        (expert, lambda a, b: expert.cut(a, b, last=True)),
    ):
        first, second, longer = cut(0, 2), cut(2, 4), cut(2, 5)
        assert alike(first) == alike(second) != alike(longer)
        assert (
            first.cost_s(where, where.world) == second.cost_s(where, where.world) != longer.cost_s(where, where.world)
        )
        assert alike(op) is not None
    assert alike(AllReduce(Buffer("b", (Segment("t", 3, "fp32", "t"),)))) is None
