"""A run as a plain directory that can be copied anywhere: `<root>/<recipe name>/<id>/`.

    run.json           what was started: recipe name, mode, stacks with their folders, seeds, command line
    state.json         queued, running, done, failed, killed or interrupted; pid, host, times
    recipe.yaml        the resolved recipe; origins.json says where each value came from
    environment.json   code, packages, hardware, links, seeds, threads; project.diff beside it
    inputs.json        what the predictions of a real run computed with: its links, its layer times
    stacks/<name>/     plan.json, trace.json, steps.seed0.csv, values.seed0.csv, ...
    trace.json         all ranks of a real run on one clock, beside what was predicted, for ui.perfetto.dev
    trials.jsonl       of a sweep: what came of each trial, a line each; trials/<number>/ of one that really ran
    figures/           every figure with the CSV it was drawn from
    logs/rank0.log     one per rank, and driver.log
    results.json       written once, at the end

Whole files are replaced in one step; step files are only appended to. Paths inside these files are relative.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import yaml

from orch.track import encoding, reserve, state
from orch.track.redact import redact, redact_command, redact_source

FORMAT = 1
TRIALS = "trials.jsonl"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]{4}")
_UNSAFE = re.compile(r"[^\w.+@=,-]+")
_SLUG_BYTES = 80


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a run when it starts. `mode` is simulated, emulated or measured."""

    recipe: str
    mode: str
    stacks: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    baseline: str | None = None
    command: tuple[str, ...] = ()
    origin: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of one run. Reading a damaged or unfinished one never raises: what is missing reads as empty."""

    path: Path

    @property
    def id(self) -> str:
        """The name of the directory: UTC time of its making, then four characters that tell two runs apart."""
        return self.path.name

    @property
    def facts(self) -> dict[str, object]:
        """What `run.json` says."""
        return encoding.read_json(self.path / "run.json")

    @property
    def state(self) -> state.State | None:
        """The state as written; `state.settle` makes it true."""
        return state.read(self.path)

    @property
    def results(self) -> dict[str, object]:
        """What `results.json` says; empty until the run is done."""
        return encoding.read_json(self.path / "results.json")

    @property
    def recipe_name(self) -> str:
        """The recipe's own name, which the folder only approximates."""
        return str(self.facts.get("recipe", self.path.parent.name))

    def stack_folders(self) -> dict[str, Path]:
        """Return, by stack name, the folder of its files."""
        folders = self.facts.get("stacks")
        if not isinstance(folders, dict):
            return {}
        return {str(name): self.path / "stacks" / slug(str(folder)) for name, folder in folders.items()}

    def log(self, rank: int | None) -> Path:
        """Return the path of a rank's log, or of the driver's."""
        return self.path / "logs" / ("driver.log" if rank is None else f"rank{rank}.log")

    def logs(self) -> list[Path]:
        """Return the logs there are: the driver's, then the ranks' in number order."""
        return sorted(self.path.glob("logs/*.log"), key=lambda path: (_rank_of(path) is not None, _rank_of(path) or 0))

    def write_json(self, name: str, value: object) -> None:
        """Replace a file of the run by `value`, secrets removed."""
        encoding.write_json(self.inside(name), redact(_plain(value)))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the run for this process alone. BlockingIOError: another one has it."""
        handle = os.open(self.path / "recipe.yaml", os.O_RDONLY)  # which is never replaced
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(handle)

    def inside(self, name: str) -> Path:
        """Return the path of `name` in this directory. Raises ValueError for a name that leads out of it."""
        inner = Path(os.path.normpath(name))
        if inner.is_absolute() or not inner.parts or inner.parts[0] == "..":
            raise ValueError(f"{name!r} is not a file of a run")
        return self.path / inner


def create(root: Path, facts: Facts) -> RunDirectory:
    """Make the directory of a new run, queued and owned by this process. Raises OSError when the root refuses, and leaves
    nothing then.
    """
    parent = root.resolve() / slug(facts.recipe)
    parent.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(_claim(parent))
    try:
        state.write(directory.path, state.new())
        data = asdict(facts) | {
            "format": FORMAT,
            "id": directory.id,
            "stacks": _folders(facts.stacks),
            "command": redact_command(facts.command),
            "extra": redact(facts.extra),
        }
        encoding.write_json(directory.path / "run.json", data)
        reserve.take(directory.path)
    except OSError:
        shutil.rmtree(directory.path, ignore_errors=True)
        raise
    return directory


def reopen(run: RunDirectory) -> None:
    """Take up a run that ended: queued again, owned by this process; `run.json` keeps how it had ended."""
    reserve.take(run.path)
    before = run.state or state.new()
    ended = {"status": before.status, "reason": before.reason, "ended_s": before.ended_s, "host": before.owner.host}
    facts = run.facts
    earlier = facts.get("ended_before")
    encoding.write_json(
        run.path / "run.json", facts | {"ended_before": [*(earlier if isinstance(earlier, list) else []), ended]}
    )
    state.write(run.path, state.reopened(before))


def write_recipe(directory: RunDirectory, resolved: Mapping[str, object], origins: Mapping[str, object]) -> None:
    """Keep the resolved recipe as YAML and, per value, where it came from; secrets removed from both."""
    plain = recorded(resolved)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    encoding.write_text(directory.path / "recipe.yaml", text)
    encoding.write_json(directory.path / "origins.json", redact({key: str(value) for key, value in origins.items()}))


def recorded(resolved: Mapping[str, object]) -> object:
    """Return a resolved recipe as a run keeps it: plain data without secrets."""
    return redact(_plain(resolved))


def write_diff(directory: RunDirectory, diff: str) -> None:
    """Keep the difference of the user's project from its commit, secrets removed; no file when there is none."""
    if diff:
        encoding.write_text(directory.path / "project.diff", redact_source(diff))


