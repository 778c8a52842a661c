"""Watch a model train for a few steps, without communication: what runs when, which gradient is ready when, and how
long it takes.

The result is a profile in the runtime's own terms: a module is one that owns parameters (or calls the owner's
parameters itself, as torch's attention does with `out_proj`) and is charged with everything up to the next one; the
loss belongs to the last. Orders are observed, never assumed. All ranks should observe at the same time, so that the
contention of a shared machine is in the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import nn

from orch.models.profile import Module, Profile, Tensor
from orch.runtime.optimizers import Factory

LossOf = Callable[[Callable[..., Any]], torch.Tensor]


@dataclass(frozen=True)
class Observation:
    """What a few steps showed, for the whole batch of this worker.

    `step_s` is a step without any stamping, the mean of several in a row; the profile and `update_s` add up to it. In
    `ran_s` of it this rank's thread really ran: on shared cores the rest is other ranks' turn.
    `steady` tells whether gradients became ready in the same order in every step. `passes` are the
    stamps that shared it out.
    """

    profile: Profile
    update_s: float
    step_s: float
    steady: bool
    passes: tuple[Pass, ...] = field(default=(), repr=False)
    ran_s: float = 0.0

    def lasting(self, step_s: float) -> Observation:
        """Return the same step taking `step_s` seconds in all."""
        scale, modules = step_s / self.step_s, self.profile.modules
        forward, backward = (
            scale * sum(getattr(module, name) or 0.0 for module in modules) for name in ("forward_s", "backward_s")
        )
        profile = self.profile.scaled_to(forward, backward)
        return replace(self, profile=profile, update_s=scale * self.update_s, step_s=step_s)


@dataclass
class Pass:
    """The stamps of one step, in seconds from its start: first entries into modules, gradients, and the ends of forward
    (`backward` begins), of backward and of the update.
    """

    entered: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    backward: float = 0.0
    ended: float = 0.0
    updated: float = 0.0
    begun: float = 0.0

    def from_start(self) -> Pass:
        """Return the same stamps counted from the step's start."""
        entered = {name: time - self.begun for name, time in self.entered.items()}
        ready = {name: time - self.begun for name, time in self.ready.items()}
        ends = (self.backward - self.begun, self.ended - self.begun, self.updated - self.begun)
        return Pass(entered, ready, *ends)


def observe(
    model: nn.Module,
    loss_of: LossOf,
    optimizer: Factory,
    *,
    name: str = "model",
    steps: int = 5,
    warmup: int = 2,
    paced: int = 5,
    pause: Callable[[], None] = lambda: None,
) -> Observation:
    """Return the observation of `steps` stamped training steps and of `paced` plain ones, after `warmup` ones. The model
    is trained by them: give it a copy.

    `loss_of(model)` computes the loss of the next batch. `pause` returns when all ranks are here and have waited, as a training
    step waits for its collectives: before the first stamped step, and before every plain one.
    """
    owners = _owners(model, loss_of)
    watcher = _Watcher(model, dict.fromkeys(unit for units in owners.values() for unit in units))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    update = optimizer(trained)

    def step() -> None:
        watcher.now.begun = perf_counter()
        loss = loss_of(model)
        watcher.now.backward = perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        watcher.now.ended = perf_counter()
        update.step()
        watcher.now.updated = perf_counter()
        for parameter in trained:
            parameter.grad = None

    passes: list[Pass] = []
    for number in range(warmup + steps):
        if number == warmup:
            pause()
        watcher.attach()
        step()
        seen = watcher.detach()
        passes += [seen.from_start()] if number >= warmup else []
    plain_s = plain_ran_s = 0.0
    for _ in range(paced):
        pause()
        begin, own = perf_counter(), thread_time()
        step()
        plain_s += perf_counter() - begin
        plain_ran_s += thread_time() - own
    steady = all(list(seen.ready) == list(passes[0].ready) for seen in passes)
    seen_s = _observation(_profile(name, model, owners, passes), passes, plain_s / paced, steady)
    return replace(seen_s, ran_s=plain_ran_s / paced)


def _observation(profile: Profile, passes: Sequence[Pass], step_s: float, steady: bool) -> Observation:
    """Share `step_s` out as the stamps of `passes` say."""
    update_s = median(seen.updated - seen.ended for seen in passes)
    totals = median(seen.backward for seen in passes), median(seen.ended - seen.backward for seen in passes)
    scale = step_s / max(1e-12, update_s + sum(totals))
    shared = _timed(profile, passes).scaled_to(*(scale * total for total in totals))
    return Observation(shared, scale * update_s, step_s, steady, tuple(passes))


