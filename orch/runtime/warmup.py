"""What a run measures with its own workers before and between its blocks: layer times, the runtime's own work, links.

Every function takes the gang's worker first; all ranks are called at once, so that contention is in the figures.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch

from orch.models.batches import fetched
from orch.plan import COMPUTE, Plan
from orch.plan.operations import own_work
from orch.runtime.base import GLOO_THREADS, Setup
from orch.runtime.engine import PlanEngine
from orch.runtime.held import keep_own, reader
from orch.runtime.links import LinkTimes, measure_links
from orch.runtime.observe import Observation, observe
from orch.runtime.optimizers import optimizer_factory
from orch.runtime.session import (
    Place,
    Subject,
    batches_of,
    engine_of,
    groups_of,
    load_data,
    loss_function,
    meet,
    synchronise,
)

WARM_STEPS = 2
# As long as a collective that a step waits for; what a step costs after it hardly depends on it (0.5 to 30 ms).
PAUSE_S = 0.01
# Of each plan, round by round, the seconds of a step.
Paces = tuple[tuple[float, ...], ...]
# A rank's machine, its cores, and how many of them its threads fill.
Where = tuple[str, tuple[int, ...], int]


class Turn(NamedTuple):
    """When a rank began and ended a step, in seconds of a clock that all ranks of a machine share, and the seconds of it
    that its thread ran.
    """

    begin_s: float
    end_s: float
    ran_s: float


class OwnWork(NamedTuple):
    """What techniques computed themselves on a rank: the mean seconds of each task; and of a whole step the seconds on the
    compute stream, and those that the thread ran, which others on its core do not stretch.
    """

    seconds: dict[str, float]
    busy_s: float
    ran_s: float


def where(worker: Place) -> Where:
    """Return this rank's machine, its cores, and how many of them its threads can fill; 0 on a GPU."""
    count = os.cpu_count() or 1
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(count)
    return platform.node(), tuple(cores), 0 if worker.device.startswith("cuda") else worker.threads


def watch(worker: Place, subject: Subject, seed: int, steps: int = 8) -> Observation:
    """Observe the model train alone on this rank; all ranks are called at once, so that contention is in the figures."""
    loaded = load_data(subject)
    loss_of = loss_function(worker, subject, loaded)
    model = subject.model.build(seed).to(worker.device)
    factory = optimizer_factory(subject.optimizer)
    warmup = 2
    ready = iter(fetched(batches_of(worker, subject, seed, loaded), 1 + warmup + 2 * steps))
    with _uncollected():
        return observe(
            model,
            lambda forward: loss_of(forward, next(ready)),
            factory,
            name=subject.model.name,
            steps=steps,
            warmup=warmup,
            paced=steps,
            pause=partial(_pause, worker),
        )


def pace(worker: Place, subject: Subject, seed: int, plans: Sequence[Plan | None], rounds: int, steps: int) -> Paces:
    """Return the seconds that this thread runs in a step under each of `plans`, which are plans for one rank: nobody is
    sent anything. None: the model alone, without an engine. Rounds of `steps` steps of each, by turns; all ranks are
    called at once. On a GPU, which the thread only feeds, the seconds of a clock.
    """
    clock = time.perf_counter if worker.device.startswith("cuda") else time.thread_time
    loaded = load_data(subject)
    loss_of = loss_function(worker, subject, loaded)
    setup = Setup(optimizer_factory(subject.optimizer), seed=seed, schedule=subject.learning_rate, record_steps=4)
    group = worker.process_group("alone", [worker.rank], threads=GLOO_THREADS)
    trains = []
    for plan in plans:
        model = subject.model.build(seed).to(worker.device)
        trains.append(
            _bare(model, setup) if plan is None else PlanEngine(plan, model, setup, {"world": group}).train_step
        )
    batch = next(batches_of(worker, subject, seed, loaded))
    seconds: list[list[float]] = [[] for _ in plans]
    with _uncollected():
        for number in range(rounds + 1):
            meet(worker)
            for place, train in enumerate(trains):
                begin = clock()
                for _ in range(steps):
                    train(lambda forward: loss_of(forward, batch))
                synchronise(worker)
                if number:  # the first round warms up
                    seconds[place].append((clock() - begin) / steps)
    return tuple(tuple(found) for found in seconds)


