"""Workers that are lost cost no result: the gang is made anew and ends with the parameters of an unbroken run."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orch.errors import LostWorkerError, OrchError
from orch.experiment.execute import Execution
from orch.experiment.recovery import Recovery, smaller
from orch.gang import make_gang
from orch.runtime import session
from orch.track.directory import Facts
from orch.track.tracker import Tracker
from tests.experiment import saboteurs
from tests.experiment.conftest import Remembers

STACKS = "stacks={ddp: [torch-ddp], dear: [dear], acp: [mg-wfbp, acp-sgd], topk: [top-k]}"
LINK = "cluster.links.inter={alpha: 400us, bandwidth: 200Mbit, per: node, source: a test}"
SETTINGS = (STACKS, "when={}", "baseline=ddp", "seeds=[0]", "measure={blocks: 3, steps: 2, warmup: 1}", "target=null")


def pid(worker: Any) -> int:
    return os.getpid()


class _Mortal(saboteurs.Around):
    """A gang that loses a rank while it trains a block: which one and when is drawn, so many times in all."""

    def __init__(self, gang: Any, deaths: list[tuple[int, int]], calls: list[int]) -> None:
        super().__init__(gang)
        self._deaths, self._calls = deaths, calls

    def call(self, function: Any, *args: Any, **named: Any) -> list[Any]:
        if function is session.run_block:
            self._calls[0] += 1
            if self._deaths and self._calls[0] >= self._deaths[0][0]:
                os.kill(self._gang.call(pid)[self._deaths.pop(0)[1]], signal.SIGKILL)
        result: list[Any] = self._gang.call(function, *args, **named)
        return result


def run(
    recipe: Any, root: Path, deaths: list[tuple[int, int]], retries: int = 2
) -> tuple[dict[str, Any], Any, Remembers]:
    """Run `recipe` through `deaths`, each (call of run_block, rank); return the parameters' prints by stack."""
    show, calls = Remembers(), [0]
    facts = Facts(recipe.name, "measured", tuple(recipe.stacks), seeds=recipe.seeds)

    def make() -> Any:
        return gangs.enter_context(make_gang("processes", 2))

    with Tracker(root, index=False).run(facts, recipe.resolved()) as log, ExitStack() as gangs:
        execution = Execution(recipe, _Mortal(make(), deaths, calls), log, show)
        anew = Recovery(lambda: _Entered(_Mortal(make(), deaths, calls)), gangs, retries, show)
        outcome = anew.through(execution)
        log.finish({})
        assert log.path is not None
        prints = {
            name: json.loads((log.path / "stacks" / name / "parameters.json").read_text()) for name in recipe.stacks
        }
        return prints, outcome, show


class _Entered:
    """What a with statement enters: the wrapped gang, which its maker closes."""

    def __init__(self, gang: Any) -> None:
        self._gang = gang

    def __enter__(self) -> Any:
        return self._gang

    def __exit__(self, *failure: object) -> None:
        return None


@pytest.fixture(scope="module")
def unbroken(tiny, tmp_path_factory) -> dict[str, Any]:
    return run(tiny(*SETTINGS), tmp_path_factory.mktemp("unbroken"), [])[0]


@pytest.mark.parametrize("checkpoint", ["", "train.checkpoint={every: 2}"])
def test_a_run_through_deaths_ends_with_the_same_parameters(tiny, tmp_path, unbroken, checkpoint: str) -> None:
    draw = random.Random(checkpoint)
    deaths = sorted((draw.randint(2, 16), draw.randrange(2)) for _ in range(2))
    recipe = tiny(*SETTINGS, *filter(None, [checkpoint]))
    prints, outcome, show = run(recipe, tmp_path, deaths)
    assert deaths == []
    assert prints == unbroken
    assert {len(trained.block_times_s) for trained in outcome.trained} == {3}
    assert {len(trained.losses) for trained in outcome.trained} == {recipe.measure.total}
    assert sum("went on with new workers after a loss" in note for note in outcome.notes) == 2
    assert not any("does not repeat itself" in note for note in outcome.notes)
    assert checkpoint or any("again, which were lost" in stage for stage in show.stages)


