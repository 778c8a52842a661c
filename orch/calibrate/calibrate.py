"""Measure a cluster: every world that is asked for, the smaller ones to find out how well they predict the largest.

Nothing is fitted for a single case: links are tables, what computing and communicating cost one another is measured, and
carrying a table to another size goes by the counts of the collective's algorithm.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import yaml

from orch.calibrate.backtest import Residual, backtest
from orch.calibrate.device import DeviceRates, measure_device
from orch.errors import OrchError
from orch.experiment.predict import Inputs, predict
from orch.experiment.show import Show
from orch.gang import make_gang
from orch.gang.machine import part_of_cores
from orch.recipe import Recipe, load

if TYPE_CHECKING:
    from orch.cluster import Cluster, Link

LARGEST_BYTES = 1 << 26
# Seconds a world's links may take; what takes longer than `LONGEST_S` a collective is left out, largest first.
LINKS_S, LONGEST_S = 25.0, 2.0


@dataclass(frozen=True)
class Asked:
    """What to calibrate. `nodes` are the worlds, in nodes of a cluster of several, else in ranks; empty: powers of two."""

    cluster: str
    on: str
    model: str = "resnet-digits"
    data: str = "digits8"
    batch: int = 32
    techniques: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calibration:
    """What was found: the cluster as its largest world measured it, the links of every world, layer times of the model,
    and how far off the smaller worlds' links were when carried to the largest.
    """

    inputs: Inputs
    worlds: Mapping[int, Cluster]
    rates: DeviceRates
    residuals: tuple[Residual, ...]

    @property
    def cluster(self) -> Cluster:
        """The calibrated cluster: measurements of all worlds, the rest from the largest."""
        inner = [world.links.intra for world in self.worlds.values() if world.nodes == 1 and world.links.intra]
        outer = [world.links.inter for world in self.worlds.values() if world.nodes > 1 and world.links.inter]
        return self.inputs.cluster.with_links(_together(inner), _together(outer))

    @property
    def error(self) -> float | None:
        """The median of the back-test's absolute errors; None where there was no smaller world."""
        return median(abs(one.error) for one in self.residuals) if self.residuals else None


def _together(links: Sequence[Link]) -> Link | None:
    return replace(links[-1], measured=tuple(one for link in links for one in link.measured)) if links else None


def calibrate(asked: Asked, show: Show) -> Calibration:
    """Measure every world of `asked` and return what was found. Raises OrchError for what cannot be run."""
    from orch.experiment.invoke import HERE, gang_settings, refuse_gang
    from orch.experiment.measure import Measurements, subject_of
    from orch.runtime import session

    whole = _recipe(asked)
    refuse_gang(whole, asked.on)
    clusters: dict[int, Cluster] = {}
    asked_for = _worlds(asked, whole.cluster)
    for count, key in asked_for:
        recipe = _recipe(asked, key)
        size = recipe.cluster.world_size
        show.stage(f"{size} workers: compute, the runtime's own work, collectives up to 64 MiB")
        # On one machine a small world would have more of it a worker: another machine, of which the largest is no larger one.
        share = part_of_cores(count, asked_for[-1][0]) if asked.on in HERE else nullcontext()
        with share, make_gang(asked.on, size, **gang_settings(recipe, asked.on, None)) as gang:
            subjects = {name: subject_of(recipe, name) for name in recipe.stacks}
            gang.call(session.prepare, subjects[recipe.baseline.name])
            found = Measurements(recipe, gang, subjects)
            found.round(LARGEST_BYTES, LINKS_S, LONGEST_S)
            inputs = found.inputs()
            forecast = predict(recipe, inputs)
            found.operations({name: stack.plan for name, stack in forecast.stacks.items()})
            inputs = found.inputs()
            rates = measure_device(gang)
        clusters[count] = inputs.cluster
    return Calibration(inputs, clusters, rates, backtest(list(clusters.values())))


def _worlds(asked: Asked, cluster: Cluster) -> list[tuple[int, str]]:
    """Return the worlds to measure, smallest first, each with the override that makes it."""
    several = cluster.nodes > 1
    key = "cluster.nodes" if several else "cluster.devices_per_node"
    most = cluster.nodes if several else cluster.devices_per_node
    counts = sorted(set(asked.nodes)) or sorted({most, *(1 << power for power in range(most.bit_length()))})
    if counts[0] < 1 or counts[-1] > most:
        unit = "nodes" if several else "ranks on its one node"
        message = f"--nodes {','.join(map(str, asked.nodes))}: {cluster.name} has 1 to {most} {unit}"
        raise OrchError(message, code="E690", hint=f"for example --nodes {','.join(map(str, _some(most)))}")
    per_node = cluster.devices_per_node if several else 1
    measurable = [count for count in counts if count * per_node > 1]
    if not measurable:
        raise OrchError(
            f"cluster {cluster.name}: a world of one rank has no links to measure",
            code="E690",
            hint="give more --nodes",
        )
    return [(count, f"{key}={count}") for count in measurable]


def _some(most: int) -> list[int]:
    return sorted({most, max(1, most // 2)})


def _recipe(asked: Asked, *overrides: str) -> Recipe:
    """Return the recipe whose warm-up measures what is asked for."""
    name = asked.cluster
    text = yaml.safe_dump(
        {
            "orch": 1,
            "name": "calibrate",
            "model": asked.model,
            "data": asked.data,
            "train": {"batch_per_worker": asked.batch, "optimizer": {"sgd": {"lr": 0.01}}},
            "cluster": str(Path(name).resolve()) if Path(name).is_file() else name,
            "stacks": {"plain": ["wfbp"], **{technique: [technique] for technique in asked.techniques}},
            "baseline": "plain",
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibrate.yaml"
        path.write_text(text, encoding="utf-8")
        # A world's own size takes the place of the size that was asked for.
        made = {override.partition("=")[0] for override in overrides}
        try:
            return load(path, [*overrides, *(one for one in asked.overrides if one.partition("=")[0] not in made)])
        except OrchError as error:
            if error.where is None or path.parent.name not in error.where.source:
                raise
            # What is wrong stands on the command line; nobody finds a place in a file that is gone.
            raise OrchError(error.message, code=error.code, hint=error.hint) from None