def speed(worker: Place, subject: Subject, seed: int, steps: int) -> tuple[Turn, ...]:
    """Return how long `steps` plain steps of the model take as the machine is now. All ranks are called at once. The model
    is kept, so that a call costs its steps and little more.
    """
    key = ("speed", str(subject.model), str(subject.data), subject.batch, subject.precision, str(subject.optimizer))
    if key not in worker.cache:
        loaded = load_data(subject)
        setup = Setup(optimizer_factory(subject.optimizer), seed=seed, schedule=subject.learning_rate)
        train = _bare(subject.model.build(seed).to(worker.device), setup)
        loss_of, batch = loss_function(worker, subject, loaded), next(batches_of(worker, subject, seed, loaded))
        worker.cache[key] = partial(train, lambda forward: loss_of(forward, batch))
        worker.cache[key]()
    step = worker.cache[key]
    turns = []
    gc.disable()  # collecting first, as elsewhere, would take longer than the steps, before every block
    for _ in range(steps):
        _pause(worker)
        begin, own = time.monotonic(), time.thread_time()
        step()
        ran_s = time.thread_time() - own
        turns.append(Turn(begin, time.monotonic(), ran_s))
    gc.enable()
    return tuple(turns)


def operations(worker: Place, subject: Subject, seed: int, plan: Plan, steps: int) -> OwnWork:
    """Return how long what techniques compute themselves (encode, decode ...) takes under `plan`: one for all ranks, or for
    one, and then each runs it by itself. All ranks are called at once.
    """
    loaded = load_data(subject)
    loss_of = loss_function(worker, subject, loaded)
    together = plan.world_size > 1
    setup = Setup(
        optimizer_factory(subject.optimizer),
        rank=worker.rank if together else 0,
        seed=seed,
        schedule=subject.learning_rate,
    )
    model = subject.model.build(seed).to(worker.device)
    blocks: Mapping[str, Sequence[int]] = {}
    if together:
        groups, blocks = groups_of(worker, plan)
        keep_own(model, worker.rank, blocks)
    else:
        groups = {"world": worker.process_group("alone", [worker.rank], threads=GLOO_THREADS)}
    engine = engine_of(plan)(plan, model, setup, groups)
    whose = reader(worker.rank, worker.world_size, blocks)
    batch = next(batches_of(worker, subject, seed, loaded, whose))
    ran_s = 0.0
    with _uncollected():
        for number in range(WARM_STEPS + steps):
            if number == WARM_STEPS:
                engine.record.clear()
            _pause(worker)
            begin = time.thread_time()
            engine.train_step(lambda forward: loss_of(forward, batch))
            ran_s += time.thread_time() - begin if number >= WARM_STEPS else 0.0
    found: dict[str, list[float]] = {}
    busy_s = 0.0
    timeline = engine.record.timeline()
    for span in timeline.spans():
        if span.task.stream == COMPUTE:
            busy_s += span.end_s - span.start_s
            if own_work(span.task.op) is not None:
                found.setdefault(span.task.name, []).append(span.end_s - span.start_s)
    engine.flush()
    engine.settle()
    engine.close()
    return OwnWork({name: fmean(seconds) for name, seconds in found.items()}, busy_s / len(timeline), ran_s / steps)


def _bare(model: torch.nn.Module, setup: Setup) -> Callable[[Callable[[Any], torch.Tensor]], None]:
    """Return what trains `model` one step without an engine."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    update = setup.optimizer(trained)

    def step(loss_of: Callable[[Any], torch.Tensor]) -> None:
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        update.step()
        for parameter in trained:
            parameter.grad = None

    return step


def measure(
    worker: Place,
    most_bytes: int = 1 << 24,
    budget_s: float = 4.0,
    longest_s: float = math.inf,
    rows: bool = False,
) -> LinkTimes:
    """Measure this gang's collectives, alone and beside compute; all ranks are called at once. `rows`: see
    `measure_links`.
    """
    if worker.world_size == 1:
        return LinkTimes(1)
    group = worker.process_group("world", threads=GLOO_THREADS)
    meet(worker)
    with _uncollected():
        return measure_links(
            group,
            most_bytes=most_bytes,
            budget_s=budget_s,
            longest_s=longest_s,
            rows=rows,
            device=torch.device(worker.device),
        )


def _pause(worker: Place) -> None:
    """Return when all ranks are here, and some time after, as if each had waited for a collective: what the processor had
    at hand is gone then. And from a pause all go on at once; from a meeting one after another, and the first have the
    machine to themselves. A rank that is alone waits for nobody.
    """
    if worker.world_size > 1:
        meet(worker)
        time.sleep(PAUSE_S)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python's garbage collector out of what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
