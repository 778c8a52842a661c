"""What a run directory says of a run that is to go on: measured inputs, plans, and what every stack has done so far.

Only whole works count: steps go to the directory a block at a time, figures about a block before its steps, and its
judgement after them, so a driver may die anywhere between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from orch.errors import OrchError
from orch.experiment import expert_load
from orch.experiment.injection import FIRED, fired_from
from orch.experiment.outcome import Trained
from orch.experiment.predict import Inputs
from orch.experiment.quality import block_time_s
from orch.experiment.schedule import Work, whole_steps
from orch.experiment.values import from_data, to_data
from orch.plan import Plan, from_json
from orch.track import encoding
from orch.track.directory import RunDirectory
from orch.track.steps import Value, read_steps, read_values

PLANNED_FROM = "planned_from.json"
PARAMETERS = "parameters.json"
PAYLOAD = "payload_bytes"
PEAK = "peak_memory_bytes"


@dataclass(frozen=True)
class Past:
    """The directory of a run that began before."""

    directory: RunDirectory

    @property
    def inputs(self) -> Inputs | None:
        """What the run measured in its warm-up; None when it did not get so far. OrchError (E821): damaged."""
        data = encoding.read_json(self.directory.path / PLANNED_FROM)
        if not data:
            return None
        try:
            return cast("Inputs", from_data(data["inputs"]))
        except (ValueError, KeyError, OrchError) as error:
            raise _damaged(PLANNED_FROM, error) from error

    @property
    def fired(self) -> set[tuple[int, str, int]]:
        """The faults of the recipe that have happened."""
        return fired_from(encoding.read_json(self.directory.path / FIRED))

    def plan(self, stack: str) -> Plan | None:
        """Return the plan that a stack began with, None where there is none. OrchError (E821): damaged."""
        data = encoding.read_json(self.directory.stack_folders()[stack] / "plan.json")
        try:
            return from_json(data) if data else None
        except (KeyError, TypeError, ValueError, OrchError) as error:
            raise _damaged("plan.json", error) from error

    def prints(self, stack: str) -> Mapping[str, str]:
        """Return, by seed, the fingerprint of the parameters of trainings that are finished."""
        data = encoding.read_json(self.directory.stack_folders()[stack] / PARAMETERS)
        return {str(seed): str(value) for seed, value in data.items()}

    def trained(self, works: Sequence[Work], stack: str, seed: int, period: int) -> Trained:
        """Return what a stack did under a seed, up to the last work it finished."""
        folder = self.directory.stack_folders()[stack]
        rows = read_steps(folder / f"steps.seed{seed}.csv")
        gapless = next((index for index, row in enumerate(rows) if row.step != index), len(rows))
        steps = whole_steps(works, stack, gapless)
        rows = rows[:steps]
        trained = Trained(stack, seed)
        trained.losses = [float(row.loss if row.loss is not None else "nan") for row in rows]
        trained.clock_s = [row.clock_s for row in rows]
        timed = [row for row in rows if row.block is not None]
        for _, block in groupby(timed, key=lambda row: row.block):
            trained.block_times_s.append(block_time_s([float(row.step_time_s or 0.0) for row in block], period))
        values = [value for value in read_values(folder / f"values.seed{seed}.csv") if value.step <= steps]
        trained.payload_bytes = [value.value for value in values if value.name == PAYLOAD]
        trained.peak_bytes = next((int(value.value) for value in values if value.name == PEAK), None)
        trained.judged = _judged(values)
        trained.loads = expert_load.from_values(values)
        return trained


def planned_from(inputs: Inputs) -> dict[str, Any]:
    """Return what `Past.inputs` reads."""
    return {"inputs": to_data(inputs)}


def _judged(values: Sequence[Value]) -> list[tuple[float, float, float]]:
    losses = {value.step: value for value in values if value.name == "val_loss"}
    accuracies = {value.step: value for value in values if value.name == "val_accuracy"}
    return [
        (losses[step].clock_s, losses[step].value, accuracies[step].value)
        for step in sorted(losses.keys() & accuracies)
    ]


def _damaged(name: str, error: Exception) -> OrchError:
    return OrchError(f"the run cannot go on: its {name} is damaged ({error})", code="E821", hint="begin a new run")
