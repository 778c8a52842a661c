"""The run of a study: one, however many drivers work on the study at once.

The driver that opens the run owns it: its state, its results, its index entry. One that comes meanwhile is a guest. It
keeps its trials in the same folder, under the numbers that the study gave them, and leaves the results to the owner. Whoever
ends later sees to it that they hold all trials: an owner that finds more finished than it has written down, or a guest
whose host has gone, takes the run up once more. Both look after their last word to the study, so one of them finds out.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orch.errors import OrchError
from orch.sweep.results import Document
from orch.sweep.study import Store
from orch.track import directory, encoding, state
from orch.track.directory import Facts, RunDirectory, slug
from orch.track.tracker import RunLog, Tracker
from orch.track.untracked import Untracked

if TYPE_CHECKING:
    from orch.sweep.doing import Sweeping

RUN = "run"


class Guest(Untracked):
    """The run of another driver that is at work on the same study: takes trials, and nothing else."""

    def __init__(self, run: RunDirectory) -> None:
        self.path: Path | None = run.path

    @property
    def parent_run_id(self) -> str | None:  # type: ignore[override]
        """MLflow's id of the run; its own driver's index has it."""
        assert self.path is not None
        found = encoding.read_json(self.path / "index.json").get("parent_run_id")
        return None if found is None else str(found)

    def trial(self, record: Mapping[str, object]) -> None:
        """Keep what came of a trial, a line in one write; a disk that refuses ends no trial."""
        assert self.path is not None
        try:
            encoding.append_line(self.path / directory.TRIALS, record)
        except OSError as error:
            sys.stderr.write(f"tracking: cannot keep a trial in {self.path}: {error.strerror or error}\n")


def in_run(doing: Sweeping, store: Store, mode: str, on: str | None, work: Callable[[RunLog], Document]) -> Document:
    """Return what `work` made in the study's run, which holds all that has been finished when the last driver leaves.

    `work` is called again with the run taken up where others ended meanwhile; it finds every trial done then.
    """
    while True:
        with run_of(doing, store, mode, on) as run:
            found = work(run)
        written = found.pop("finished")
        if run.path is None:
            return found
        if isinstance(run, Guest):
            now = state.settle(run.path)
            if now is None or now.is_open:
                return found
        elif store.count_finished() == written:
            return found
        if doing.asked.only is not None:  # what was to be run again has been
            doing.asked = replace(doing.asked, only="missing")


@contextmanager
def run_of(doing: Sweeping, store: Store, mode: str, on: str | None = None) -> Iterator[RunLog]:
    """Open the run of a study: the one it has, taken up where it ended, or as a guest of the driver that has it open.
    Raises OrchError when no directory can be made.
    """
    with ExitStack() as runs:
        with store.alone():  # two drivers that begin at once make one run
            run = _opened(doing, store, mode, on, runs)
        if isinstance(run, Guest):
            doing.terminal.stage(
                f"another driver is at work on {store.plan.name}: its run {run.path} keeps the trials of both"
            )
        yield run


def _opened(doing: Sweeping, store: Store, mode: str, on: str | None, runs: ExitStack) -> RunLog:
    tracker, own = Tracker(doing.root, enabled=doing.asked.track), _own_run(doing, store)
    settled = None if own is None else state.settle(own.path)
    if own is not None and settled is not None and not settled.is_open:
        try:
            return runs.enter_context(tracker.take_up(own))
        except OrchError as error:
            if error.code != "E820":
                raise
        settled = state.settle(own.path)  # another driver was faster, or the directory refuses
    if own is not None and settled is not None and settled.is_open:
        return Guest(own)
    run = runs.enter_context(tracker.run(_facts(doing, mode, on), doing.recipe.resolved(), doing.recipe.origins()))
    if settled is None and run.path is not None:
        store.keep(_key(doing), run.path.name)
    return run


def _own_run(doing: Sweeping, store: Store) -> RunDirectory | None:
    """Return the run that the study's first invocation made below the same directory of runs, None before that; it may be
    gone.
    """
    name = (store.kept(_key(doing)) or store.kept(RUN)) if doing.asked.track else None
    return None if name is None else RunDirectory(doing.root.resolve() / slug(doing.recipe.name) / str(name))


def _key(doing: Sweeping) -> str:
    """Return under which name a study keeps its run: a team's study has one a directory of runs."""
    return f"{RUN}.{hashlib.sha256(str(doing.root.resolve()).encode(errors='surrogateescape')).hexdigest()[:8]}"


def _facts(doing: Sweeping, mode: str, on: str | None) -> Facts:
    """Return what is known of the sweep's run when it starts."""
    return Facts(
        doing.recipe.name, mode, (), seeds=doing.recipe.seeds, baseline=doing.recipe.baseline.name,
        command=tuple(sys.argv), origin=str(doing.recipe.path),
        extra={"sweep": doing.name(mode), **({} if on is None else {"on": on})},
    )  # fmt: skip
