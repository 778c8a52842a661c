"""What an index says of a run directory: its parts with their tags, parameters and metrics, within MLflow's limits.

Pure reading and naming; nothing here knows MLflow's client. Times of metrics are the run's start plus the stack's own
clock, so that MLflow's axis "relative time" shows every stack on its own clock.
"""

from __future__ import annotations

import getpass
import hashlib
import math
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import orch
from orch.track import directory, encoding
from orch.track import steps as step_files
from orch.track.directory import RunDirectory
from orch.track.state import State, Status

RUN = "run"
_KEY_CHARACTERS = 250
_PARAM_CHARACTERS = 6000
_TAG_CHARACTERS = 5000
_NAME_CHARACTERS = 240
_UNSAFE_IN_KEY = re.compile(r"[^\w\-. /]")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric; `time_ms` counts from 1970."""

    key: str
    value: float
    time_ms: int
    step: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run that gets an entry: the run, one of its stacks, or one seed of a stack.

    `content` changes whenever the files behind the part do, so an entry that carries it need not be written again.
    """

    key: str
    name: str
    parent: str
    folder: Path
    tags: Mapping[str, str]
    params: Mapping[str, str]
    content: str
    results: Mapping[str, object] = field(default_factory=dict)
    steps: Path | None = None
    values: Path | None = None
    status: Status | None = None  # its own end, where that is not the run's

    def read(self) -> tuple[list[step_files.Step], list[step_files.Value]]:
        """Return the steps and values of the part, none for one that has no files of its own."""
        return (
            step_files.read_steps(self.steps) if self.steps else [],
            step_files.read_values(self.values) if self.values else [],
        )


def parts(run: RunDirectory, state: State) -> list[Part]:
    """Return the parts of a run, parents before children."""
    facts, results, recipe = run.facts, run.results, directory.read_recipe(run)
    seeds = [int(seed) for seed in _sequence(facts.get("seeds"))] or [0]
    tags = {
        "orch.id": run.id,
        "orch.mode": str(facts.get("mode", "")),
        "orch.run_dir": str(run.path),
        "orch.state": state.status,
        "orch.version": orch.__version__,
    }
    by_stack = _mapping(results.get("stacks"))
    gains = {f"gain/{name}": value for name, value in _gains(by_stack)}
    whole = Part(
        key=RUN,
        name=run.id,
        parent="",
        folder=run.path,
        tags=_tags(tags | {"orch.part": RUN, "orch.reason": state.reason} | _source(run)),
        params=params(recipe),
        content=_content(state, results),
        results={key: value for key, value in results.items() if key not in ("stacks", "trials")} | gains,
    )
    found = [whole]
    found += _trials(run, tags)
    for name, folder in run.stack_folders().items():
        own = {"stack": name, "knobs": _mapping(recipe.get("stacks")).get(name), "techniques": recipe.get("techniques")}
        found += _stack_parts(name, folder, seeds, tags, own, _mapping(by_stack.get(name)), state)
    return found


_ENDS: dict[str, Status] = {"complete": "done", "pruned": "interrupted", "infeasible": "failed", "failed": "failed"}


def _trials(run: RunDirectory, tags: dict[str, str]) -> list[Part]:
    """Return the part of each trial of a sweep that this run finished; the last line about a trial counts."""
    latest = {str(record.get("number")): record for record in encoding.read_lines(run.path / directory.TRIALS)}
    found = []
    for number, record in latest.items():
        state = str(record.get("state"))
        folder = run.path / "trials" / number
        told = {name: str(record[name]) for name in ("reason", "same_as", "contended") if record.get(name)}
        key = f"trial:{number}"
        extra = {"orch.part": key, "orch.state": state, **{f"orch.trial.{name}": text for name, text in told.items()}}
        found.append(
            Part(
                key=key, name=f"trial {number}", parent=RUN, folder=folder if folder.is_dir() else run.path,
                tags=_tags(tags | extra), params=params(_mapping(record.get("params"))),
                content=f"{state} {zlib.crc32(encoding.dumps(record).encode(errors='surrogatepass')):08x}",
                results=_mapping(record.get("values")), status=_ENDS.get(state),
            )
        )  # fmt: skip
    return found


def _stack_parts(
    name: str,
    folder: Path,
    seeds: list[int],
    tags: dict[str, str],
    own: dict[str, object],
    results: Mapping[str, object],
    state: State,
) -> list[Part]:
    """Return the part of a stack, then one per seed when there are several."""

    def part(key: str, shown: str, parent: str, seed: int | None, results: Mapping[str, object]) -> Part:
        steps_of, values_of = (
            (None, None) if seed is None else (folder / f"steps.seed{seed}.csv", folder / f"values.seed{seed}.csv")
        )
        extra = {"orch.part": key, "orch.stack": name, "orch.seed": "" if seed is None else str(seed)}
        return Part(
            key=key,
            name=shown,
            parent=parent,
            folder=folder,
            tags=_tags(tags | extra),
            params=params({key: value for key, value in (own | {"seed": seed}).items() if value not in (None, {})}),
            content=_content(state, results, steps_of, values_of),
            results=results,
            steps=steps_of,
            values=values_of,
        )

    shown = _cut(name, _NAME_CHARACTERS)
    key = f"stack:{name}"
    whole = part(key, shown, RUN, seeds[0] if len(seeds) == 1 else None, results)
    if len(seeds) == 1:
        return [whole]
    return [whole, *(part(f"seed:{seed}:{name}", f"{shown} seed {seed}", key, seed, {}) for seed in seeds)]


