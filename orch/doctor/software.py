"""Python, torch and Ray (each loaded in a process of its own), and the store of runs."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orch
from orch.doctor.finding import Finding, lacking, noted, ok
from orch.track import settings
from orch.track.redact import redact_text

_LOADS_WITHIN_S = 60.0
_ANSWERS_WITHIN_S = 1.0
INSTALL = "pip install 'orch[run]'"
_TORCH = """
import json, torch, torch.distributed as d
cuda = torch.cuda.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "devices": names, "distributed": d.is_available(),
  "gloo": d.is_available() and d.is_gloo_available(), "nccl": d.is_available() and d.is_nccl_available()}))
"""
_RAY = "import json, ray; print(json.dumps({'version': ray.__version__}))"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a library said of itself when it was loaded in a process of its own; `error` when it was not."""

    name: str
    facts: dict[str, Any]
    error: str = ""

    @property
    def works(self) -> bool:
        """Whether it loads."""
        return not self.error


def load_torch() -> Loaded:
    """Load torch in a process of its own."""
    return _load("torch", _TORCH)


def load_ray() -> Loaded:
    """Load Ray in a process of its own."""
    return _load("ray", _RAY)


def _load(name: str, program: str) -> Loaded:
    if not _installed(name):
        return Loaded(name, {}, "not installed")
    try:
        # -P: a file of that name in the working directory is not what a worker loads.
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            text=True,
            timeout=_LOADS_WITHIN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return (
            Loaded(name, json.loads(done.stdout.splitlines()[-1]))
            if done.returncode == 0
            else Loaded(name, {}, _last(done.stderr))
        )
    except subprocess.TimeoutExpired:
        return Loaded(name, {}, f"does not load within {_LOADS_WITHIN_S:.0f} s")
    except (OSError, ValueError, IndexError) as error:
        return Loaded(name, {}, str(error))


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"does not load: {lines[-1]}" if lines else "does not load"


def python() -> Finding:
    """Look at this Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    where = sys.prefix if sys.prefix != sys.base_prefix else f"{sys.prefix}, no virtual environment"
    return ok("python", f"{version} ({where}); orch {orch.__version__}")


def torch(loaded: Loaded) -> Finding:
    """Say what torch can do."""
    facts = loaded.facts
    if not loaded.works:
        return lacking("torch", loaded.error, "nothing can be run, only planned and simulated", INSTALL)
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU build"
    text = f"{facts['version']}, {build}, {'gloo' if facts['gloo'] else 'no gloo'}{', nccl' * facts['nccl']}"
    if not facts["gloo"]:
        return lacking(
            "torch", text, "workers cannot meet without gloo", "install a torch with torch.distributed and gloo"
        )
    return ok("torch", text)


def ray(loaded: Loaded) -> Finding:
    """Say which Ray is installed, and whether somebody's runs on this machine."""
    if not loaded.works:
        return lacking(
            "ray", loaded.error, "no --on local, emulate or ADDRESS", f"{INSTALL}, or --on processes or torchrun"
        )
    running = running_ray()
    there = f"; one runs on this machine: --on {running}" if running else ""
    return ok("ray", f"{loaded.facts['version']}{there}")


def running_ray() -> str:
    """Return the address of a Ray that `ray start` left running on this machine, empty if there is none."""
    try:
        address = (Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster").read_text("utf-8").strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN_S).close()
    except (OSError, ValueError, OverflowError):
        return ""
    return address


def store(runs: Path) -> Finding:
    """Look at the index of runs, without making one."""
    index = settings.store_of(runs)
    shown = redact_text(index.uri)
    if not _installed("mlflow"):
        return noted("mlflow", "not installed", "runs are kept, but no browser shows them", INSTALL)
    version = importlib.metadata.version("mlflow")
    if index.file is not None:
        return _database(index.file, f"{version}, {shown}")
    if index.uri.startswith("http"):
        place = urlsplit(index.uri)
        try:
            port = place.port or (443 if place.scheme == "https" else 80)
            socket.create_connection((place.hostname or "", port), _ANSWERS_WITHIN_S).close()
        except (OSError, ValueError) as error:
            fix = f"start it, or unset {settings.STORE_VARIABLE}"
            return noted("mlflow", f"{version}; {shown} does not answer ({error})", "runs are indexed later", fix)
    return ok("mlflow", f"{version}, {shown}")


def _database(file: Path, found: str) -> Finding:
    if not file.exists():
        return ok("mlflow", f"{found} (the first run makes it)")
    try:
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=_ANSWERS_WITHIN_S)
        try:
            rows = connection.execute("select count(*) from runs").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        return lacking("mlflow", f"{found} cannot be read: {error}", "orch ui and the index fail", "orch runs fix")
    return ok("mlflow", f"{found}, {rows} entries")


def git() -> Finding:
    """Look for git."""
    path = shutil.which("git")
    return ok("git", path) if path else noted("git", "not found", "a run cannot say which commit it ran", "install git")
