"""Compare stacks of finished runs: paired where they shared blocks, and where the time of a step went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from orch.errors import OrchError
from orch.experiment.breakdown import ordered, title
from orch.experiment.statistics import Speedup, compare, compare_apart
from orch.report.stored import StoredRun, StoredStack
from orch.simulate import simulate

LEVEL = 0.95


@dataclass(frozen=True)
class Part:
    """A class of time and how many seconds a step the other stack spends more (or, below 0, less) in it."""

    name: str
    reference_s: float
    own_s: float

    @property
    def change_s(self) -> float:
        """Seconds a step more than the reference."""
        return self.own_s - self.reference_s


@dataclass(frozen=True)
class Range:
    """The gain that a simulation predicts: with its inputs as they stand, and the least and most over their bands."""

    median: float
    lo: float
    hi: float


@dataclass(frozen=True)
class Pair:
    """Two stacks, compared. `speedup` is for measured ones, `range` for simulated ones; `waterfall` sums to the
    difference of their step times, and is empty where a run did not record where its time went.
    """

    reference: StoredStack
    own: StoredStack
    paired: bool
    speedup: Speedup | None
    range: Range | None
    waterfall: tuple[Part, ...]

    @property
    def difference_s(self) -> float:
        """Seconds a step of the second less the first's."""
        return self.own.step_time_s - self.reference.step_time_s

    @property
    def modes(self) -> tuple[str, str]:
        """What the two figures are."""
        return self.reference.run.mode, self.own.run.mode


@dataclass(frozen=True)
class Comparison:
    """Pairs whose intervals hold together at `LEVEL`, and what is to be known about them."""

    pairs: tuple[Pair, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]


def comparison(chosen: Sequence[StoredRun | StoredStack], *, anyway: bool = False) -> Comparison:
    """Compare what the user chose. Raises OrchError E640 for a single stack, E644 for what cannot be compared.

    A stack that comes first is what all others are compared with. A run that comes first is compared stack by stack with
    the runs that follow, and alone with its own baseline. Runs differ too much when model, cluster, batch, number of
    workers or mode differ; `anyway` compares them all the same, and says so.
    """
    couples = _couples(chosen)
    differences = tuple(dict.fromkeys(text for couple in couples for text in _differences(*couple)))
    if differences and not anyway:
        raise OrchError(
            f"these cannot be compared: {'; '.join(differences)}",
            code="E644",
            hint="a difference would not be the stacks' alone; --anyway compares them all the same",
        )
    pairs = tuple(_pair(reference, own, len(couples)) for reference, own in couples)
    return Comparison(pairs, differences, tuple(_notes(pairs)))


def _couples(chosen: Sequence[StoredRun | StoredStack]) -> list[tuple[StoredStack, StoredStack]]:
    first, *rest = chosen
    if isinstance(first, StoredStack):
        reference = first
        others = [stack for one in rest for stack in ([one] if isinstance(one, StoredStack) else one.stacks.values())]
        couples = [(reference, other) for other in others if other.label != reference.label]
    elif not rest:
        reference = first.stack(first.baseline)
        couples = [(reference, other) for other in first.stacks.values() if other.name != reference.name]
    else:
        couples = [couple for other in rest for couple in _alike(first, other)]
    if not couples:
        raise OrchError(
            "there is nothing to compare with", code="E640", hint="name two stacks: orch compare last:ddp last:dear"
        )
    return list({(left.label, right.label): (left, right) for left, right in couples}.values())


def _alike(first: StoredRun, other: StoredRun | StoredStack) -> list[tuple[StoredStack, StoredStack]]:
    if isinstance(other, StoredStack):
        return [(first.stack(other.name), other)]
    shared = [name for name in first.stacks if name in other.stacks]
    if not shared:
        names = f"{', '.join(first.stacks)} and {', '.join(other.stacks)}"
        message = f"runs {first.id} and {other.id} share no stack: they have {names}"
        raise OrchError(message, code="E640", hint=f"name two: orch compare {first.id}:STACK {other.id}:STACK")
    return [(first.stacks[name], other.stacks[name]) for name in shared] if first.id != other.id else []


def _differences(left: StoredStack, right: StoredStack) -> list[str]:
    """Return in what the runs of two stacks differ that a comparison of stacks must hold equal."""
    one, two = left.run, right.run
    found = []
    if one.directory.path != two.directory.path:
        if one.mode != two.mode:
            found.append(f"{one.id} is {one.mode} and {two.id} is {two.mode}")
        found += _unlike("model", one, two)
        if one.workers != two.workers:
            found.append(f"workers: {one.workers} in {one.id}, {two.workers} in {two.id}")
        else:
            found += _unlike("cluster", one, two)
    batches = one.batch_per_worker(left.name), two.batch_per_worker(right.name)
    if batches[0] != batches[1]:
        found.append(f"batch per worker: {batches[0]} in {left.label}, {batches[1]} in {right.label}")
    return found


def _unlike(key: str, one: StoredRun, two: StoredRun) -> list[str]:
    left, right = one.recipe.get(key), two.recipe.get(key)
    if left == right:
        return []
    path, values = next(_leaf_differences(left, right), ("", (left, right)))
    return [f"{key}{path}: {_short(values[0])} in {one.id}, {_short(values[1])} in {two.id}"]


