"""The index says what the directories say: however often it is asked, whatever the names, after every end."""

import math
import shutil

import pytest

from orch.track.settings import Store
from orch.track.steps import Step, Value

mlflow = pytest.importorskip("mlflow")

from orch.track.mlflow_index import Index  # noqa: E402


@pytest.fixture(scope="module")
def index(shared, tmp_path_factory):
    store = Store(f"sqlite:///{shared[0]}/.index/mlflow.db", tmp_path_factory.mktemp("links"), local=False)
    return Index(store)


@pytest.fixture(scope="module")
def client(index):
    return index._client


def entries(client, run):
    found = client.search_runs(
        [e.experiment_id for e in client.search_experiments()], f"tags.`orch.id` = '{run.id}'", max_results=1000
    )
    return {entry.data.tags["orch.part"]: entry for entry in found}


def history(client, entry, key):
    return sorted((m.step, m.value) for m in client.get_metric_history(entry.info.run_id, key))


def test_six_drivers_at_once_make_one_sound_store(shared, client):
    _, made, said = shared
    assert [error for _, _, error in said if error] == []
    assert len({parent for _, parent, _ in said}) == len(made) == 6
    assert sorted(e.name for e in client.search_experiments() if e.name.startswith("recipe ")) == [
        "recipe 0",
        "recipe 1",
    ]
    assert all(len(entries(client, run)) == 3 for run in made)


def test_a_run_is_an_experiment_a_parent_and_a_child_per_stack(index, client, make):
    made = make("tree", resolved={"train": {"lr": 0.1, "on": True}, "stacks": {"ddp": ["torch-ddp"]}})
    made.steps([Step(1, 0, 2.0, 0.5, 0.5), Step(2, 0, 1.0, None, 1.0)])
    made.values([Value(2, 1.0, "accuracy", 0.25)])
    results = {"stacks": {"ddp": {"speedup": {"median": 1.5, "over": "ddp"}, "conformant": True}}}
    parent_id = index.sync(made.to("running", "done", results=results))
    found = entries(client, made.run)
    parent, child = found["run"], found["stack:ddp"]
    assert sorted(found) == ["run", "stack:ddp", "stack:dear+acp"]
    assert client.get_experiment(parent.info.experiment_id).name == "tree"
    assert parent.info.run_id == parent_id
    assert child.data.tags["mlflow.parentRunId"] == parent_id
    assert parent.data.params == {"train.lr": "0.1", "train.on": "true", "stacks.ddp": '["torch-ddp"]'}
    assert parent.data.metrics == {"gain/ddp": 1.5}
    assert child.data.params == {"stack": "ddp", "knobs": '["torch-ddp"]', "seed": "0"}
    assert child.data.metrics == {"loss": 1.0, "step_time_s": 0.5, "accuracy": 0.25, "result/speedup.median": 1.5}
    assert (child.data.tags["orch.mode"], child.data.tags["orch.result.conformant"]) == ("measured", "true")
    assert history(client, child, "loss") == [(1, 2.0), (2, 1.0)]
    assert [m.timestamp - child.info.start_time for m in client.get_metric_history(child.info.run_id, "loss")] == [
        500,
        1000,
    ]


def test_several_seeds_are_grandchildren(index, client, make):
    made = make("seeds", ("a",), seeds=(3, 4))
    for seed in (3, 4):
        made.steps([Step(1, 0, float(seed), 0.1, 0.1)], "a", seed)
    index.sync(made.to("running", "done", results={"stacks": {"a": {"step_time_s": {"median": 0.1}}}}))
    found = entries(client, made.run)
    assert sorted(found) == ["run", "seed:3:a", "seed:4:a", "stack:a"]
    assert found["seed:4:a"].data.metrics["loss"] == 4.0
    assert found["seed:4:a"].data.tags["mlflow.parentRunId"] == found["stack:a"].info.run_id
    assert found["stack:a"].data.metrics == {"result/step_time_s.median": 0.1}


