"""What a run depended on besides its recipe: code, packages, hardware, threads. Nothing of it is imported."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import orch
from orch.track.redact import redact, redact_source, redact_text

DIFF_LIMIT_BYTES = 4 * 2**20
_PREFIXES = ("OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "CUDA_", "NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "RAY_",
             "SLURM_", "PYTHONHASHSEED")  # fmt: skip


def collect(project: Path) -> tuple[dict[str, object], str]:
    """Return the facts, ready for JSON, and the diff of the user's project against its commit (may be empty)."""
    git, diff = project_git(project)
    facts: dict[str, object] = {
        "orch": orch.__version__,
        "python": sys.version.split()[0],
        "python_implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "project": git,
        "packages": list(packages()),
        "hardware": hardware(),
        "variables": variables(),
    }
    return facts, diff


def project_git(project: Path) -> tuple[dict[str, object], str]:
    """Return commit, branch, whether the tree differs, untracked files; and the diff. Empty outside a repository."""
    commit = _git(project, "rev-parse", "HEAD")
    if commit is None:
        return {}, ""
    diff = _git(project, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv") or ""
    untracked = (_git(project, "ls-files", "--others", "--exclude-standard") or "").splitlines()
    facts: dict[str, object] = {
        "commit": commit.strip(),
        "branch": (_git(project, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "remote": redact_text((_git(project, "remote", "get-url", "origin") or "").strip()),
        "dirty": bool(diff) or bool(untracked),
        "untracked": untracked[:200],
        "untracked_count": len(untracked),
    }
    if len(diff) > DIFF_LIMIT_BYTES:
        facts["diff_truncated_from_bytes"] = len(diff)
        diff = diff[:DIFF_LIMIT_BYTES]
    return facts, redact_source(diff)


@cache
def packages() -> tuple[str, ...]:
    """Return what is installed as `name==version`, sorted: a lock that pip reads."""
    found = {(d.metadata["Name"] or "").lower(): d.version for d in importlib.metadata.distributions()}
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()) if name)


@cache
def hardware() -> dict[str, object]:
    """Return processor model, usable and present cores, memory in bytes, GPUs with memory and driver."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": affinity,
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(),
    }


def variables() -> dict[str, object]:
    """Return the environment variables that change how training runs; nothing else is recorded."""
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)}
    return {name: redact(value, name) for name, value in chosen.items()}


def _git(project: Path, *arguments: str) -> str | None:
    # Neither locks nor prompts, and a repository too large to diff quickly does not hold a run up.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(project), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=20, check=False, env=environment, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", errors="backslashreplace") if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _gpus() -> list[dict[str, str]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [dict(zip(("name", "memory", "driver"), row, strict=True)) for row in rows if len(row) == 3]