def _leaf_differences(left: Any, right: Any, path: str = "") -> Any:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in dict.fromkeys([*left, *right]):
            yield from _leaf_differences(left.get(key), right.get(key), f"{path}.{key}")
    elif left != right:
        yield path, (left, right)


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _pair(reference: StoredStack, own: StoredStack, comparisons: int) -> Pair:
    times = reference.block_times_s, own.block_times_s
    speedup, band, paired = None, None, False
    if reference.run.simulated and own.run.simulated:
        band = _range(reference, own)
    elif all(times):
        shared = [key for key in times[0] if key in times[1]]
        paired = reference.run.directory.path == own.run.directory.path and bool(shared)
        if paired:
            one, two = ([found[key] for key in shared] for found in times)
            speedup = compare(one, two, LEVEL, comparisons, reference.label)
        else:
            one, two = (list(found.values()) for found in times)
            speedup = compare_apart(one, two, LEVEL, comparisons, reference.label)
    return Pair(reference, own, paired, speedup, band, _waterfall(reference, own))


def _waterfall(reference: StoredStack, own: StoredStack) -> tuple[Part, ...]:
    """Return the classes' changes, which add up to the difference of the step times, rounding included."""
    before, after = _scaled(reference), _scaled(own)
    if not before or not after:
        return ()
    parts = [Part(name, before.get(name, 0.0), after.get(name, 0.0)) for name in ordered([*before, *after])]
    missing = (own.step_time_s - reference.step_time_s) - math.fsum(part.change_s for part in parts)
    last = parts[-1]
    return (*parts[:-1], replace(last, own_s=last.own_s + missing))  # some 1e-18 s of rounding


def _scaled(stack: StoredStack) -> dict[str, float]:
    """Return a breakdown as parts of the step time: results of an unfinished run may have been of fewer blocks."""
    whole = math.fsum(stack.breakdown_s.values())
    return {name: part / whole * stack.step_time_s for name, part in stack.breakdown_s.items()} if whole > 0 else {}


def _range(reference: StoredStack, own: StoredStack) -> Range:
    """Simulate both plans at every corner of what their inputs leave open: both stacks meet the same cluster there."""
    ratios = []
    for signs in product((-1, 1), repeat=3):
        times = []
        for stack in (reference, own):
            cluster = stack.run.cluster
            largest = max((task.op.nbytes for step in stack.plan.steps for task in step), default=0)
            bands = cluster.bands(nbytes=largest)
            low_high = zip((bands.start_up, bands.per_byte, bands.compute), signs, strict=True)
            scaled = cluster.scaled(*((1 + band) ** sign for band, sign in low_high))
            times.append(simulate(stack.plan, scaled).step_time_s)
        ratios.append(times[0] / times[1])
    middle = reference.step_time_s / own.step_time_s
    return Range(middle, min(*ratios, middle), max(*ratios, middle))


def _notes(pairs: Sequence[Pair]) -> list[str]:
    notes = []
    if any(not pair.paired and pair.speedup is not None for pair in pairs):
        notes.append(
            "different runs share no blocks: the interval (Welch) holds the noise inside each run, not what changed "
            "between them, such as time of day or load"
        )
    if any(len(set(pair.modes)) > 1 for pair in pairs):
        notes.append("a simulated and a measured figure are compared: the difference holds the simulation's error")
    bare = dict.fromkeys(stack.label for pair in pairs for stack in (pair.reference, pair.own) if not stack.breakdown_s)
    if bare:
        notes.append(f"no record of where the time went: {', '.join(bare)}")
    return notes


def document(found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON data, times in seconds."""
    return {
        "modes": sorted({mode for pair in found.pairs for mode in pair.modes}),
        "level": LEVEL,
        "comparisons": len(found.pairs),
        "differences": list(found.differences),
        "notes": list(found.notes),
        "pairs": [_pair_document(pair) for pair in found.pairs],
    }


def _pair_document(pair: Pair) -> dict[str, Any]:
    speedup: dict[str, Any] | None = None
    if pair.speedup is not None:
        speedup = pair.speedup.to_json() | {"paired": pair.paired}
    elif pair.range is not None:
        speedup = {
            "over": pair.reference.label, "median": pair.range.median, "lo": pair.range.lo, "hi": pair.range.hi, "level": None,
            "n": 0, "method": "simulated; range over the bands of the inputs", "distinguishable": None, "paired": True,
        }  # fmt: skip
    return {
        "reference": _side(pair.reference),
        "own": _side(pair.own),
        "difference_s": pair.difference_s,
        "speedup": speedup,
        "waterfall": [
            {"class": title(part.name), "reference_s": part.reference_s, "own_s": part.own_s, "change_s": part.change_s}
            for part in pair.waterfall
        ],
    }


def _side(stack: StoredStack) -> dict[str, Any]:
    return {
        "run": stack.run.id,
        "stack": stack.name,
        "mode": stack.run.mode,
        "workers": stack.run.workers,
        "step_time_s": stack.step_time_s,
        "blocks": len(stack.block_times_s),
        "lossless": stack.lossless,
    }