def test_a_second_look_changes_nothing(index, client, make, shared):
    made = make("again")
    made.steps([Step(n, 0, 1.0 / n, 0.1, 0.1 * n) for n in range(1, 4)])
    run = made.to("running", "failed")
    first = index.sync(run)
    before = entries(client, run)
    other = Index(index._store)
    assert (index.sync(run), other.sync(run)) == (first, first)
    after = entries(client, run)
    assert {k: (e.info.run_id, e.data.metrics, e.data.tags) for k, e in after.items()} == {
        k: (e.info.run_id, e.data.metrics, e.data.tags) for k, e in before.items()
    }
    assert len(history(client, after["stack:ddp"], "loss")) == 3


def test_steps_are_sent_as_they_come_and_more_than_a_batch_of_them(index, client, make):
    made = make("live")
    run = made.to("running")
    index.sync(run)
    for start in (1, 1301):
        made.steps([Step(n, 0, float(n), 0.1, 0.1 * n) for n in range(start, start + 1300)])
        index.sync(run)
    child = entries(client, run)["stack:ddp"]
    assert child.info.status == "RUNNING"
    assert history(client, child, "loss") == [(n, float(n)) for n in range(1, 2601)]


def test_of_a_repeated_step_the_last_value_counts(index, client, make):
    made = make("repeat")
    run = made.to("running")
    made.steps([Step(n, 0, 9.0, 0.1, 0.1 * n) for n in (1, 2, 3)])
    index.sync(run)
    made.steps([Step(n, 1, 1.0, 0.1, 0.1 * n) for n in (2, 3, 4)])
    index.sync(run)
    index.sync(made.to("done", results={}))
    child = entries(client, run)["stack:ddp"]
    assert history(client, child, "loss") == [(1, 9.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert child.info.status == "FINISHED"


def test_a_half_written_entry_is_made_anew(index, client, make):
    made = make("half")
    made.steps([Step(1, 0, 1.0, 0.1, 0.1)])
    run = made.to("running")
    index.sync(run)
    half = entries(client, run)
    index._entries.clear()  # as after the death of the process that kept it
    made.steps([Step(2, 0, 1.0, 0.1, 0.2)])
    index.sync(made.to("killed"))
    whole = entries(client, run)
    assert whole["run"].info.run_id == half["run"].info.run_id
    assert len(history(client, whole["stack:ddp"], "loss")) == 2
    assert {entry.info.status for entry in whole.values()} == {"KILLED"}


def test_an_entry_that_a_user_removed_meanwhile_is_made_anew(index, client, make):
    made = make("removed by hand", ("a",))
    run = made.to("running")
    made.steps([Step(1, 0, 1.0, 0.1, 0.1)], "a")
    index.sync(run)
    client.delete_run(entries(client, run)["stack:a"].info.run_id)
    made.steps([Step(2, 0, 1.0, 0.1, 0.2)], "a")
    index.sync(made.to("done", results={}))
    found = entries(client, run)
    assert sorted(found) == ["run", "stack:a"]
    assert len(history(client, found["stack:a"], "loss")) == 2


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((), "SCHEDULED"),
        (("running",), "RUNNING"),
        (("running", "done"), "FINISHED"),
        (("running", "failed"), "FAILED"),
        (("running", "killed"), "KILLED"),
        (("interrupted",), "KILLED"),
    ],
)
def test_every_end_is_true(index, client, make, statuses, expected):
    made = make("ends", ("a",))
    index.sync(made.to(*statuses, results={}))
    found = entries(client, made.run)
    assert {entry.info.status for entry in found.values()} == {expected}
    assert found["run"].data.tags["orch.state"] == (statuses[-1] if statuses else "queued")


