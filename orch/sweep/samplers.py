"""Optuna's samplers and pruners by name, seeded so that a point depends on the trial's number and not on who asks.

The same sampler made twice from one seed proposes the same points twice: a sweep that is taken up again, or two drivers
of one study, would repeat themselves. So the sampler is seeded anew for every trial, by (seed, number).
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.study import Study
from optuna.trial import FrozenTrial

from orch.errors import OrchError
from orch.recipe.space import Parameter
from orch.track import encoding

ENUMERATED = ("GridSampler", "BruteForceSampler")
# Their scrambling must be the same for every trial: the sequence is one.
_ONE_SEQUENCE = ("QMCSampler",)
MOST_CELLS = 1_000_000
FINE = 1e-4
_SCALARS: dict[str, type | tuple[type, ...]] = {
    "int": int, "float": (int, float), "bool": bool, "str": str, "None": type(None),
}  # fmt: skip


class Samplers:
    """Makes the sampler of each trial of a study. Raises OrchError (E632) for arguments that Optuna does not take."""

    def __init__(self, named: Mapping[str, Mapping[str, Any]], seed: int, space: Sequence[Parameter]) -> None:
        self._name, self._arguments = next(iter(named.items()))
        self._seed = seed
        self._cells = list(cells(space)) if self._name in ENUMERATED else None
        if self._cells is not None and self._arguments:
            raise OrchError(f"{self._name} takes no arguments here: it runs every cell once", code="E632")
        if "seed" in self._arguments:
            raise OrchError(f"{self._name}: the seed is the sweep's", code="E632", hint="write sweep: {seed: 1}")
        # Kept for all trials: what it has worked out about earlier ones is worth more than a clean start.
        self._sampler = Enumerated(self._cells) if self._cells is not None else self._made()

    @property
    def name(self) -> str:
        """Optuna's name of the sampler."""
        return self._name

    @property
    def size(self) -> int | None:
        """How many cells there are at all, None where the sampler could go on for ever."""
        return None if self._cells is None else len(self._cells)

    def at(self, number: int) -> BaseSampler:
        """Return the sampler, ready for trial `number`. The next call changes it: one trial is asked for at a time."""
        if self._cells is None and self._name not in _ONE_SEQUENCE:
            _reseed(self._sampler, seed_of(self._seed, number))
        return self._sampler

    def _made(self) -> BaseSampler:
        made: BaseSampler = _made(optuna.samplers, self._name, {"seed": seed_of(self._seed, 0), **self._arguments})
        return made


def _reseed(sampler: BaseSampler, seed: int) -> None:
    """Seed every generator of a sampler and of those it asks. Optuna's own `reseed_rng` draws from the system."""
    for part in vars(sampler).values():
        if isinstance(part, LazyRandomState):
            part.rng.seed(seed)
        elif isinstance(part, BaseSampler):
            _reseed(part, seed)


def pruner_of(named: Mapping[str, Mapping[str, Any]]) -> optuna.pruners.BasePruner:
    """Return the pruner a recipe names. Raises OrchError (E632) for arguments that Optuna does not take."""
    name, arguments = next(iter(named.items()))
    if name == "PatientPruner":
        arguments = {"wrapped_pruner": None, **arguments}
    found: optuna.pruners.BasePruner = _made(optuna.pruners, name, arguments)
    return found


