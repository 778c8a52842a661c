"""Confirm advice: run the baseline and the first few stacks for real, and put what was measured beside what was said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.advise.advise import Advice, Advised
from orch.advise.space import written
from orch.errors import OrchError
from orch.experiment.invoke import Invocation, invoke
from orch.experiment.show import Show
from orch.recipe.overrides import parse_override

_WRITTEN_OUT = ("stacks", "techniques", "when")


@dataclass(frozen=True)
class Confirmed:
    """One stack as predicted and as measured."""

    name: str
    predicted: float
    measured: float
    lo: float | None
    hi: float | None
    distinguishable: bool

    @property
    def verdict(self) -> str:
        """Whether the run agrees that it is faster."""
        if not self.distinguishable:
            return "not distinguishable"
        return "confirmed" if self.measured > 1.0 else "refuted: it is slower"


@dataclass(frozen=True)
class Confirmation:
    """What a run says of the first stacks of an advice."""

    run_dir: str | None
    stacks: tuple[Confirmed, ...]


def confirm(
    advice: Advice, recipe: str, overrides: Sequence[str], count: int, on: str | None, runs: Path | None, show: Show
) -> Confirmation | None:
    """Run the baseline and the first `count` stacks of `advice`; None on a rank of torchrun that only works for rank 0.

    The run is the recipe with these stacks in place of its own: it lands beside other runs, and counts as a measured run
    when advice is asked for again. Raises OrchError E651 where nothing is worth a run.
    """
    chosen = [one for one in advice.ranked if one.verdict in ("faster", "inside the error")][:count]
    if not chosen:
        raise OrchError(
            "no stack is predicted to be faster, so none is measured", code="E651", hint="orch run measures all"
        )
    # What the user's overrides say of stacks and knobs is written out in the chosen stacks already.
    parsed = [parse_override(text, number) for number, text in enumerate(overrides, start=1)]
    others = [override.text for override in parsed if override.path[0] not in _WRITTEN_OUT]
    asked = Invocation(recipe, (*others, *_overrides(advice, chosen)), on=on, runs=runs)
    found = invoke(asked, show)
    return None if found is None else _confirmation(found, chosen)


def _overrides(advice: Advice, chosen: Sequence[Advised]) -> list[str]:
    """Return overrides that put the baseline and the chosen stacks in place of the recipe's, their knobs written out."""
    base = advice.recipe.baseline
    stacks = {base.name: written(base.members)} | {one.name: dict(one.candidate.written) for one in chosen}
    kept = {name: change.model_dump() for name, change in advice.recipe.spec.when.items() if name in stacks}
    return [
        f"stacks={json.dumps(stacks)}",
        "techniques={}",
        *([f"when={json.dumps(kept)}"] if advice.recipe.spec.when else []),
    ]


def _confirmation(found: dict[str, Any], chosen: Sequence[Advised]) -> Confirmation:
    stacks = []
    for one in chosen:
        gain = found["stacks"][one.name]["speedup"]
        stacks.append(
            Confirmed(one.name, one.gain.median, gain["median"], gain["lo"], gain["hi"], bool(gain["distinguishable"]))
        )
    return Confirmation(found["run_dir"], tuple(stacks))
