"""What a run wants of whoever starts it: so many nodes, so many workers on each, and the command line to run there."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orch.errors import OrchError, did_you_mean, quoted
from orch.recipe import Recipe

WAYS = ("slurm", "kuberay")
_KEY = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True)
class Job:
    """`command`: the words after `orch`, without `--on`. `settings`: what the user said about the job, by key."""

    name: str
    nodes: int
    per_node: int
    gpu: bool
    command: tuple[str, ...]
    runs: Path
    python: str = sys.executable
    settings: Mapping[str, str] = field(default_factory=dict)


def job_of(recipe: Recipe, asked: str, overrides: Sequence[str], runs: Path, settings: Sequence[str]) -> Job:
    """Return the job of a recipe, which was asked for by the name or path `asked`. OrchError: a setting is no KEY=VALUE."""
    cluster = recipe.cluster
    return Job(
        name=re.sub(r"[^a-z0-9]+", "-", recipe.name.lower()).strip("-")[:40].rstrip("-") or "run",
        nodes=cluster.nodes,
        per_node=cluster.devices_per_node,
        gpu=cluster.device.kind == "gpu",
        command=("run", asked, *overrides),
        runs=runs,
        settings=dict(_setting(text) for text in settings),
    )


def known(job: Job, allowed: Sequence[str], way: str) -> Mapping[str, str]:
    """Return the settings of a job. OrchError: one is not among those that `way` has."""
    for key in job.settings:
        if key not in allowed:
            hint = "; ".join(filter(None, [did_you_mean(key, allowed), f"{way} has {', '.join(allowed)}"]))
            raise OrchError(f"--job {key}: {way} has no such setting", code="E727", hint=hint)
    return job.settings


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or _KEY.fullmatch(key) is None or not value or not value.isprintable():
        raise OrchError(f"--job {quoted(text)} is no KEY=VALUE", code="E727", hint="such as --job time=2:00:00")
    return key, value
