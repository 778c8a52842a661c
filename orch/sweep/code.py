"""What a cell hangs on beside its recipe: the techniques' source, versions of libraries, and the machines."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import orch
from orch import registry
from orch.recipe import Recipe

_LIBRARIES = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


def sources(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Return the source of every technique of the recipe's stacks: technique -> file name -> text."""
    names = sorted({member.name for stack in recipe.stacks.values() for member in stack.members})
    return {name: dict(_files(registry.technique(name).rewrite.__module__)) for name in names}


def digests(texts: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return a digest of every technique's source."""
    return {name: _digest(part for file in files.items() for part in file) for name, files in texts.items()}


def versions(mode: str) -> dict[str, str]:
    """Return versions of what runs a trial; torch is not loaded. A simulation hangs on orch alone."""
    found = {"orch": orch.__version__}
    for name in _LIBRARIES if mode != "simulated" else ():
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machines(on: str | None, here: bool) -> dict[str, Any]:
    """Return what tells the machines of measured trials apart: this one's processor, or the address of a cluster."""
    if on is None:
        return {}
    if not here:
        return {"at": on}
    return {"at": "here", "processor": _processor(), "cores": len(os.sched_getaffinity(0))}


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    line = next((line for line in text.splitlines() if line.startswith("model name")), "")
    return line.partition(":")[2].strip() or platform.machine()


def _files(module: str) -> Iterable[tuple[str, str]]:
    """Yield a technique's module and the modules of its package that it imports, wherever in it, and they in turn."""
    package = module.partition(".")[0]
    imported = re.compile(rf"^\s*(?:from|import) ({re.escape(package)}(?:\.\w+)+)", re.MULTILINE)
    left, seen = [module], set[str]()
    while left:
        name = left.pop()
        spec = importlib.util.find_spec(name) if name not in seen else None
        seen.add(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        path = Path(spec.origin)
        text = path.read_text(encoding="utf-8", errors="replace")
        yield path.name, text
        left += imported.findall(text)


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()[:16]
