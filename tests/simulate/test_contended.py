"""Kernels that compete for multiprocessors: the worked example, who waits for whom, and a closed form over random cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.cluster import Cluster, Sharing
from orch.plan import AllToAll, Compute, Crossing, Expert, Plan, Rows, Step, Task, crossings
from orch.simulate import makespan_s, simulate
from orch.simulate.variants import obstacle, step_times
from orch.testing import mixture
from techniques.moe.sm_moe import cut, launched


def crossing(chunks: int, expert_s: float) -> Crossing:
    """A crossing of `chunks` positions whose experts take `expert_s` for each."""
    rows = (Rows.buffer_of(f"{part}.m", chunks, "fp32") for part in ("dispatch", "combine"))
    out, back = (
        AllToAll(buffer, "m", part, chunks, 0, chunks)
        for buffer, part in zip(rows, ("dispatch", "combine"), strict=True)
    )
    expert = Expert("m", 0.0, 0.0, seconds=chunks * expert_s, positions=chunks, end=chunks)
    tasks = (
        Task("dispatch.m", out, "net.inter"),
        Task("expert.m", expert, after=("dispatch.m",)),
        Task("combine.m", back, "net.inter", ("expert.m",)),
    )
    (found,) = crossings(Step(tasks))
    return found


def where(exchange_s: float, *, units: int = 68, held: int = 8, interference: float = 1.0) -> Cluster:
    """A cluster on which every exchange takes `exchange_s`."""
    sharing = Sharing(communication_slowdown=interference, source="an example", units=units, held=held)
    return replace(mixture.cluster(4, alpha_s=exchange_s), sharing=sharing if units else None)


def planned(chunks: int, expert_s: float, launch: str, pieces: int = 1, channels: int = 0) -> Plan:
    whole = crossing(chunks, expert_s)
    return Plan.of("example", 4, launched(whole, cut(whole, chunks, pieces, channels), launch))


def test_the_worked_example() -> None:
    """S = 68, s_c = 8, t_d = 3, t_e = 4, r = 2 (the brief, section 5)."""
    spans = {span.task.name: span for span in simulate(planned(2, 4.0, "delayed"), where(3.0), iterations=1).spans()}
    ends = {name: round(span.end_s, 3) for name, span in spans.items()}
    assert ends == {
        "dispatch.m.c0": 3.0, "dispatch.m.c1": 6.0, "expert.m.c0": 7.353, "combine.m.c0": 10.353, "expert.m.c1": 11.706,
        "combine.m.c1": 14.706,
    }  # fmt: skip
    assert makespan_s(planned(2, 4.0, "oblivious"), where(3.0)) == pytest.approx(20.0)
    for launch in ("delayed", "oblivious"):
        # Nobody competes: the bound of pipelining.
        assert makespan_s(planned(2, 4.0, launch), where(3.0, units=0)) == pytest.approx(14.0)


def test_in_pieces_no_exchange_waits_longer_than_one_of_them() -> None:
    plan, cluster = planned(2, 4.0, "oblivious", pieces=4), where(3.0)
    spans = {span.task.name: span for span in simulate(plan, cluster, iterations=1).spans()}
    net = [task.name for task in plan.steps[0].stream("net.inter")]
    slower = 68 / 60
    for before, name in pairwise(net):
        ready = max([spans[before].end_s, *(spans[other].end_s for other in spans[name].task.after)])
        assert spans[name].start_s - ready <= 1.0 * slower + 1e-9
    assert 14.7 < makespan_s(plan, cluster) < 17.0


def closed_form(chunks: int, exchange_s: float, expert_s: float, share: float) -> float:
    """Seconds of a crossing whose exchanges are resident first: those after the first dispatch and before the last combine
    run beside experts.
    """
    beside = 2 * (chunks - 1) * exchange_s
    return max(2 * chunks * exchange_s, 2 * exchange_s + chunks * expert_s + share * beside)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.integers(1, 30))
def test_closed_forms(chunks: int, exchange_s: float, expert_s: float, held: int) -> None:
    cluster, share = where(exchange_s, held=held), held / 68
    found = makespan_s(planned(chunks, expert_s, "delayed"), cluster)
    assert found == pytest.approx(closed_form(chunks, exchange_s, expert_s, share))
    # The brief's form counts experts that end before the exchanges beside them: too short by less than the share squared.
    beside = min(2 * (chunks - 1) * exchange_s, chunks * expert_s)
    brief = max(2 * chunks * exchange_s, 2 * exchange_s + chunks * expert_s + share * beside)
    assert brief * (1 - 1e-9) <= found <= brief * (1 + share**2)
    serial = chunks * (2 * exchange_s + expert_s)
    assert makespan_s(planned(chunks, expert_s, "oblivious"), cluster) == pytest.approx(serial)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(1.0, 1.3))
def test_interference_costs_no_more_than_all_exchanges_slowed(
    chunks: int, exchange_s: float, expert_s: float, gamma: float
) -> None:
    found = makespan_s(planned(chunks, expert_s, "delayed"), where(exchange_s, interference=gamma))
    least = closed_form(chunks, exchange_s, expert_s, 8 / 68)
    assert least * (1 - 1e-9) <= found <= closed_form(chunks, gamma * exchange_s, expert_s, 8 / 68) * (1 + 1e-9)


def test_channels_are_held_in_place_of_what_the_cluster_says() -> None:
    cluster = where(3.0, held=34)
    free = replace(cluster, sharing=replace(cluster.sharing, held=17))
    found = makespan_s(planned(2, 4.0, "delayed", channels=17), cluster)
    assert found == makespan_s(planned(2, 4.0, "delayed"), free)
    assert found < makespan_s(planned(2, 4.0, "delayed"), cluster)


def test_on_half_the_channels_bytes_take_twice_as_long() -> None:
    cluster = replace(
        mixture.cluster(4, alpha_s=1.0, beta_s_per_byte=0.5), sharing=Sharing(source="", units=68, held=8)
    )
    op = AllToAll(Rows.buffer_of("rows", 4, "fp32"), "m", "dispatch")
    assert op.cost_s(cluster, cluster.world) == pytest.approx(1.0 + 16 * 0.5)
    for channels, seconds in ((4, 17.0), (8, 9.0), (16, 9.0)):
        assert replace(op, channels=channels).cost_s(cluster, cluster.world) == pytest.approx(seconds)


def test_the_next_step_waits_for_what_computes_alone() -> None:
    tasks = (
        *planned(2, 4.0, "delayed").steps[0],
        Task("end", Compute("m", 0.0, 0.0, seconds=1.0), after=("combine.m.c1",)),
    )
    plan, cluster = Plan.of("example", 4, tasks), where(3.0)
    # The first rows of the next step are ready when `end` is, but stand behind it.
    assert simulate(plan, cluster).step_time_s == pytest.approx(14.0 + 6 * 8 / 68 + 1.0)


def test_variants_are_refused() -> None:
    cluster = where(3.0)
    assert obstacle(cluster) == "the cluster's collectives hold multiprocessors of its devices"
    with pytest.raises(ValueError, match="hold multiprocessors"):
        step_times(planned(2, 4.0, "delayed"), cluster)
