"""A timeline as text: what stands in which column."""

from __future__ import annotations

from orch.experiment.draw import draw, legend
from orch.simulate import simulate
from orch.testing.small import cluster, profile
from orch.workload import data_parallel


def test_columns_show_what_took_most_of_their_slice() -> None:
    # Two layers: forward 1 s each, backward 2 s each; each gradient (4 bytes) takes 2 s, the second after the first.
    model = profile([(1,), (1,)], backward_s=[2.0, 2.0], forward_s=[1.0, 1.0])
    where = cluster(2, alpha_s=2.0)
    timeline = simulate(data_parallel(model, 2, 1, update_s=0.0), where)
    assert timeline.step_time_s == 8.0
    rows = draw(timeline, width=8)
    assert rows[0] == "compute   |FFBBBB..|"
    assert rows[2].split() == ["0", "8", "s", "(one", "step)"]


def test_buckets_are_numbered() -> None:
    model = profile([(1,), (1,)], backward_s=[2.0, 2.0], forward_s=[1.0, 1.0])
    plan = data_parallel(model, 2, 1, update_s=0.0)
    plan = plan.each_step(lambda step: step.fuse([[send] for send in step.waves()[0]]))
    assert draw(simulate(plan, cluster(2, alpha_s=2.0)), width=8)[1] == "net.inter |....0011|"


def test_nothing_to_send_is_one_row() -> None:
    model = profile([(1,)], backward_s=[2.0], forward_s=[1.0])
    rows = draw(simulate(data_parallel(model, 1, 1, update_s=0.0), cluster(1)), width=6)
    assert rows[:-1] == ["compute |FFBBBB|"]


def test_a_legend_explains_what_is_drawn() -> None:
    plain = legend(["compute   |FFBBU.|", "net.inter |..00..|", "           0 21.1 ms (A step)"])
    assert plain.startswith("F forward")
    assert "\n" not in plain
    assert [line[0] for line in legend(["compute |FAEB|", "net |.X..|"]).splitlines()] == ["F", "E", "A"]