def test_a_worker_that_dies_again_and_again_ends_the_run(tiny, tmp_path) -> None:
    with pytest.raises(LostWorkerError, match=r"^stack ddp: rank 1 of 2 died.*signal 9") as caught:
        run(tiny(*SETTINGS), tmp_path, [(1, 1)] * 9, retries=1)
    assert caught.value.__notes__[-1] == "given up: 2 losses without a block finished between them"
    assert caught.value.exit_code == 3


def test_no_retries_is_the_first_loss(tiny, tmp_path) -> None:
    with pytest.raises(LostWorkerError, match=r"^stack ddp: rank 0 of 2 died"):
        run(tiny(*SETTINGS), tmp_path, [(1, 0)], retries=0)


GLOBAL = (
    "train={global_batch: 24, optimizer: {sgd: {lr: 0.05}}}",
    "cluster.nodes=4",
    LINK,
    *SETTINGS[1:],
    "stacks={ddp: [wfbp]}",
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("recover.min_nodes=5",), "recover.min_nodes 5 is more than the 4 that the cluster has"),
        (("train={batch_per_worker: 6, optimizer: {sgd: {lr: 0.05}}}",), "but stack ddp has a batch a worker"),
        (("stacks={ddp: [wfbp], topk: [top-k]}",), "but stack topk keeps on each rank what it has not sent yet"),
        (("cluster.unequal={1: {bandwidth: 1Mbit}}",), "and nodes that differ"),
    ],
)
def test_fewer_nodes_that_would_train_something_else_are_refused(tiny, overrides, message: str) -> None:
    mine = {override.partition("=")[0] for override in overrides}
    usual = [override for override in (*GLOBAL, "recover.min_nodes=2") if override.partition("=")[0] not in mine]
    with pytest.raises(OrchError, match=message) as caught:
        tiny(*usual, *overrides, workers=1)
    assert caught.value.code == "E246"


def test_the_most_nodes_that_share_the_batch_come_first(tiny) -> None:
    recipe = tiny(*GLOBAL, "recover.min_nodes=1", workers=1)
    found = smaller(recipe, lambda one: one)  # type: ignore[arg-type, return-value]
    assert [one.cluster.nodes for one, _ in found] == [3, 2, 1]
    assert [one.batch_per_worker("ddp") for one, _ in found] == [8, 12, 24]
    assert [make() for _, make in found] == [one for one, _ in found]
    odd = tiny(*GLOBAL, "recover.min_nodes=1", "train.global_batch=16", workers=1)
    assert [one.cluster.nodes for one, _ in smaller(odd, lambda one: one)] == [2, 1]  # type: ignore[arg-type, return-value]
    assert smaller(tiny(*GLOBAL, workers=1), lambda one: one) == []  # type: ignore[arg-type, return-value]


def test_a_gang_that_cannot_be_made_as_large_is_made_smaller_where_that_is_allowed(tiny) -> None:
    recipe = tiny(*GLOBAL, "recover.min_nodes=2", workers=1)
    moved: list[Any] = []

    def none(*_: object) -> Any:
        raise OrchError("4 workers want 4 CPUs; the cluster has 2 on 2 nodes", code="E712")

    def two(one: Any) -> Any:
        return nullcontext(one.cluster.nodes) if one.cluster.nodes == 2 else none()

    def lost() -> Any:
        if not moved:
            raise LostWorkerError("rank 3 of 4 died")
        return "outcome"

    execution: Any = SimpleNamespace(
        all=lost, steps_done=0, mend=list, note=list, outcome="begun", shrink_to=lambda *args: moved.append(args)
    )
    show = Remembers()
    with ExitStack() as gangs:
        assert Recovery(none, gangs, 1, show, smaller(recipe, two)).through(execution) == "outcome"
    ((fewer, gang),) = moved
    assert (fewer.cluster.nodes, fewer.cluster.world_size, gang) == (2, 2, 2)
    assert [stage for stage in show.stages if "trying" in stage] == [
        f"4 workers want 4 CPUs; the cluster has 2 on 2 nodes; trying {number} nodes" for number in (3, 2)
    ]
    moved.clear()
    with ExitStack() as gangs, pytest.raises(OrchError, match="4 workers want 4 CPUs"):
        Recovery(none, gangs, 1, show).through(execution)