def read_recipe(directory: RunDirectory) -> dict[str, object]:
    """Return the resolved recipe of a run, empty when it is absent or damaged."""
    try:
        value = yaml.safe_load((directory.path / "recipe.yaml").read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def find_all(root: Path) -> Iterator[RunDirectory]:
    """Return every run under `root`, oldest first. Other files and folders there are left alone."""
    found = [
        run
        for recipe in _folders_of(root)
        if not recipe.name.startswith(".")
        for run in _folders_of(recipe)
        if _ID.fullmatch(run.name)
    ]
    yield from (RunDirectory(path) for path in sorted(found, key=lambda path: (path.name, path.parent.name)))


def slug(name: str) -> str:
    """Return a file name for any text: itself when it is harmless, else a readable part and a digest of the whole."""
    safe = _UNSAFE.sub("-", name).strip("-") or "x"
    cut = safe.encode()[:_SLUG_BYTES].decode(errors="ignore")
    if cut == name and not name.startswith(".") and not name.endswith((".", " ")):
        return name
    return f"{cut.strip('.-') or 'x'}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def _folders(stacks: Sequence[str]) -> dict[str, str]:
    # Two stacks `A` and `a` are one folder on some disks; the copy of a run must survive there too.
    folders: dict[str, str] = {}
    taken: set[str] = set()
    for name in stacks:
        folder = slug(name)
        if folder.casefold() in taken:
            folder = f"{folder}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        taken.add(folder.casefold())
        folders[name] = folder
    return folders


def _claim(parent: Path) -> Path:
    """Make a directory nobody else has: mkdir decides between two runs that begin at once."""
    while True:
        now = time.time_ns()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 10**9))
        fraction = now % 10**9 * 36**2 // 10**9
        chance = int.from_bytes(os.urandom(2), "big") % 36**2
        path = parent / f"{stamp}-{_base36(fraction)}{_base36(chance)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _base36(number: int) -> str:
    return _DIGITS[number // 36] + _DIGITS[number % 36]


def _folders_of(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _rank_of(path: Path) -> int | None:
    match = re.fullmatch(r"rank(\d+)", path.stem)
    return int(match[1]) if match else None


def _plain(value: object) -> object:
    """Return `value` as mappings, lists and scalars; floats keep their NaN, which YAML and our JSON both know."""
    return encoding.decode(encoding.encode(value))
