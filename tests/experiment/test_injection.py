"""Faults of a recipe happen, once in each training, in reality and in the forecast; one that did not is an error."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from orch.cluster.node import Node
from orch.errors import LostWorkerError, OrchError, RunError
from orch.experiment import invoke
from orch.experiment.injection import Injection, fired_from, refuse
from orch.experiment.invoke import Invocation
from orch.gang import emulate_net
from orch.gang.shaping import Shaping
from orch.recipe import load
from orch.track import indexer
from tests.experiment.conftest import ONE as PER_NODE
from tests.experiment.conftest import PAIR, TINY, Remembers

ONE = (
    "stacks={plain: [wfbp], dear: [dear]}",
    "when={}",
    "seeds=[0]",
    "target=null",
    "measure={blocks: 2, steps: 3, warmup: 1}",
)
TWO_NODES = ("cluster.nodes=2", "cluster.links.inter={alpha: 400us, bandwidth: 200Mbit, per: node, source: a test}")


def test_killed_ranks_and_nodes_cost_no_result(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(indexer, "available", lambda: False)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    prints = []
    for faults in ("[]", "[{kill_rank: {rank: 1, step: 2}}, {kill_node: {node: 0, step: 5, stack: dear}}]"):
        show = Remembers()
        asked = Invocation(str(path), (PAIR, *ONE, f"faults={faults}"), on="processes", runs=tmp_path / "runs")
        found = invoke.invoke(asked, show)
        run = max((tmp_path / "runs" / "tiny").iterdir())
        assert found is not None
        prints.append([(run / "stacks" / name / "parameters.json").read_text() for name in ("plain", "dear")])
        assert {stack["speedup"]["n"] for stack in found["stacks"].values()} == {2}
    assert prints[0] == prints[1]
    assert sum("making the gang anew" in stage for stage in show.stages) == 3
    assert sum("died in step 2" in stage for stage in show.stages) >= 2
    assert len(json.loads((run / "faults.json").read_text())["fired"]) == 3


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("[{kill_rank: {rank: 2, step: 1}}]", "there is no rank 2; there are 2"),
        ("[{kill_node: {node: 1, step: 1}}]", "there is no node 1; there are 1"),
        ("[{kill_rank: {rank: 0, step: 7}}]", "the training of stack plain ends before step 7; it has steps 0 to 6"),
        ("[{kill_rank: {rank: 0, step: 1, stack: plane}}]", "'plane' is no stack of this recipe; did you mean plain?"),
        ("[{kill_rank: {rank: 0, step: 1}, kill_node: {node: 0, step: 1}}]", "must hold exactly one of"),
        ("[{kill_rank: {rank: 0, step: 1}}, {kill_rank: {rank: 0, step: 1}}]", "rank 0 is killed at step 1, twice"),
        ("[{cut_link: {node: 0, step: 1, lasts: 3}}]", "lasts"),
        ("[{slow_node: {node: 0, by: 1, step: 1}}]", "faults.0.slow_node.by must be above 1; it is 1"),
        ("[{slow_node: {node: 0, by: 2, step: 3, until: 3}}]", "is over before it begins: until 3 is not above step 3"),
        (
            "[{slow_node: {node: 0, by: 2, step: 3, until: 8}}]",
            "in steps 3 to 7: the training of stack plain ends before",
        ),
        (
            "[{slow_node: {node: 0, by: 2, step: 1}}, {slow_node: {node: 0, by: 3, step: 4}}]",
            "let one end before the other",
        ),
        ("[{drop_rate: {node: 0, share: 1%, step: 1}}]", "a cluster of one node has no such link"),
        ("[{link_rate: {node: 0, step: 1}}]", "must hold bandwidth, or egress, ingress or both"),
        ("[{link_rate: {node: 0, bandwidth: 8, step: 1}}]", "faults.0.link_rate.bandwidth 8 is not a rate"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused_at_its_line(tiny, faults: str, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        tiny(*ONE, f"faults={faults}")
    assert message in str(caught.value)
    assert str(caught.value).startswith("override ")


@pytest.mark.parametrize(
    ("fault", "on", "message"),
    [
        ("cut_link: {node: 0, step: 2, lasts: 3s}", "processes", "the links of processes workers cannot be cut"),
        ("slow_node: {node: 0, by: 2, step: 2}", "local", "the CPU of local workers cannot be limited"),
        (
            "link_rate: {node: 1, bandwidth: 1Mbit, step: 2}",
            "torchrun",
            "the links of torchrun workers cannot be changed",
        ),
        ("drop_rate: {node: 1, share: 1%, step: 2}", "head:6379", "the links of head:6379 workers cannot be changed"),
        ("kill_rank: {rank: 1, step: 2}", "inline", "it would kill this process"),
    ],
)
def test_exactly_the_fault_that_workers_cannot_have_is_refused_at_its_line(tmp_path, fault, on, message) -> None:
    path = tmp_path / "tiny.yaml"
    faults = (
        f"faults:\n  - kill_rank: {{rank: 0, step: 1}}\n  - {fault}\n" if on != "inline" else f"faults:\n  - {fault}\n"
    )
    path.write_text(TINY + faults, encoding="utf-8")
    recipe = load(path, [PER_NODE, *TWO_NODES])
    with pytest.raises(OrchError, match=message) as caught:
        refuse(recipe, on)
    line = TINY.count("\n") + faults.count("\n")
    assert (caught.value.code, caught.value.exit_code) == ("E665", 2)
    assert str(caught.value).startswith(f"{path}:{line}:5: faults: ")
    refuse(load(path, [PER_NODE, *TWO_NODES, "faults=[]"]), on)


def test_a_kernel_that_loses_no_packets_is_refused_before_anything_is_made(tiny, monkeypatch) -> None:
    def no(*_: object) -> None:
        raise OrchError("--on emulate cannot give a link loss: this kernel has no netem", code="E731")

    monkeypatch.setattr(emulate_net, "_refuse_discipline", no)
    recipe = tiny(*ONE, *TWO_NODES, "faults=[{drop_rate: {node: 1, share: 1%, step: 2}}]", workers=1)
    with pytest.raises(OrchError, match=r"^override \d: faults=.*cannot give a link loss: .* \[E731\]"):
        refuse(recipe, "emulate")
    refuse(tiny(*ONE, *TWO_NODES, "faults=[{link_rate: {node: 1, egress: 1Mbit, step: 2}}]", workers=1), "emulate")


class _Records(Shaping):
    """Handles that keep what they were told."""

    told: ClassVar[list[tuple[Any, ...]]] = []

    def slow(self, node: int, factor: float) -> None:
        self.told.append(("slow", node, factor))

    def set_link(self, number: int, node: Node) -> None:
        self.told.append(("link", number, node.egress_bytes_per_s, node.loss))

    def cut(self, node: int) -> None:
        self.told.append(("cut", node))

    def restore(self, node: int) -> None:
        """Do nothing: when it happens is the timer's business."""