class _Watcher:
    """Stamps the first entry into each unit and the arrival of each gradient."""

    def __init__(self, model: nn.Module, units: Iterable[str]) -> None:
        self._modules = {name: model.get_submodule(name) for name in units}
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._handles: list[Any] = []
        self.now = Pass()

    def attach(self) -> None:
        for name, module in self._modules.items():
            self._handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
        for name, parameter in self._parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(partial(self._arrive, name)))  # type: ignore[no-untyped-call]

    def detach(self) -> Pass:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        seen, self.now = self.now, Pass()
        return seen

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        if name not in self.now.entered:
            self.now.entered[name] = perf_counter()

    def _arrive(self, name: str, _: torch.Tensor) -> None:
        self.now.ready[name] = perf_counter()


def _owners(model: nn.Module, loss_of: LossOf) -> dict[str, tuple[str, ...]]:
    """Return, per parameter, the modules whose forward reads it, in the order they run: its owner, or the nearest
    caller above it.
    """
    called: dict[str, None] = {}
    handles = [
        module.register_forward_pre_hook(lambda module, args, name=name: called.setdefault(name))
        for name, module in model.named_modules()
    ]
    try:
        loss_of(model)
    finally:
        for handle in handles:
            handle.remove()
    called.setdefault("")
    order = {name: place for place, name in enumerate(called)}
    unique = {id(module): name for name, module in reversed(list(model.named_modules()))}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    readers: dict[str, set[str]] = {name: set() for name in names.values()}
    for path, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            unit = unique[id(module)]
            if unit not in order:
                unit = path
            while unit not in order:
                unit = unit.rpartition(".")[0]
            readers[names[id(parameter)]].add(unit)
    return {name: tuple(sorted(units, key=order.__getitem__)) for name, units in readers.items()}


def _profile(name: str, model: nn.Module, owners: dict[str, tuple[str, ...]], passes: Sequence[Pass]) -> Profile:
    entered = passes[-1].entered
    idle = dict.fromkeys(unit for units in owners.values() for unit in units if unit not in entered)
    modules = tuple(Module(unit, 0.0, 0.0) for unit in [*idle, *entered])
    tensors = tuple(Tensor(tensor, tuple(p.shape), owners[tensor]) for tensor, p in model.named_parameters())
    return Profile(name, modules, tensors, tuple(passes[-1].ready), source="observed on this machine")


def _timed(profile: Profile, passes: Sequence[Pass]) -> Profile:
    """Return the profile with each module's seconds; a backward segment's time is shared like its modules' forward
    times.

    Medians of modules do not add up where ranks take turns on a processor: each step is interrupted somewhere, each
    module rarely. So modules give the proportions only.
    """
    forward = {module.name: 0.0 for module in profile.modules}
    units = list(passes[-1].entered)
    for unit, following in zip(units, [*units[1:], ""], strict=True):
        forward[unit] = median(
            (seen.entered.get(following, seen.backward) if following else seen.backward)
            - seen.entered.get(unit, seen.backward)
            for seen in passes
        )
    backward = dict.fromkeys(forward, 0.0)
    previous: str | None = None
    for segment in profile.backward_segments():
        last = segment.tensors[-1].name if segment.tensors else None
        seconds = median(_between(seen, previous, last) for seen in passes)
        weights = [forward[module.name] for module in segment.modules]
        total = sum(weights)
        for module, weight in zip(segment.modules, weights, strict=True):
            backward[module.name] = seconds * (weight / total if total > 0 else 1.0 / len(weights))
        previous = last
    modules = tuple(
        replace(m, forward_s=max(0.0, forward[m.name]), backward_s=max(0.0, backward[m.name])) for m in profile.modules
    )
    return replace(profile, modules=modules)


def _between(seen: Pass, begin: str | None, end: str | None) -> float:
    start = seen.backward if begin is None else seen.ready.get(begin, seen.backward)
    return (seen.ended if end is None else seen.ready.get(end, seen.ended)) - start


def merge(seen: Sequence[Observation], crowd: float = 1.0) -> Observation:
    """Return one observation of a gang, from those of its ranks: as long as the slowest rank's step, which a synchronous
    step waits for, and shared out as all ranks' stamps say.

    `crowd` ranks share a core. Where they do, a step is as long as all of them run: what else a few steps of a clock
    see there is whose turn it happened to be.
    """
    passes = [one for other in seen for one in other.passes]
    ran_s = max(other.ran_s for other in seen)
    step_s = crowd * ran_s if crowd > 1.0 and ran_s > 0.0 else max(other.step_s for other in seen)
    together = _observation(seen[0].profile, passes, step_s, all(other.steady for other in seen))
    return replace(together, ran_s=ran_s)
