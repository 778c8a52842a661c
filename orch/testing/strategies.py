"""Hypothesis strategies for planners, passes and simulators (the `dev` extra brings hypothesis)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from hypothesis import strategies as st

from orch.models.profile import Profile
from orch.plan import COMPUTE, NET, AllReduce, Buffer, Compute, Group, Operation, Plan, Segment, Step, Task
from orch.testing import small


class Gradients(NamedTuple):
    """What a planner of buckets sees: ready times [s, ascending], payloads [bytes], start-up [s] and seconds a byte."""

    ready_s: list[float]
    nbytes: list[float]
    alpha_s: float
    beta_s_per_byte: float

    def cost_s(self, nbytes: float) -> float:
        """Return the seconds of one all-reduce; arrays broadcast."""
        return (nbytes > 0) * (self.alpha_s + self.beta_s_per_byte * nbytes)

    def ends_at(self, ends: Sequence[int]) -> float:
        """Return when the last of the buckets that end before `ends` has been sent: the rule, written out."""
        free, begin = 0.0, 0
        for end in ends:
            free = max(free, self.ready_s[end - 1]) + float(self.cost_s(sum(self.nbytes[begin:end])))
            begin = end
        return free


# Whole numbers, so that sums are exact and ties are real ties.
_WHOLE = st.integers(0, 20).map(float)
_LAG = st.sampled_from([0, 0, 0, 1])


@st.composite
def gradients(draw: st.DrawFn, max_tensors: int = 8) -> Gradients:
    """Return a few gradients in ready order, with whole times and sizes; equal times and large start-ups included."""
    count = draw(st.integers(1, max_tensors))
    gaps = draw(st.lists(_WHOLE, min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(1, 30).map(float), min_size=count, max_size=count))
    return Gradients(list(accumulate(gaps)), sizes, draw(_WHOLE), draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])))


@st.composite
def profiles(draw: st.DrawFn, max_layers: int = 5) -> Profile:
    """Return a chain of layers with one to three tensors each, and measured times."""
    shape = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
    layers = draw(st.lists(st.lists(shape, min_size=1, max_size=3), min_size=1, max_size=max_layers))
    count = len(layers)
    times = st.lists(st.integers(0, 9).map(float), min_size=count, max_size=count)
    return small.profile([tuple(layer) for layer in layers], draw(times), draw(times))


@st.composite
def plans(draw: st.DrawFn, world_size: int = 4, max_tasks: int = 8) -> Plan:
    """Return a random plan of one or two steps: several streams, a role of a few ranks, groups in blocks, lag, and
    edges.

    It trains nothing; it is there for executors. Computing takes whole seconds, collectives carry whole words.
    """
    half = world_size // 2
    roles = {"all": range(world_size), "few": range(half)}
    blocks = (range(half), range(half, world_size))
    groups = {"world": Group("world", (range(world_size),)), "halves": Group("halves", blocks)}
    period = draw(st.integers(1, 2))
    names = [[f"s{step}t{number}" for number in range(draw(st.integers(1, max_tasks)))] for step in range(period)]
    steps = []
    for step in range(period):
        tasks = [draw(_tasks(name, names[step][:number], names[step - 1])) for number, name in enumerate(names[step])]
        steps.append(Step(tuple(tasks)))
    return Plan("random", world_size, tuple(steps), roles, groups)


@st.composite
def _tasks(draw: st.DrawFn, name: str, before: Sequence[str], last: Sequence[str]) -> Task:
    stream = draw(st.sampled_from([COMPUTE, "copy.h2d", NET, "net.intra"]))
    after = tuple(draw(st.lists(st.sampled_from(before), max_size=2, unique=True))) if before else ()
    previous = tuple(draw(st.lists(st.sampled_from(last), max_size=1)))
    op: Operation
    if stream.startswith("net."):
        op = AllReduce(Buffer(name, (Segment(name, draw(st.integers(1, 9)), "fp32", name),)))
        return Task(name, op, stream, after, previous, "all", draw(st.sampled_from(["world", "halves"])), draw(_LAG))
    op = Compute(name, 0.0, 0.0, seconds=draw(_WHOLE))
    return Task(name, op, stream, after, previous, draw(st.sampled_from(["all", "all", "few"])), "world", draw(_LAG))
