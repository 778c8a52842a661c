"""The study of a sweep: opened or taken up again, asked for the next trial, told what came of it.

A trial carries the process that owns it. One that was left running by a process that is gone keeps its number and its
values and is run by whoever asks next, so a study of 40 trials has 40, however often its drivers were killed.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from orch.recipe.space import Parameter
from orch.sweep.journal import locked
from orch.sweep.metrics import Sought, key
from orch.sweep.samplers import Samplers, chosen_of, distribution, pruner_of, refused, suggested
from orch.sweep.storage import storage_of
from orch.track.state import Owner

ABOUT = "orch"
OWNER = "orch.owner"
FACTS = "orch.facts"
COMPLETE, PRUNED, INFEASIBLE, FAILED, RUNNING, WAITING = (
    "complete", "pruned", "infeasible", "failed", "running", "waiting",
)  # fmt: skip
_OPTUNA = {
    COMPLETE: TrialState.COMPLETE,
    PRUNED: TrialState.PRUNED,
    INFEASIBLE: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
}
_BY_OPTUNA = {
    TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED, TrialState.FAIL: FAILED, TrialState.RUNNING: RUNNING,
    TrialState.WAITING: WAITING,
}  # fmt: skip

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class About:
    """What is kept of a finished trial beside Optuna's own record. `values` are by metric, constraints' included."""

    state: str
    values: Mapping[str, float] = field(default_factory=dict)
    cell: str = ""
    mode: str = ""
    run_dir: str | None = None
    reason: str = ""
    same_as: int | None = None
    replaces: int | None = None
    contended: bool = False
    seconds: float = 0.0
    attempts: int = 1


_KEPT = tuple(item.name for item in fields(About))


@dataclass(frozen=True)
class Record:
    """A trial as the results show it. `params` are values as a recipe writes them."""

    number: int
    state: str
    params: Mapping[str, Any]
    about: About
    predicted: Mapping[str, float] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether nothing will be added to it."""
        return self.state not in (RUNNING, WAITING)

    def to_json(self) -> dict[str, Any]:
        """Return the trial in the form of `orch sweep --json`."""
        about = self.about
        found: dict[str, Any] = {
            "number": self.number,
            "state": self.state,
            "params": dict(self.params),
            "values": {key(metric): value for metric, value in about.values.items()} or None,
            "mode": about.mode or None,
            "run_dir": about.run_dir,
        }
        more = {
            "reason": about.reason,
            "same_as": about.same_as,
            "contended": about.contended,
            "replaces": about.replaces,
            "predicted": {key(metric): value for metric, value in self.predicted.items()},
        }
        return found | {name: value for name, value in more.items() if _says(value)}


