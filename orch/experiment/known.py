"""What a run computes its predictions with, measured by itself, or by an earlier run on workers of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orch.cluster import Cluster
from orch.experiment.measure import Measurements
from orch.experiment.predict import Inputs, optimizer_kind
from orch.models.profile import Profile
from orch.recipe import Recipe
from orch.runtime.session import Subject


@dataclass
class Known:
    """What the first warm-up has measured, for short runs on workers of one kind: the cluster, and layer times a kind of
    training. A run with it measures nothing again: its own figures stand, its predictions are those of the first.
    """

    cluster: Cluster | None = None
    trained: dict[tuple[object, ...], tuple[Profile, float | None]] = field(default_factory=dict)


def warm_up(known: Known | None, recipe: Recipe, subjects: Mapping[str, Subject], measured: Measurements) -> Inputs:
    """Return what predictions compute with: measured now, and added to `known`, or what `known` has of it."""
    # A learning rate takes no time; what an optimiser keeps for every parameter does.
    keys = {
        name: (str(one.model), str(one.data), one.batch, one.precision, optimizer_kind(recipe.stacks[name].train))
        for name, one in subjects.items()
    }
    if known is not None and known.cluster is not None and all(key in known.trained for key in keys.values()):
        found = {name: known.trained[key] for name, key in keys.items()}
        profiles = {name: profile for name, (profile, _) in found.items()}
        return Inputs(known.cluster, profiles, {name: update_s for name, (_, update_s) in found.items()})
    measured.round()
    inputs = measured.inputs()
    if known is not None:
        known.cluster = inputs.cluster
        known.trained |= {key: (inputs.profiles[name], inputs.update_s[name]) for name, key in keys.items()}
    return inputs