@pytest.mark.parametrize(
    "name", ["李/梅", 'it\'s "x" `y`', "a" * 300, "x\ny", "\udcff", "", " padded ", "100%_; --", "b" * 3000]
)
def test_odd_names_work(index, client, make, name):
    made = make(name, (name, "plain"), resolved={name: {"k/../'": [name]}, "x": {name: 1}})
    made.values([Value(1, 0.1, name or "x", 1.0)], stack=name)
    index.sync(made.to("running", "done", results={"stacks": {name: {name or "x": {"median": 2.0}}}}))
    found = entries(client, made.run)
    assert len(found) == 3
    odd = next(entry for part, entry in found.items() if part.startswith("stack:") and part != "stack:plain")
    assert sorted(odd.data.metrics.values()) == [1.0, 2.0]
    assert len(found["run"].data.params) == 2


def test_what_is_not_finite_is_told_truly(index, client, make):
    made = make("odd losses")
    made.steps([Step(1, 0, math.nan, 0.1, 0.1), Step(2, 0, math.inf, 0.1, math.nan), Step(3, 0, 1.0, 0.1, 0.3)])
    index.sync(made.to("running", "done", results={}))
    child = entries(client, made.run)["stack:ddp"]
    values = dict(history(client, child, "loss"))
    assert math.isnan(values[1])
    assert values[2] > 1e308
    assert child.data.tags["orch.not_finite"] == "2 values; first: loss is nan in step 1"


def test_long_and_many_params_fit(index, client, make):
    made = make("long", ("a",), resolved={"text": "x" * 9000, **{f"p{n}": n for n in range(250)}})
    index.sync(made.to("running"))
    params = entries(client, made.run)["run"].data.params
    assert len(params) == 251
    assert params["text"].endswith("[9000 characters; whole in recipe.yaml]")


def test_artifacts_are_the_directory_itself(index, client, make):
    made = make("links")
    made.steps([Step(1, 0, 1.0, 0.1, 0.1)])
    index.sync(made.to("running"))
    found = entries(client, made.run)
    made.run.write_json("results.json", {})
    assert "results.json" in [file.path for file in client.list_artifacts(found["run"].info.run_id)]
    assert [file.path for file in client.list_artifacts(found["stack:ddp"].info.run_id)] == ["steps.seed0.csv"]


def test_a_removed_experiment_comes_back(index, client, make):
    client.delete_experiment(client.create_experiment("trash"))
    made = make("trash")
    index.sync(made.to("running"))
    assert len(entries(client, made.run)) == 3


def test_a_forgotten_run_leaves_no_entry_and_no_link(index, client, make):
    made = make("gone")
    index.sync(made.to("running", "done", results={}))
    assert index.forget(made.run.id) == 3
    assert entries(client, made.run) == {}
    assert list((index._store.artifacts / "gone").iterdir()) == []
    assert made.run.state.status == "done"


def test_a_store_that_was_taken_away_is_an_error_not_a_new_store(make, store_copy):
    store = store_copy()
    made = make("away")
    index = Index(store)
    store.file.rename(store.file.with_name("elsewhere.db"))
    run = made.to("running")
    with pytest.raises(OSError, match="was moved, deleted or replaced"):
        index.sync(run)
    assert not store.file.exists()


def test_a_rebuild_finds_every_directory_and_drops_what_is_gone(make, store_copy, tmp_path):
    index = Index(store_copy())
    runs = [make(name).to("running", "done", results={}) for name in ("a", "a", "b")]
    live = make("a").to("running")
    assert index.rebuild(tmp_path / "runs") == (3, 0)
    assert index.rebuild(tmp_path / "runs") == (3, 0)
    assert entries(index._client, live) == {}  # its own driver keeps it
    assert [len(entries(index._client, run)) for run in runs] == [3, 3, 3]
    shutil.rmtree(runs[0].path)
    assert index.rebuild(tmp_path / "runs") == (2, 1)
    assert [len(entries(index._client, run)) for run in runs] == [0, 3, 3]
