"""Finding and reading runs: what `orch runs` shows. Reads directories only; no index is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from orch.errors import OrchError, did_you_mean
from orch.track import directory, encoding, state
from orch.track.directory import RunDirectory
from orch.track.state import State

LAST = "last"
_FOLLOW_S = 0.2
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Best:
    """The stack that gained most over the baseline, if its gain is beyond noise."""

    stack: str
    speedup: float
    lo: float | None
    hi: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in a line. `state` is None when `state.json` cannot be read."""

    run: RunDirectory
    recipe: str
    mode: str
    state: State | None
    stacks: tuple[str, ...]
    best: Best | None
    parent_run_id: str | None

    @property
    def status(self) -> str:
        """The true state in a word; `damaged` when there is none to read."""
        return "damaged" if self.state is None else self.state.status

    @property
    def duration_s(self) -> float | None:
        """How long it ran, or has run so far; None before it started."""
        return None if self.state is None else self.state.duration_s

    def document(self) -> dict[str, object]:
        """Return the summary as JSON data."""
        found = self.state
        return {
            "id": self.run.id,
            "recipe": self.recipe,
            "state": self.status,
            "reason": "" if found is None else found.reason,
            "mode": self.mode,
            "created_s": None if found is None else found.created_s,
            "started_s": None if found is None else found.started_s,
            "ended_s": None if found is None else found.ended_s,
            "host": None if found is None else found.owner.host,
            "pid": None if found is None else found.owner.pid,
            "stacks": list(self.stacks),
            "best": self.best,
            "run_dir": str(self.run.path),
            "parent_run_id": self.parent_run_id,
        }


def summary(run: RunDirectory) -> Summary:
    """Return a run in a line; one whose driver is gone is closed on the way."""
    facts = run.facts
    index = encoding.read_json(run.path / "index.json")
    return Summary(
        run=run,
        recipe=run.recipe_name,
        mode=str(facts.get("mode", "")),
        state=state.settle(run.path),
        stacks=tuple(run.stack_folders()),
        best=best(run.results),
        parent_run_id=cast("str | None", index.get("parent_run_id")),
    )


def best(results: Mapping[str, object]) -> Best | None:
    """Return the largest distinguishable gain over the baseline in a run's results, or None when there is none."""
    found: list[Best] = []
    stacks = results.get("stacks")
    for name, one in stacks.items() if isinstance(stacks, dict) else ():
        gain = one.get("speedup") if isinstance(one, dict) else None
        if not isinstance(gain, dict) or gain.get("over") == name or gain.get("distinguishable") is False:
            continue
        median = gain.get("median")
        if isinstance(median, int | float) and median > 1.0:  # a distinguishable loss is no gain
            found.append(Best(name, float(median), _number(gain.get("lo")), _number(gain.get("hi"))))
    return max(found, key=lambda one: one.speedup, default=None)


def find(root: Path, key: str) -> RunDirectory:
    """Return the run that `key` names: `last`, an id, the beginning of an id, or of the four characters that end it.

    Raises OrchError when there is none, or when several begin like this; then it names them.
    """
    runs = list(directory.find_all(root))
    if not runs:
        raise OrchError(
            f"there are no runs under {root}",
            code="E802",
            hint="`orch run RECIPE` makes one, --runs DIR names another place",
        )
    if key == LAST:
        return max(runs, key=lambda run: run.id)
    exact = [run for run in runs if run.id == key]
    near = exact or [run for run in runs if run.id.startswith(key) or run.id.rpartition("-")[2].startswith(key)]
    if key and len(near) == 1:
        return near[0]
    if key and near:
        named = ", ".join(_name(run, near) for run in near[-_NAMED:])
        more = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
        raise OrchError(f"{len(near)} runs begin with {key!r}: {named}{more}", code="E803", hint="write more of it")
    hint = did_you_mean(key, [run.id for run in runs]) or f"the last one is {runs[-1].id}; `orch runs` lists all"
    raise OrchError(f"no run {key!r} under {root}", code="E802", hint=hint)


def logs(run: RunDirectory, rank: int | None) -> list[Path]:
    """Return the logs of a run, or of one rank. Raises OrchError when there are none, naming the ranks that have one."""
    found = run.logs()
    if rank is None:
        if not found:
            raise OrchError(f"run {run.id} has no logs", code="E804", hint="simulated runs start no workers")
        return found
    wanted = run.log(rank)
    if wanted not in found:
        ranks = ", ".join(path.stem.removeprefix("rank") for path in found if path.stem != "driver") or "none"
        raise OrchError(f"run {run.id} has no log of rank {rank}", code="E804", hint=f"ranks with a log: {ranks}")
    return [wanted]


def read_log(path: Path, lines: int | None) -> str:
    """Return the text of a log, or its last lines. Bytes that are no text are shown as what they are."""
    text = path.read_bytes().decode("utf-8", errors="backslashreplace")
    if lines is None:
        return text
    return "".join(text.splitlines(keepends=True)[-lines:] if lines > 0 else [])


def follow(run: RunDirectory, paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Return what is added to some logs, whole lines only, until the run has ended and nothing more comes."""
    offsets = dict.fromkeys(paths, 0)
    while True:
        found = state.settle(run.path)
        for path in paths:
            with path.open("rb") as file:
                file.seek(offsets[path])
                data = file.read()
            open_end = found is not None and found.is_open
            whole = data[: data.rfind(b"\n") + 1] if open_end else data
            offsets[path] += len(whole)
            if whole:
                yield path, whole.decode("utf-8", errors="backslashreplace")
        if found is None or not found.is_open:
            return
        time.sleep(_FOLLOW_S)


def _name(run: RunDirectory, among: Sequence[RunDirectory]) -> str:
    twins = [other for other in among if other.id == run.id]
    return run.id if len(twins) == 1 else f"{run.path.parent.name}/{run.id}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
