"""A recipe's faults in a run: when each is due, who carries it out, and that none of them is forgotten.

Workers kill themselves, in the middle of the work of the step. The driver, which holds the cables and the CPUs of emulated
nodes, does the rest between two steps: a block is cut in parts where something begins or ends. What lasts is imposed
for each part anew and taken back after it, for other stacks train in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

from orch.errors import LostWorkerError, OrchError, RunError
from orch.experiment.fault_costs import node_under
from orch.gang import Gang, emulate_net
from orch.gang.shaping import Shaping
from orch.plan.fault import Fault, due, holding
from orch.recipe import Recipe

FIRED = "faults.json"
_Key = tuple[int, str, int]
_Seen = TypeVar("_Seen")
Deaths = Mapping[int, Sequence[int]]


def refuse(recipe: Recipe, on: str) -> None:
    """Raise OrchError (E665), at its line, for a fault that workers reached by `on` cannot have; E731 for one that this
    machine cannot give to its emulated nodes.
    """
    for fault in recipe.faults:
        where, hint = recipe.fault_place(fault), "use --on emulate, or remove that fault"
        if fault.kills and on == "inline":
            text = f"faults: {fault}: it would kill this process"
            raise OrchError(text, code="E665", where=where, hint="use --on processes")
        if fault.kills or on == "emulate":
            continue
        what = {
            "cut-link": "the links of {} workers cannot be cut",
            "slow-node": "the CPU of {} workers cannot be limited",
        }
        text = what.get(fault.kind, "the links of {} workers cannot be changed").format(on)
        raise OrchError(f"faults: {fault}: {text}", code="E665", where=where, hint=hint)
    if on == "emulate":
        _refuse_here(recipe)


def _refuse_here(recipe: Recipe) -> None:
    """Raise OrchError (E731) at the line of a fault that this machine cannot give."""
    for kind, check in (("drop-rate", emulate_net.refuse_loss), ("slow-node", emulate_net.refuse_slow)):
        fault = next((fault for fault in recipe.faults if fault.kind == kind), None)
        if fault is not None:
            try:
                check()
            except OrchError as error:
                raise error.at(recipe.fault_place(fault)) from error


class Injection:
    """The `faults` of one run. `fired` holds (number of the fault, stack, seed) for each that has happened."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.faults = recipe.faults
        self._stacks = tuple(recipe.stacks)
        self._seeds = recipe.seeds
        self._per_node = recipe.cluster.devices_per_node
        self._restoring: list[threading.Timer] = []
        self.fired: set[_Key] = set()

    def through(
        self,
        gang: Gang,
        key: tuple[str, int],
        steps: range,
        run: Callable[[int, Deaths], _Seen],
        told: Callable[[Fault], None],
    ) -> list[_Seen]:
        """Have `steps` of a training run in parts, `run(number, deaths)` each, with the faults that fall into them.

        `told` hears of each that the driver carries out, when it begins. Raises what `run` raises.
        """
        faults, lasting = self.due(*key, steps.start, len(steps)), holding(self.faults, key[0], steps.start, len(steps))
        cuts, deaths = [fault for fault in faults if not fault.kills], self.deaths(faults)
        marks = {cut.step for cut in cuts} | {mark for fault in lasting for mark in (fault.step, fault.until)}
        inside = {mark for mark in marks if mark is not None and mark in steps}
        parts = []
        try:
            for begin, end in pairwise(sorted({steps.start, *inside, steps.stop})):
                now = holding(lasting, key[0], begin)
                with self._imposed(gang.shaping, now):
                    for fault in [*now, *(cut for cut in cuts if cut.step == begin)]:
                        if self._key(fault, *key) not in self.fired:
                            if not fault.lasting:
                                self.cut(gang, fault, *key)
                            self.fired.add(self._key(fault, *key))
                            told(fault)
                    parts.append(run(end - begin, deaths))
        except LostWorkerError as error:
            self.lost(error, faults, *key)
            raise
        return parts

    @contextmanager
    def _imposed(self, shaping: Shaping | None, faults: Sequence[Fault]) -> Iterator[None]:
        """Let lasting `faults` hold within a block."""
        try:
            self._impose(shaping, faults, faults)
            yield
        except BaseException:
            with suppress(RunError):  # the nodes may be gone, and what happened is what counts
                self._impose(shaping, faults, ())
            raise
        self._impose(shaping, faults, ())

    def _impose(self, shaping: Shaping | None, touched: Sequence[Fault], now: Sequence[Fault]) -> None:
        """Set what `touched` are about as faults `now` leave it: without any, as the cluster file says."""
        for fault in touched:
            assert shaping is not None
            usual = self._recipe.cluster.node(fault.at)
            node = node_under(usual, [other for other in now if other.at == fault.at])
            if fault.kind == "slow-node":
                shaping.slow(fault.at, usual.speed / node.speed)
            else:
                shaping.set_link(fault.at, node)

    def due(self, stack: str, seed: int, first: int, steps: int) -> list[Fault]:
        """Return what is still to happen in these steps."""
        found = due(self.faults, stack, first, steps)
        return [fault for fault in found if self._key(fault, stack, seed) not in self.fired]

    def deaths(self, faults: Iterable[Fault]) -> dict[int, tuple[int, ...]]:
        """Return, by step, the ranks that die at its beginning; of several steps the first, as nobody outlives it."""
        kills = [fault for fault in faults if fault.kills]
        return {fault.step: tuple(fault.ranks(self._per_node)) for fault in kills[:1]}

    def cut(self, gang: Gang, fault: Fault, stack: str, seed: int) -> None:
        """Cut a link now and have it restored when its time is over."""
        shaping = gang.shaping
        assert shaping is not None
        shaping.cut(fault.at)
        timer = threading.Timer(fault.lasts_s, shaping.restore, [fault.at])
        timer.daemon = True
        timer.start()
        self._restoring.append(timer)
        self.fired.add(self._key(fault, stack, seed))

    def lost(self, error: LostWorkerError, faults: Sequence[Fault], stack: str, seed: int) -> None:
        """Take note of the fault that these workers died of, if it was one of `faults`."""
        kill = next((fault for fault in faults if fault.kills), None)
        if kill is not None and set(error.ranks) & set(kill.ranks(self._per_node)):
            self.fired.add(self._key(kill, stack, seed))

    def wait_until_restored(self) -> None:
        """Return when no link is cut any more."""
        while self._restoring:
            self._restoring.pop().join()

    def refuse_unfired(self) -> None:
        """Raise RunError (E666) for a fault that never happened: the run has shown nothing about it."""
        for number, fault in enumerate(self.faults):
            for stack in self._stacks if fault.stack is None else (fault.stack,):
                for seed in self._seeds:
                    if (number, stack, seed) not in self.fired:
                        raise RunError(f"faults: {fault} never happened in the training of stack {stack}", code="E666")

    def _key(self, fault: Fault, stack: str, seed: int) -> _Key:
        return self.faults.index(fault), stack, seed


def fired_from(data: Mapping[str, Any]) -> set[_Key]:
    """Return `Injection.fired` as a run keeps it."""
    return {(int(number), str(stack), int(seed)) for number, stack, seed in data.get("fired", ())}
