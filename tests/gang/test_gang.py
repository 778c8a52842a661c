"""The promises of a gang, on real processes: results by rank, events, logs, and failures that name their rank."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from orch.errors import OrchError, RunError
from orch.gang import alike, end_all, make_gang, refuse_or_note, system
from orch.gang.pool import MAKERS
from orch.recipe import schema
from tests.gang import functions


@pytest.fixture(params=["processes", "local"])
def on(request: pytest.FixtureRequest) -> str:
    """Both ways to make many workers here; one Ray serves all tests of this process."""
    return str(request.param)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_results_come_by_rank_and_groups_reduce(size: int, on: str) -> None:
    with make_gang(on, size) as gang:
        assert gang.kind == {"processes": "processes", "local": "ray"}[on]
        answers = gang.call(functions.who, "x", per_rank=[(rank * 10,) for rank in range(size)])
        assert [answer[:3] + answer[4:] for answer in answers] == [(r, size, 1, "x", r * 10) for r in range(size)]
        assert gang.call(functions.all_reduce) == [size * (size + 1) / 2] * size
        assert gang.call(functions.all_reduce, "other", 2) == [size * (size + 1) / 2] * size


def test_workers_are_reused_and_quickly(on: str) -> None:
    with make_gang(on, 2) as gang:
        first = gang.call(functions.who)
    begin = time.perf_counter()
    with make_gang(on, 2) as gang:
        assert gang.call(functions.who) == first
        gang.call(functions.all_reduce)
    assert time.perf_counter() - begin < 0.3
    with make_gang(on, 2, env={"X": "1"}) as gang:
        assert gang.call(functions.who) != first


def test_events_arrive_in_order_before_the_results(on: str) -> None:
    seen: list[tuple[int, dict[str, int]]] = []
    with make_gang(on, 2) as gang:
        assert gang.call(functions.events, 50, on_event=lambda rank, e: seen.append((rank, e))) == ["done"] * 2
    for rank in range(2):
        assert [event["step"] for r, event in seen if r == rank] == list(range(50))


def test_what_is_told_while_nobody_listens_is_heard_by_the_next(on: str) -> None:
    seen: list[tuple[int, dict[str, int]]] = []
    with make_gang(on, 2) as gang:
        gang.call(functions.events, 3)
        gang.call(functions.all_reduce)
        gang.call(functions.all_reduce, on_event=lambda rank, event: seen.append((rank, event)))
    assert [event["step"] for rank, event in seen if rank == 1] == [0, 1, 2]
    assert len(seen) == 6


def test_prints_go_to_the_log_of_the_rank_and_of_the_run(
    on: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for run in ("a", "b"):
        with make_gang(on, 2, log_dir=tmp_path / run) as gang:
            gang.call(functions.speak, f"run {run}")
    assert (tmp_path / "a" / "rank1.log").read_text() == "run a 1\nrun a err 1\n"
    assert (tmp_path / "b" / "rank0.log").read_text() == "run b 0\nrun b err 0\n"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("kill", "rank 2 of 4 died in step 3, task all_reduce.b1 (signal 9); ranks 0, 1, 3 waited for it; log: {log}"),
        ("segv", "rank 2 of 4 died in step 3, task all_reduce.b1 (signal 11); ranks 0, 1, 3 waited for it; log: {log}"),
        (
            "exit",
            "rank 2 of 4 died in step 3, task all_reduce.b1 (exit code 7); ranks 0, 1, 3 waited for it; log: {log}",
        ),
        (
            "raise",
            (
                "rank 2 of 4 raised ValueError in step 3, task all_reduce.b1: a weight is not finite ({file}:{line}); "
                "ranks 0, 1, 3 waited for it; log: {log}"
            ),
        ),
    ],
)
def test_a_failed_rank_is_named(on: str, how: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path(functions.__file__)
    line = 1 + source.read_text().splitlines().index('        raise ValueError("a weight is not finite\\nsecond line")')
    with make_gang(on, 4, log_dir=tmp_path / "runs" / "ab12") as gang, pytest.raises(RunError) as caught:
        gang.call(functions.fail_at, 2, how)
    expected = text.format(log="runs/ab12/rank2.log", file=source, line=line)
    assert str(caught.value).replace("E702", "E701") == f"{expected} [E701]"
    assert caught.value.exit_code == 3
    if how == "raise":
        assert "second line" in "".join(caught.value.__notes__)


def test_a_kill_for_want_of_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([5])
    text = r"^rank 1 of 2 died in step 3, .* \(signal 9\).*; the kernel was out of memory and killed for it"
    with make_gang("processes", 2) as gang:
        monkeypatch.setattr(system, "killed_for_memory", lambda: next(counts, 6))
        with pytest.raises(RunError, match=text):
            gang.call(functions.fail_at, 1, "kill")


def test_an_error_of_the_user_is_raised_as_it_is(on: str) -> None:
    with (
        make_gang(on, 2) as gang,
        pytest.raises(OrchError, match=r"data set 'x' is absent; make it \[E321\]") as e,
    ):
        gang.call(functions.fail_at, 1, "orch")
    assert not isinstance(e.value, RunError)


@pytest.mark.parametrize(
    ("on", "how", "text"), [("processes", "sleep", "hangs"), ("local", "stop", "is stopped")], indirect=["on"]
)
def test_a_hung_collective_is_named_within_ten_seconds(on: str, how: str, text: str) -> None:
    begin = time.perf_counter()
    expected = rf"^rank 2 of 3 {text} in step 3, task all_reduce.b1; ranks 0, 1 wait for it \[E703\]$"
    with make_gang(on, 3) as gang, pytest.raises(RunError, match=expected):
        gang.call(functions.fail_at, 2, how)
    assert time.perf_counter() - begin < 10


def test_after_a_failure_no_worker_is_left_and_the_next_gang_works(on: str) -> None:
    gang = make_gang(on, 3)
    pids = [answer[3] for answer in gang.call(functions.who)]
    with pytest.raises(RunError):
        gang.call(functions.fail_at, 0, "raise")
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    with pytest.raises(RunError, match="the gang is closed"):
        gang.call(functions.who)
    gang.close()
    with make_gang(on, 3) as fresh:
        assert not set(pids) & {answer[3] for answer in fresh.call(functions.who)}


def test_an_error_in_the_callers_own_handler_ends_the_gang(on: str) -> None:
    gang = make_gang(on, 2)
    pids = [answer[3] for answer in gang.call(functions.who)]

    def interrupt(rank: int, event: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gang.call(functions.compute, 60.0, on_event=interrupt)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_gang_closed_after_everything_was_ended_does_no_harm(on: str) -> None:
    gang = make_gang(on, 2)
    end_all()
    gang.close()
    with make_gang(on, 2) as fresh:
        assert fresh.call(functions.all_reduce) == [3.0, 3.0]


def test_two_gangs_at_once(on: str) -> None:
    with make_gang(on, 2) as one, make_gang(on, 2) as two:
        assert not {a[3] for a in one.call(functions.who)} & {a[3] for a in two.call(functions.who)}
        assert one.call(functions.all_reduce) == two.call(functions.all_reduce) == [3.0, 3.0]


def test_what_cannot_be_called_is_refused_before_anything_runs() -> None:
    with make_gang("processes", 2) as gang, pytest.raises(RunError, match="cannot be sent"):
        gang.call(functions.who, lambda: None)
    with make_gang("processes", 2) as gang, pytest.raises(RunError, match="1 entries for 2 ranks"):
        gang.call(functions.who, per_rank=[(1,)])


def test_end_all_ends_the_warm_workers() -> None:
    with make_gang("processes", 2) as gang:
        pids = [answer[3] for answer in gang.call(functions.who)]
    end_all()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("wanted", ["proceses", "loca", "ray:/x", "host:port", "", "host:0", "host:65536"])
def test_an_unknown_way_is_refused(wanted: str) -> None:
    with pytest.raises(
        OrchError, match=r"is no way to reach workers; .*allowed: inline, processes, local, emulate, torchrun"
    ):
        make_gang(wanted, 2)


def test_a_recipe_names_the_same_ways() -> None:
    assert schema.WAYS == MAKERS
    for address in ("host:6379", "[::1]:6379", "ray://host", "ray://host:10001"):
        assert TypeAdapter(schema.Reach).validate_python(address) == address
        assert refuse_or_note(address, 2) == ()
    for wrong in ("slurm", "emulated", "host:0", "ray://host:65536", "local "):
        with pytest.raises(ValidationError):
            TypeAdapter(schema.Reach).validate_python(wrong)
        with pytest.raises(OrchError):
            refuse_or_note(wrong, 2)


def test_what_can_never_fit_is_refused_at_once() -> None:
    begin = time.perf_counter()
    with pytest.raises(
        OrchError, match=r"^100000 workers want at least \d+ GB of memory; this machine has \d+ GB free"
    ):
        make_gang("local", 100_000)
    with pytest.raises(OrchError, match=r"^64 workers want 64 GPUs; this machine has \d"):
        make_gang("local", 64, device="cuda")
    with pytest.raises(OrchError, match="at least 1"):
        make_gang("processes", 0)
    assert time.perf_counter() - begin < 1


def test_more_workers_than_cores_is_noted() -> None:
    size = len(os.sched_getaffinity(0)) + 1
    with make_gang("processes", size) as gang:
        assert len(gang.notes) == 1
        assert gang.notes[0].startswith(f"{size} workers share {size - 1} core")


def test_workers_that_outnumber_the_cores_evenly_are_bound_with_all_their_threads(on: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if 2 * len(cores) > 8:
        pytest.skip("a machine with more cores than this test may make workers for")
    with make_gang(on, 2 * len(cores)) as gang:
        found = gang.call(functions.cores)
    for rank, threads in enumerate(found):
        assert len(threads) > 1
        assert threads == [{cores[rank % len(cores)]}] * len(threads)


def test_torch_is_held_to_the_threads_asked_for() -> None:
    with make_gang("processes", 1, threads=2, env={"ORCH_TEST": "yes"}) as gang:
        assert gang.call(functions.environment) == [(2, "2", "yes")]


@pytest.mark.parametrize(
    ("on", "other", "same"),
    [
        ("local", "local", True),
        ("10.0.0.1:6379", "ray://head:10001", True),
        ("local", "processes", False),
        ("local", "10.0.0.1:6379", False),
    ],
)
def test_two_addresses_are_one_way_to_reach_workers(on: str, other: str, same: bool) -> None:
    assert alike(on, other) is same
