"""Optimisers from a recipe, one per update task of the plan, with a state that does not depend on how the plan cuts
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from orch.errors import OrchError, did_you_mean

Factory = Callable[[Sequence[Tensor]], Optimizer]
KNOWN = {"sgd": "torch.optim.SGD", "adam": "torch.optim.Adam", "adamw": "torch.optim.AdamW"}


def optimizer_factory(spec: Mapping[str, Any]) -> Factory:
    """Return what makes the optimiser of `spec`, one entry `{sgd: {lr: 0.1}}`: those that a recipe may name.

    Raises OrchError (E620) for an unknown name and for options the optimiser does not take.
    """
    if len(spec) != 1:
        raise OrchError(f"one optimiser is wanted, found {len(spec)}: {', '.join(spec) or 'none'}", code="E620")
    ((name, options),) = spec.items()
    if name not in KNOWN:
        hint = did_you_mean(name, KNOWN) or f"known are {', '.join(KNOWN)}"
        raise OrchError(f"optimiser {name!r} is not known", code="E620", hint=hint)

    def make(parameters: Sequence[Tensor]) -> Optimizer:
        from hydra.errors import HydraException
        from hydra.utils import instantiate

        try:
            made = instantiate({"_target_": KNOWN[name], "_partial_": True, **(options or {})})(parameters)
        except (HydraException, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise OrchError(f"optimiser {name!r} cannot be made: {reason}", code="E620") from error
        optimizer: Optimizer = made
        return optimizer

    return make


@dataclass(frozen=True)
class Schedule:
    """The learning rate over steps, as a factor of the optimiser's own: linear warm-up, then constant or a cosine to 0."""

    kind: str = "constant"
    warmup: int = 0
    steps: int = 0

    def factor(self, step: int) -> float:
        """Return the factor of step `step`, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "constant" or self.steps <= self.warmup:
            return 1.0
        progress = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return 0.5 * (1.0 + math.cos(math.pi * progress))


class Optimizers:
    """The optimisers of one model: each owns the parameters of one update task, and a parameter has one owner.

    Update tasks of different steps of a period must cut the parameters alike; raises OrchError (E621) otherwise.
    """

    def __init__(
        self, cuts: Iterable[Sequence[str]], parameters: Mapping[str, Tensor], make: Factory, schedule: Schedule
    ) -> None:
        self._schedule = schedule
        self._by_cut: dict[tuple[str, ...], Optimizer] = {}
        self._base: dict[tuple[str, ...], list[float]] = {}
        self._factor: dict[tuple[str, ...], float] = {}
        owned: set[str] = set()
        for cut in dict.fromkeys(tuple(cut) for cut in cuts):
            if not cut:
                continue
            if twice := owned.intersection(cut):
                raise OrchError(
                    f"parameter {min(twice)!r} is updated by two differently cut updates of the plan", code="E621"
                )
            owned.update(cut)
            optimizer = make([parameters[name] for name in cut])
            self._by_cut[cut] = optimizer
            self._base[cut] = [group["lr"] for group in optimizer.param_groups]
            self._factor[cut] = 1.0

    def step(self, cut: tuple[str, ...], number: int) -> None:
        """Update the parameters of `cut` with the learning rate of step `number`, counted from 0."""
        optimizer = self._by_cut[cut]
        factor = self._schedule.factor(number)
        if factor != self._factor[cut]:
            self._factor[cut] = factor
            for group, base in zip(optimizer.param_groups, self._base[cut], strict=True):
                group["lr"] = base * factor
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state per parameter name, however the plan cuts the updates."""
        merged: dict[str, Any] = {}
        for cut, optimizer in self._by_cut.items():
            state = optimizer.state_dict()["state"]
            merged.update((cut[index], values) for index, values in state.items())
        return merged

    def load_state_dict(self, merged: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, also from a plan that cut its updates differently."""
        for cut, optimizer in self._by_cut.items():
            whole = optimizer.state_dict()
            # torch keeps the tensors it is given: without a copy, two optimisers would write to one state.
            whole["state"] = {index: deepcopy(merged[name]) for index, name in enumerate(cut) if name in merged}
            optimizer.load_state_dict(whole)