def _made(module: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    kind = getattr(module, name)
    try:
        _refuse_types(kind, arguments)
        with warnings.catch_warnings():  # what Optuna calls experimental the user has asked for by name
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(**arguments)
    except (ImportError, TypeError, ValueError) as error:
        raise refused(name, module.__name__.split(".")[-1], error) from None


def refused(name: str, family: str, error: Exception) -> OrchError:
    """Return what to tell a user of a sampler or pruner that does not work as asked for; `family` is Optuna's module."""
    reason = str(error).splitlines()[0].replace(f"{name}.__init__() ", "") if str(error) else type(error).__name__
    if isinstance(error, ImportError):
        return OrchError(f"{name} needs a library that is not installed: {reason}", code="E632")
    return OrchError(f"{name}: {reason}", code="E632", hint=f"its arguments: help(optuna.{family}.{name})")


def _refuse_types(kind: Any, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for an argument of another type than Optuna declares: Optuna itself would fail a trial by it."""
    parameters = signature(kind.__init__).parameters
    for name, value in arguments.items():
        if name not in parameters:
            continue
        declared = str(parameters[name].annotation).removeprefix("<class '").removesuffix("'>")
        kinds = [part.strip() for part in declared.split("|")]
        told = {part: _SCALARS[part] for part in kinds if part in _SCALARS}
        fits = isinstance(value, tuple(told.values())) and (not isinstance(value, bool) or "bool" in told)
        if told and not fits:
            words = (
                " or ".join(part for part in told if part != "None")
                or "left out: it is no value that a recipe can hold"
            )
            raise ValueError(f"{name} must be {words}; it is {value!r}")


def seed_of(seed: int, number: int) -> int:
    """Return a seed for trial `number` that no other trial of the same `seed` has in common with another `seed`."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def cells(space: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    """Yield every combination of a space whose values can be counted, conditions kept. Raises OrchError (E632)."""
    endless = next((parameter for parameter in space if parameter.count is None), None)
    if endless is not None:
        message = f"a grid needs values that can be counted: {endless.path} has a range without a step"
        raise OrchError(message, code="E632", where=endless.where, hint="give choices, or a step")
    many = next((parameter for parameter in space if (parameter.count or 0) > MOST_CELLS), None)
    if many is not None:
        message = f"a grid of at most {MOST_CELLS:,} cells can be run: {many.path} alone has {many.count:,} values"
        raise OrchError(message, code="E632", where=many.where, hint="give a larger step, or sample it instead")
    yield from _cells(space, {}, [0])


def _cells(space: Sequence[Parameter], chosen: dict[str, Any], count: list[int]) -> Iterator[dict[str, Any]]:
    if not space:
        count[0] += 1
        if count[0] > MOST_CELLS:
            raise OrchError(f"the grid has more than {MOST_CELLS:,} cells", code="E632", hint="sample it instead")
        yield dict(chosen)
        return
    parameter, rest = space[0], space[1:]
    if not parameter.active(chosen):
        yield from _cells(rest, chosen, count)
        return
    for value in parameter.steps():
        yield from _cells(rest, {**chosen, parameter.path: value}, count)


class Enumerated(BaseSampler):
    """Gives trial n the values of cell n: a grid, each cell once. Optuna's own fails when asked and told."""

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        self._cells = cells

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        value = self._cells[trial.number][param_name]
        if isinstance(param_distribution, CategoricalDistribution):
            return as_category(value)
        return _number(value)


def _number(value: Any) -> float:
    if isinstance(value, str):
        digits = value.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz/")
        return float(digits)
    return float(value)


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return the distribution of a parameter, its numbers in SI."""
    if parameter.choices:
        return CategoricalDistribution([as_category(value) for value in parameter.choices])
    if parameter.whole and not _is_fine(parameter):
        step = int(parameter.step) if parameter.step is not None else 1
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log, step=step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)


def _is_fine(parameter: Parameter) -> bool:
    """Whether neighbouring whole numbers are no further apart than `FINE` of the range, as in a range of bytes.

    TPE's kernels are at least a hundredth of the range wide, so over such a step their density is even to 1e-5: the mass
    of a whole number and the density there rank alike. The mass is worked out in a Python loop and takes four times as long.
    """
    if parameter.step is not None:
        return False
    width, step = parameter.high - parameter.low, 1.0
    if parameter.log:
        width, step = math.log(parameter.high / parameter.low), 1.0 / parameter.low
    return step <= FINE * width


def as_category(value: Any) -> Any:
    """Return a choice as Optuna keeps it: scalars as they are, anything else as JSON text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else encoding.dumps(value)


def from_category(parameter: Parameter, category: Any) -> Any:
    """Return the choice that `as_category` was given."""
    same = (v for v in parameter.choices if as_category(v) == category and type(as_category(v)) is type(category))
    return next(same, category)


def chosen_of(parameter: Parameter, value: Any) -> Any:
    """Return what Optuna keeps of a parameter as a recipe writes it."""
    return from_category(parameter, value) if parameter.choices else parameter.written(value)


def suggested(
    trial: optuna.Trial, space: Sequence[Parameter], distributions: Mapping[str, BaseDistribution]
) -> dict[str, Any]:
    """Return what the sampler of a trial's study chooses for it, conditions kept."""
    chosen: dict[str, Any] = {}
    for parameter in space:
        if parameter.active(chosen):
            chosen[parameter.path] = chosen_of(parameter, trial._suggest(parameter.path, distributions[parameter.path]))
    return chosen
