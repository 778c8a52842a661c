"""What this machine can hold."""

from __future__ import annotations

import os

import pytest

from orch.errors import OrchError
from orch.gang import machine
from orch.gang.worker import Spec


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("2,5,7", 3), ("GPU-a,GPU-b", 2)])
def test_visible_gpus_are_counted(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.num_gpus() == count


def test_every_gpu_worker_gets_a_device_of_its_own() -> None:
    specs = [Spec(rank, 3, 1, "cuda", env={"A": "b"}) for rank in range(3)]
    given = machine.split_gpus(specs, "4,6")
    assert [spec.env for spec in given] == [{"A": "b", "CUDA_VISIBLE_DEVICES": name} for name in ("4", "6", "2")]
    assert {spec.device for spec in given} == {"cuda:0"}
    cpu = [Spec(0, 1, 1)]
    assert machine.split_gpus(cpu, "0") == cpu


@pytest.mark.parametrize(
    ("workers", "cores", "bound"),
    [
        (4, {3, 5}, [(3,), (5,), (3,), (5,)]),
        (2, {3, 5}, [(), ()]),  # room for all: the kernel places them
        (3, {3, 5}, [(), (), ()]),  # bound, one core would have two of them for ever
        (2, {3}, [(3,), (3,)]),
    ],
)
def test_workers_that_outnumber_the_cores_evenly_are_bound(
    workers: int, cores: set[int], bound: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: cores)
    specs = [Spec(rank, workers, 1) for rank in range(workers)]
    assert [spec.cores for spec in machine.share_out(specs, None)] == bound
    on_gpus = [Spec(rank, workers, 1, "cuda") for rank in range(workers)]
    assert not any(spec.cores for spec in machine.share_out(on_gpus, "0,1,2,3"))


def test_a_part_of_the_cores_is_kept_to_where_it_is_a_whole_number_and_given_back() -> None:
    before = os.sched_getaffinity(0)
    with machine.part_of_cores(1, len(before)):
        assert os.sched_getaffinity(0) == {min(before)}
    for part, whole in ((1, 2 * len(before)), (2, 2)):
        with machine.part_of_cores(part, whole):
            assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_memory_and_cores_decide_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: 10 * machine.WORKER_BYTES)
    monkeypatch.setattr(machine, "num_cores", lambda: 4)
    assert machine.refuse_or_note(4, "cpu") == ()
    assert machine.refuse_or_note(10, "cpu") == ("10 workers share 4 cores",)
    with pytest.raises(OrchError, match=r"^11 workers want at least 1 GB of memory; this machine has 1 GB free"):
        machine.refuse_or_note(11, "cpu")
    monkeypatch.setattr(machine, "free_bytes", lambda: None)
    assert machine.refuse_or_note(11, "cpu") == ("11 workers share 4 cores",)


def test_the_identity_of_a_machine_does_not_change() -> None:
    assert machine.identity() == machine.identity() != ""
    assert (machine.free_bytes() or 1) > 0
