"""A recipe's faults in a run: when each is due, who carries it out, and that none of them is forgotten.

Workers kill themselves, in the middle of the work of the step; a link is cut by the driver, which holds the cables of
emulated nodes, between two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orch.errors import LostWorkerError, OrchError, RunError
from orch.experiment.predict import Forecast
from orch.gang import Gang
from orch.plan.fault import Fault, due
from orch.recipe import Recipe

FIRED = "faults.json"
_Key = tuple[int, str, int]


class Injection:
    """The faults of one run. `fired` holds (number of the fault, stack, seed) for each that has happened."""

    def __init__(self, recipe: Recipe) -> None:
        self._faults = recipe.faults
        self._stacks = tuple(recipe.stacks)
        self._seeds = recipe.seeds
        self._per_node = recipe.cluster.devices_per_node
        self._restoring: list[threading.Timer] = []
        self.fired: set[_Key] = set()

    def refuse(self, gang: Gang) -> None:
        """Raise OrchError (E665) for a fault that this gang cannot have."""
        for fault in self._faults:
            if fault.kind == "cut-link" and gang.shaping is None:
                raise OrchError(f"faults: {fault}: the links of {gang.kind} workers cannot be cut", code="E665",
                                hint="use --on emulate, or remove that fault")  # fmt: skip
            if fault.kills and gang.kind == "inline":
                raise OrchError(f"faults: {fault}: it would kill this process", code="E665", hint="use --on processes")

    def due(self, stack: str, seed: int, first: int, steps: int) -> list[Fault]:
        """Return what is still to happen in these steps."""
        found = due(self._faults, stack, first, steps)
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
        for number, fault in enumerate(self._faults):
            for stack in self._stacks if fault.stack is None else (fault.stack,):
                for seed in self._seeds:
                    if (number, stack, seed) not in self.fired:
                        raise RunError(f"faults: {fault} never happened in the training of stack {stack}", code="E666")

    def _key(self, fault: Fault, stack: str, seed: int) -> _Key:
        return self._faults.index(fault), stack, seed


def predicted(recipe: Recipe, forecast: Forecast) -> list[dict[str, Any]]:
    """Return what each fault is predicted to cost in each training, beside the time to make new workers."""
    costs: list[dict[str, Any]] = []
    for fault in recipe.faults:
        for name in recipe.stacks if fault.stack is None else (fault.stack,):
            again = _lost_steps(recipe, name, fault) if fault.kills else 0
            costs.append(
                {
                    "fault": str(fault),
                    "stack": name,
                    "steps_again": again,
                    "extra_s": again * forecast.stacks[name].step_time_s.median + fault.lasts_s,
                }
            )
    return costs


def _lost_steps(recipe: Recipe, stack: str, fault: Fault) -> int:
    """Return the steps that are trained twice when `fault` strikes: those after the checkpoint before it."""
    setting, measure = recipe.stacks[stack].train.checkpoint, recipe.measure
    if setting is None or setting.every is None:
        return fault.step
    at = kept = 0
    while at <= fault.step:
        if at - kept >= setting.every:
            kept = at
        at += measure.steps if at else measure.warmup or measure.steps
    return fault.step - kept


def fired_from(data: Mapping[str, Any]) -> set[_Key]:
    """Return `Injection.fired` as a run keeps it."""
    return {(int(number), str(stack), int(seed)) for number, stack, seed in data.get("fired", ())}
