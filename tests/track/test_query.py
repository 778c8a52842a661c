"""Finding runs by what a user types, and reading them in whatever shape they are."""

import threading

import pytest

from orch.errors import OrchError
from orch.track import directory, query, state

IDS = ["20260101-000000-ab12", "20260101-000000-ab34", "20260202-111111-zz99"]


@pytest.fixture
def root(tmp_path):
    for number, name in enumerate(IDS):
        (tmp_path / f"r{number % 2}" / name).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("key", "found"), [("last", 2), (IDS[0], 0), ("20260202", 2), ("2", 2), ("zz", 2), ("ab1", 0), ("ab34", 1)]
)
def test_a_run_is_found_by_last_id_beginning_or_tail(root, key, found):
    if key == "2":
        key = "202602"
    assert query.find(root, key).id == IDS[found]


@pytest.mark.parametrize("key", ["ab", "202601", "2026"])
def test_several_that_fit_are_named(root, key):
    with pytest.raises(OrchError) as caught:
        query.find(root, key)
    assert "\n" not in str(caught.value)
    assert f"runs begin with '{key}'" in str(caught.value)
    assert IDS[0] in str(caught.value)
    assert IDS[1] in str(caught.value)


def test_two_recipes_with_one_id_are_told_apart(root):
    (root / "other" / IDS[0]).mkdir(parents=True)
    with pytest.raises(OrchError, match=f"other/{IDS[0]}, r0/{IDS[0]}"):
        query.find(root, IDS[0])


def test_many_that_fit_are_counted(root):
    for number in range(20):
        (root / "many" / f"20250101-000000-a{number:03}").mkdir(parents=True)
    with pytest.raises(OrchError, match=r"20 runs begin with '2025': .* and 15 more;"):
        query.find(root, "2025")


@pytest.mark.parametrize("key", ["", "nope", "../r0", "*", "li\nne"])
def test_what_does_not_fit_is_said_in_a_line(root, key):
    with pytest.raises(OrchError, match="no run") as caught:
        query.find(root, key)
    assert "\n" not in str(caught.value)


def test_no_runs_at_all(tmp_path):
    with pytest.raises(OrchError, match="there are no runs under"):
        query.find(tmp_path / "absent", "last")


def test_a_mistyped_id_is_guessed(root):
    with pytest.raises(OrchError, match="did you mean 20260202-111111-zz99"):
        query.find(root, "20260202-111111-zz98")


def test_the_best_gain_is_the_largest_beyond_noise():
    def gain(median, *, distinguishable=True, over="ddp"):
        return {"speedup": {"median": median, "lo": 1.0, "hi": 2.0, "over": over, "distinguishable": distinguishable}}

    stacks = {"ddp": gain(9.0), "a": gain(1.2), "b": gain(1.3), "c": gain(1.9, distinguishable=False), "d": {}}
    assert query.best({"stacks": stacks}) == query.Best("b", 1.3, 1.0, 2.0)
    assert query.best({"stacks": {"ddp": gain(1.0), "c": gain(1.9, distinguishable=False)}}) is None
    assert query.best({"stacks": {"ddp": gain(1.0), "slower": gain(0.4)}}) is None


@pytest.mark.parametrize("results", [{}, {"stacks": []}, {"stacks": {"a": 3}}, {"stacks": {"a": {"speedup": 2}}}])
def test_odd_results_have_no_best(results):
    assert query.best(results) is None


def test_a_summary_tells_what_a_damaged_run_still_has(root):
    found = query.summary(query.find(root, "zz99"))
    assert (found.status, found.recipe, found.stacks, found.best, found.duration_s) == ("damaged", "r0", (), None, None)
    assert found.document()["state"] == "damaged"


def test_a_summary_of_a_run(make):
    made = make("name/1")
    run = made.to("running", "failed", results={"stacks": {"dear+acp": {"speedup": {"median": 1.5, "over": "ddp"}}}})
    directory.encoding.write_json(run.path / "index.json", {"parent_run_id": "abc"})
    document = query.summary(run).document()
    assert (document["recipe"], document["state"], document["mode"]) == ("name/1", "failed", "measured")
    assert (document["stacks"], document["parent_run_id"]) == (["ddp", "dear+acp"], "abc")
    assert document["best"].speedup == 1.5
    assert document["ended_s"] >= document["started_s"] >= document["created_s"]


@pytest.fixture
def logged(make):
    run = make().to("running")
    (run.path / "logs").mkdir()
    run.log(None).write_text("driver\n")
    run.log(0).write_bytes(b"one\ntwo\n\xff\n")
    return run


def test_logs_of_all_or_of_one_rank(logged):
    assert [path.stem for path in query.logs(logged, None)] == ["driver", "rank0"]
    (path,) = query.logs(logged, 0)
    assert query.read_log(path, None) == "one\ntwo\n\\xff\n"
    assert query.read_log(path, 2) == "two\n\\xff\n"
    assert query.read_log(path, 0) == ""


def test_a_rank_without_a_log_is_told_which_have_one(logged, make):
    with pytest.raises(OrchError, match=r"has no log of rank 3; ranks with a log: 0 \["):
        query.logs(logged, 3)
    with pytest.raises(OrchError, match="has no logs"):
        query.logs(make().run, None)


def test_following_gives_whole_lines_until_the_run_ends(logged):
    got, first = [], threading.Event()

    def reader():
        for _, text in query.follow(logged, [logged.log(0)]):
            got.append(text)
            first.set()

    thread = threading.Thread(target=reader)
    thread.start()
    assert first.wait(30)
    with logged.log(0).open("a") as log:
        log.write("three\nfou")
    state.write(logged.path, logged.state.to("done"))
    thread.join(30)
    assert not thread.is_alive()
    assert "".join(got) == "one\ntwo\n\\xff\nthree\nfou"