def test_what_lasts_holds_in_its_steps_alone_and_is_taken_back_whatever_happens(tiny) -> None:
    faults = (
        "faults=[{slow_node: {node: 1, by: 4, step: 2, until: 4}}, {link_rate: {node: 0, egress: 8Mbit, step: 3}}, "
        "{cut_link: {node: 1, step: 3, lasts: 1ms, stack: plain}}, {kill_rank: {rank: 1, step: 6, stack: dear}}]"
    )
    injection = Injection(tiny(*ONE, *TWO_NODES, faults, workers=1))
    gang: Any = SimpleNamespace(shaping=_Records("orch-000000"))
    notes: list[str] = []

    def run(number: int, deaths: Any) -> int:
        _Records.told.append(("run", number, dict(deaths)))
        if deaths:
            lost = LostWorkerError("rank 1 died")
            lost.ranks = (1,)
            raise lost
        return number

    def through(stack: str, steps: range) -> list[tuple[Any, ...]]:
        _Records.told.clear()
        injection.through(gang, (stack, 0), steps, run, lambda fault: notes.append(str(fault)))
        return list(_Records.told)

    usual, held = ("link", 0, 25e6, 0.0), ("link", 0, 1e6, 0.0)
    assert through("plain", range(0, 2)) == [("run", 2, {})]
    assert through("plain", range(2, 7)) == [
        ("slow", 1, 4.0), ("run", 1, {}), ("slow", 1, 1.0),
        ("slow", 1, 4.0), held, ("cut", 1), ("run", 1, {}), ("slow", 1, 1.0), usual,
        held, ("run", 3, {}), usual,
    ]  # fmt: skip
    assert notes == [str(fault) for fault in (*injection.faults[:3],)]
    with pytest.raises(LostWorkerError):
        through("dear", range(4, 7))
    assert _Records.told == [held, ("run", 3, {6: (1,)}), usual]
    injection.wait_until_restored()
    with pytest.raises(
        RunError, match=r"node 1 is slower by 4 in steps 2 to 3 never happened in the training of stack dear"
    ):
        injection.refuse_unfired()


def test_a_cut_ends_by_itself_and_a_fault_that_never_came_is_an_error(tiny) -> None:
    injection = Injection(
        tiny(*ONE, "faults=[{cut_link: {node: 0, step: 2, lasts: 10ms}}, {kill_rank: {rank: 1, step: 3}}]")
    )
    restored = threading.Event()
    done: list[int] = []
    shaping = SimpleNamespace(cut=done.append, restore=lambda node: restored.set())
    cut, kill = injection.due("plain", 0, 0, 7)
    injection.cut(SimpleNamespace(shaping=shaping), cut, "plain", 0)  # type: ignore[arg-type]
    injection.wait_until_restored()
    assert restored.is_set()
    assert done == [0]
    assert injection.due("plain", 0, 0, 7) == [kill]
    assert injection.deaths([cut, kill]) == {3: (1,)}
    other = LostWorkerError("rank 0 died")
    other.ranks = (0,)
    injection.lost(other, [kill], "plain", 0)  # another death than the one that was ordered
    assert injection.due("plain", 0, 0, 7) == [kill]
    injection.fired.add((0, "dear", 0))
    with pytest.raises(
        RunError, match=r"rank 1 is killed at step 3 never happened in the training of stack plain \[E666\]"
    ):
        injection.refuse_unfired()
    assert fired_from({"fired": [list(key) for key in injection.fired]}) == injection.fired