@dataclass
class Ticket:
    """A trial that this process runs now."""

    number: int
    chosen: dict[str, Any]
    trial: optuna.Trial
    attempts: int = 1
    replaces: int | None = None
    course: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What decides a study: its name and storage, what it varies and seeks, who proposes, who ends trials early."""

    name: str
    storage: str
    space: tuple[Parameter, ...]
    sought: Sought
    samplers: Samplers
    pruner: Mapping[str, Mapping[str, Any]]


class Store:
    """One study. Thread-safe; several processes may work on the same one."""

    def __init__(self, plan: Plan, facts: Mapping[str, Any], turn: Path) -> None:
        self.plan = plan
        self.created = False
        self._turn = turn
        self._lock = threading.RLock()
        self._owner = asdict(Owner.here())
        self._alive: dict[str, bool] = {}
        self._distributions = {parameter.path: distribution(parameter) for parameter in plan.space}
        storage = storage_of(plan.storage)
        with self.alone():
            self._study = self._open(storage, facts)
        self._storage: BaseStorage = self._study._storage
        self._id = self._study._study_id

    def _open(self, storage: BaseStorage, facts: Mapping[str, Any]) -> optuna.Study:
        pruner = pruner_of(self.plan.pruner)
        directions = [objective.direction for objective in self.plan.sought.objectives]
        try:
            study = optuna.load_study(study_name=self.plan.name, storage=storage, pruner=pruner)
        except KeyError:
            self.created = True
            study = optuna.create_study(
                storage=storage, study_name=self.plan.name, directions=directions, pruner=pruner
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it may still change, says Optuna; a browser shows the names meanwhile
                study.set_metric_names([key(objective.metric) for objective in self.plan.sought.objectives])
            study.set_user_attr(FACTS, json.loads(json.dumps(facts, default=str)))
        return study

    @property
    def facts(self) -> dict[str, Any]:
        """What the study was begun with."""
        found = self._study.user_attrs.get(FACTS, {})
        return dict(found)

    @property
    def study(self) -> optuna.Study:
        """Optuna's study."""
        return self._study

    # -- asking ------------------------------------------------------------------------------------------------------------

    def ask(self, total: int | None, *, new: bool = True) -> Ticket | None:
        """Return the next trial to run here: one that was left, else a new one while the study has fewer than `total`.

        `new` False: only what was left. None: there is nothing to begin.
        """
        with self._lock, self.alone():
            frozen = self._left()
            if frozen is None:
                if not new or (total is not None and self.count() >= total):
                    return None
                frozen = self._created({})
            self._study.sampler = self.plan.samplers.at(frozen.number)
            self._study._thread_local.cached_all_trials = None  # as Study.ask does: what other slots told since counts
            trial = optuna.Trial(self._study, frozen._trial_id)
            attempts = int(frozen.user_attrs.get("orch.attempts", 0)) + 1
            if attempts > 1:
                trial.set_user_attr("orch.attempts", attempts)
            try:
                chosen = suggested(trial, self.plan.space, self._distributions)
            except (ImportError, TypeError, ValueError) as error:  # of the sampler: nothing else decides here
                self._storage.set_trial_state_values(frozen._trial_id, TrialState.WAITING)
                raise refused(self.plan.samplers.name, "samplers", error) from error
            return Ticket(frozen.number, chosen, trial, attempts, frozen.user_attrs.get("orch.replaces"))

    def enqueue(self, params: Mapping[str, Any], **attributes: Any) -> int:
        """Add a trial with these parameters (as Optuna keeps them), to be run by whoever asks next; return its number."""
        with self._lock, self.alone():
            frozen = create_trial(
                state=TrialState.WAITING, system_attrs={"fixed_params": dict(params)},
                user_attrs={f"orch.{name}": value for name, value in attributes.items()},
            )  # fmt: skip
            return self._storage.get_trial(self._storage.create_new_trial(self._id, frozen)).number

    def proposed(self) -> list[dict[str, Any]]:
        """Return the parameters of every trial, as Optuna keeps them, of those that wait too."""
        frozen = self._study.get_trials(deepcopy=False)
        return [dict(trial.system_attrs.get("fixed_params") or trial.params) for trial in frozen]

    def keep(self, name: str, value: Any) -> None:
        """Keep something about the study."""
        self._study.set_user_attr(f"orch.{name}", json.loads(json.dumps(value, default=str)))

    def kept(self, name: str) -> Any:
        """Return what `keep` was given last, by any invocation; None for nothing."""
        return self._study.user_attrs.get(f"orch.{name}")

    def count(self) -> int:
        """Return how many trials the study has; one that another replaces does not count."""
        frozen = self._study.get_trials(deepcopy=False)
        return len(frozen) - sum("orch.replaces" in trial.user_attrs for trial in frozen)

    def count_finished(self) -> int:
        """Return how many trials are finished, replaced ones included."""
        return sum(trial.state.is_finished() for trial in self._study.get_trials(deepcopy=False))

    def left(self) -> int:
        """Return how many trials are not finished."""
        return len(self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)))

    def _left(self) -> FrozenTrial | None:
        """Take over a trial that waits, or that was left running by a process that is gone."""
        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)):
            if frozen.state == TrialState.RUNNING and self._is_alive(frozen.user_attrs.get(OWNER)):
                continue
            if frozen.state == TrialState.WAITING and not self._storage.set_trial_state_values(
                frozen._trial_id, TrialState.RUNNING
            ):
                continue  # somebody elsewhere was faster
            self._storage.set_trial_user_attr(frozen._trial_id, OWNER, self._owner)
            if frozen.state == TrialState.RUNNING and "orch.attempts" not in frozen.user_attrs:
                self._storage.set_trial_user_attr(frozen._trial_id, "orch.attempts", 1)
            return self._storage.get_trial(frozen._trial_id)
        return None

    def _created(self, attributes: Mapping[str, Any]) -> FrozenTrial:
        # One record says that the trial is there and whose it is: there is no moment without an owner.
        frozen = create_trial(state=TrialState.RUNNING, user_attrs={OWNER: self._owner, **attributes})
        return self._storage.get_trial(self._storage.create_new_trial(self._id, frozen))

    def _is_alive(self, owner: Any) -> bool:
        if not isinstance(owner, dict):
            return False
        if owner == self._owner:
            return True
        name = json.dumps(owner, sort_keys=True)
        if self._alive.get(name, True):
            # What another host runs cannot be seen from here: it counts as alive.
            self._alive[name] = Owner(**owner).alive is not False
        return self._alive[name]

    # -- telling -----------------------------------------------------------------------------------------------------------

    def tell(self, ticket: Ticket, about: About) -> None:
        """Keep what came of a trial. Raises OSError where the disk refuses it."""
        with self._lock:
            values = self.plan.sought.of_values(about.values) if about.state == COMPLETE else None
            kept = {name: value for name in _KEPT if _says(value := getattr(about, name))}
            if about.state == INFEASIBLE:
                ticket.trial.set_constraint("feasible", 1.0)
            elif about.state == COMPLETE:
                for constraint in self.plan.sought.constraints:
                    ticket.trial.set_constraint(str(constraint), constraint.violation(about.values[constraint.metric]))
            ticket.trial.set_user_attr(ABOUT, kept)
            self._study.tell(ticket.trial, values, state=_OPTUNA[about.state])

    def release(self, ticket: Ticket) -> None:
        """Give a trial back unrun: it keeps its number and its values, and waits for whoever asks next."""
        with self._lock:
            self._storage.set_trial_state_values(ticket.trial._trial_id, TrialState.WAITING)

    def report(self, ticket: Ticket, value: float, step: int) -> bool:
        """Keep what a trial has come to after `step`; return whether the pruner would end it here."""
        with self._lock:
            ticket.trial.report(value, step)
            try:
                return bool(ticket.trial.should_prune())
            except (ImportError, TypeError, ValueError) as error:  # of arguments that its constructor did not look at
                raise refused(next(iter(self.plan.pruner)), "pruners", error) from error

    def report_course(self, ticket: Ticket, step: int, values: Sequence[float]) -> None:
        """Keep what a trial of several objectives has come to after `step`, which Optuna itself refuses to."""
        with self._lock:
            course = {**ticket.course, str(step): list(values)}
            ticket.course = course
            ticket.trial.set_user_attr("orch.course", course)

    def courses(self, but: int) -> list[dict[int, list[float]]]:
        """Return the courses of the trials that ran to their end or were pruned, by step."""
        with self._lock:
            frozen = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        kept = [trial.user_attrs.get("orch.course", {}) for trial in frozen if trial.number != but]
        return [{int(step): values for step, values in course.items()} for course in kept]

    # -- looking -----------------------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """Return every trial, by number."""
        return [self.record(frozen) for frozen in self._study.get_trials(deepcopy=False)]

    def record(self, frozen: FrozenTrial) -> Record:
        """Return one trial as the results show it."""
        kept = frozen.user_attrs.get(ABOUT, {})
        state = _BY_OPTUNA[frozen.state]
        about = About(**{"state": state, **kept}) if frozen.state.is_finished() else About(state)
        by_path = {parameter.path: parameter for parameter in self.plan.space}
        params = {path: chosen_of(by_path[path], value) for path, value in frozen.params.items() if path in by_path}
        return Record(frozen.number, about.state, params, about, frozen.user_attrs.get("orch.predicted", {}))

    def raw_params(self, number: int) -> dict[str, Any]:
        """Return the parameters of a trial as Optuna keeps them."""
        return dict(self._study.get_trials(deepcopy=False)[number].params)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other drivers below the same directory of runs from asking for a trial, or opening the run, meanwhile."""
        with locked(self._turn):
            yield


def _says(value: Any) -> bool:
    """Whether a value says anything; the number 0 does."""
    return value not in (None, "", {}) and value is not False


def best_of(records: Sequence[Record], sought: Sought) -> Record | None:
    """Return the best complete trial that keeps to the constraints: the first objective decides among equals of a front."""
    fit = feasible(records, sought)
    if not fit:
        return None
    first = sought.objectives[0]
    if len(sought.objectives) == 1:
        return min(fit, key=lambda record: (first.loss(record.about.values[first.metric]), record.number))
    points = [sought.of_values(record.about.values) for record in fit]
    front = sought.front(points)
    return fit[min(front, key=lambda index: (first.loss(points[index][0]), fit[index].number))]


def feasible(records: Sequence[Record], sought: Sought) -> list[Record]:
    """Return the complete trials that keep to every constraint."""
    return [
        record
        for record in records
        if record.state == COMPLETE
        and all(constraint.violation(record.about.values[constraint.metric]) <= 0 for constraint in sought.constraints)
    ]