def experiment_name(recipe: str) -> str:
    """Return the name of a recipe's experiment: the recipe's own, as far as MLflow takes it."""
    return _cut(_clean(recipe).strip() or "unnamed", 2 * _NAME_CHARACTERS)


def params(recipe: Mapping[str, object]) -> dict[str, str]:
    """Return a recipe as dotted paths and short texts. What was cut says so; the directory has the whole."""
    found: dict[str, str] = {}
    for path, value in _leaves(recipe):
        text = _text(value)
        if len(text) > _PARAM_CHARACTERS:
            note = f"... [{len(text)} characters; whole in recipe.yaml]"
            text = text[: _PARAM_CHARACTERS - len(note)] + note
        found[_key(path, found)] = text
    return found


def step_metrics(batch: Iterable[step_files.Step], values: Iterable[step_files.Value], created_s: float) -> list[Point]:
    """Return loss, step time and named figures of some steps; of two values for a key and step the last counts."""
    found: dict[tuple[str, int], Point] = {}

    def keep(key: str, value: float | None, step: step_files.Step | step_files.Value) -> None:
        if value is not None:
            time_ms = int((created_s + (step.clock_s if math.isfinite(step.clock_s) else 0)) * 1000)
            found[key, step.step] = Point(key, value, time_ms, step.step)

    for step in batch:
        keep("loss", step.loss, step)
        keep("step_time_s", step.step_time_s, step)
    for value in values:
        keep(_key(value.name, ()), value.value, value)
    return list(found.values())


def result_metrics(results: Mapping[str, object], ended_ms: int) -> list[Point]:
    """Return the numbers of a part's results under `result/`, those of gains under `gain/`."""
    found: dict[str, Point] = {}
    for path, value in _leaves(results):
        if isinstance(value, int | float) and not isinstance(value, bool):
            key = _key(path if path.startswith("gain/") else f"result/{path}", found)
            found[key] = Point(key, float(value), ended_ms, 0)
    return list(found.values())


def result_tags(part: Part) -> dict[str, str]:
    """Return what numbers cannot say: yes and no, short words, and where a loss was not finite.

    MLflow keeps a NaN but turns an infinity into the largest float, so the tag `orch.not_finite` tells the truth.
    """
    tags = {
        f"orch.result.{path}": _text(value)
        for path, value in _leaves(part.results)
        if isinstance(value, bool | str) and len(path) < _KEY_CHARACTERS // 2
    }
    batch, values = part.read()
    odd = [("loss", s.step, s.loss) for s in batch if s.loss is not None and not math.isfinite(s.loss)]
    odd += [(v.name, v.step, v.value) for v in values if not math.isfinite(v.value)]
    if odd:
        name, step, value = min(odd, key=lambda one: one[1])
        tags["orch.not_finite"] = f"{len(odd)} values; first: {name} is {value} in step {step}"
    return _tags(tags)


def _source(run: RunDirectory) -> dict[str, str]:
    facts = encoding.read_json(run.path / "environment.json")
    project = _mapping(facts.get("project"))
    command = shlex.join(str(word) for word in _sequence(run.facts.get("command")))
    tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": command or "orch", "mlflow.user": _user()}
    if project.get("commit"):
        tags["mlflow.source.git.commit"] = str(project["commit"])
        tags["mlflow.source.git.branch"] = str(project.get("branch", ""))
        tags["orch.git_dirty"] = _text(project.get("dirty"))
    return tags


def _gains(by_stack: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, one in by_stack.items():
        median = _mapping(_mapping(one).get("speedup")).get("median")
        if median is not None:
            yield name, median


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def _text(value: object) -> str:
    shown = value if isinstance(value, str) else encoding.encode(value)
    return _clean(shown if isinstance(shown, str) else encoding.dumps(value))


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {_key(key, ()): _clean(value)[:_TAG_CHARACTERS] for key, value in tags.items() if value}


def _key(path: str, taken: Iterable[str]) -> str:
    """Return a key that MLflow takes; one that had to be changed carries a digest, so that two never meet."""
    path = path.replace("+", " and ")  # stacks are named like a+b, and MLflow takes no plus
    safe = _UNSAFE_IN_KEY.sub("_", path).strip() or "_"
    # MLflow refuses what looks like a way out of a folder.
    safe = "/".join(piece if piece.strip(".") else "_" for piece in safe.split("/") if piece) or "_"
    return path if safe == path and len(path) <= _KEY_CHARACTERS and path not in taken else _cut(safe, 200, path)


def _cut(text: str, length: int, whole: str | None = None) -> str:
    """Return `text` if it is short and `whole` is not another, else its beginning and a digest of the whole."""
    text = _clean(text)
    if whole is None and len(text) <= length:
        return text
    digest = hashlib.sha256((whole or text).encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{text[: length - 9]}-{digest}"


def _clean(text: str) -> str:
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")


def _content(state: State, results: Mapping[str, object], *files: Path | None) -> str:
    sizes = [str(path.stat().st_size) if path is not None and path.exists() else "-" for path in files]
    digest = zlib.crc32(encoding.dumps(results).encode(errors="surrogatepass"))
    return " ".join([state.status, f"{digest:08x}", *sizes])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # an account without a name, as in some containers


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _sequence(value: object) -> list[str]:
    return list(value) if isinstance(value, list) else []
