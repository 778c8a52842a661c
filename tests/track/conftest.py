"""One MLflow store for all tests of tracking: making one takes seconds."""

import multiprocessing
import shutil
from pathlib import Path

import pytest

from orch.track import directory, state
from orch.track.directory import Facts
from orch.track.indexer import QUIET
from orch.track.settings import RUNS_VARIABLE, STORE_VARIABLE, store_of
from orch.track.steps import METRIC_COLUMNS, STEP_COLUMNS, Appender, step_lines, value_lines


@pytest.fixture(scope="session", autouse=True)
def _own_places():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(RUNS_VARIABLE, raising=False)
        patch.delenv(STORE_VARIABLE, raising=False)
        for name, value in QUIET.items():
            patch.setenv(name, value)
        yield


class Made:
    """A run written by hand, without a tracker."""

    def __init__(self, root, recipe="r", stacks=("ddp", "dear+acp"), resolved=None, **facts):
        self.run = directory.create(root, Facts(recipe, facts.pop("mode", "measured"), stacks, **facts))
        directory.write_recipe(self.run, resolved or {"train": {"lr": 0.1}}, {})

    def steps(self, batch, stack="ddp", seed=0):
        self._append(stack, f"steps.seed{seed}.csv", STEP_COLUMNS, step_lines(batch))

    def values(self, batch, stack="ddp", seed=0):
        self._append(stack, f"values.seed{seed}.csv", METRIC_COLUMNS, value_lines(batch))

    def to(self, *statuses, results=None):
        if results is not None:
            self.run.write_json("results.json", results)
        for status in statuses:
            state.write(self.run.path, self.run.state.to(status))
        return self.run

    def _append(self, stack, name, columns, lines):
        appender = Appender(self.run.stack_folders()[stack] / name, columns)
        appender.append(lines)
        appender.close()


@pytest.fixture
def make(tmp_path):
    """Makes runs in a root of the test's own."""
    return lambda *args, **kwargs: Made(tmp_path / "runs", *args, **kwargs)


def _open_and_sync(root, run, barrier, answers):
    from orch.track.mlflow_index import Index

    barrier.wait()
    try:
        answers.put((run.id, Index(store_of(root)).sync(run), None))
    except Exception as error:  # noqa: BLE001 - whatever went wrong is the answer
        answers.put((run.id, None, repr(error)))


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A root whose store six processes made at once, its runs, and what each process said: id, parent, error."""
    pytest.importorskip("mlflow")
    import orch.track.mlflow_index  # noqa: F401 - loaded before the fork, so that all six begin in the same instant

    root = tmp_path_factory.mktemp("shared") / "runs"
    made = [Made(root, f"recipe {number % 2}").to("running") for number in range(6)]
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(len(made)), context.Queue()
    children = [context.Process(target=_open_and_sync, args=(root, run, barrier, answers)) for run in made]
    for child in children:
        child.start()
    said = [answers.get(timeout=200) for _ in children]
    for child in children:
        child.join()
    return root, made, said


@pytest.fixture
def store_copy(shared, tmp_path):
    """Puts a ready store of its own under the root of a test; returns it."""
    source = store_of(shared[0]).file

    def copy(root: Path = tmp_path / "runs"):
        store = store_of(root)
        store.index_dir.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, store.file)
        return store

    return copy
