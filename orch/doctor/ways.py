"""Which values of `--on` work on this machine, and why the others do not."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from orch.doctor.finding import Way
from orch.doctor.network import Shaping
from orch.doctor.software import INSTALL, Loaded, running_ray
from orch.launch import WAYS as SUBMITTED
from orch.recipe.schema import WAYS


def ways(torch: Loaded, ray: Loaded, shaping: Shaping) -> list[Way]:
    """Return every way to reach workers that this orch knows, an address last."""
    judged: dict[str, Callable[[], Way | None]] = {
        "local": lambda: _needs("local", torch, ray),
        "emulate": lambda: _needs("emulate", torch, ray) or _emulate(shaping),
        "torchrun": lambda: _needs("torchrun", torch),
        "slurm": lambda: _submits("slurm", "sbatch"),
        "kuberay": lambda: None,
    }
    about = {
        "inline": "one worker in this process",
        "processes": "workers of this machine, without Ray",
        "local": "a Ray of our own on this machine",
        "emulate": "nodes of our own in network namespaces, their links shaped",
        "torchrun": "a world that torchrun or srun made",
        "slurm": "a batch job of Slurm",
        "kuberay": "a RayJob for KubeRay, printed",
    }
    found = [
        judged.get(name, lambda name=name: _needs(name, torch))() or Way(name, True, about[name])
        for name in (*WAYS, *SUBMITTED)
    ]
    cluster = _needs("ADDRESS", torch, ray)
    running = running_ray()
    there = f"; one runs here: {running}" if running else ""
    return [*found, cluster or Way("ADDRESS", True, f"HOST:PORT or ray://HOST:PORT of a Ray cluster{there}")]


def _needs(name: str, *libraries: Loaded) -> Way | None:
    """Return why `name` does not work for want of a library, None where all are there."""
    for library in libraries:
        if not library.works:
            return Way(name, False, f"{library.name}: {library.error}", INSTALL)
    return None


def _emulate(shaping: Shaping) -> Way | None:
    return None if shaping.missing is None else Way("emulate", False, *shaping.missing)


def _submits(name: str, program: str) -> Way | None:
    if shutil.which(program) is not None:
        return None
    return Way(name, False, f"no {program} here: --print shows what would be submitted", "call it on a login node")
