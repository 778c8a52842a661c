"""What the gang's tests run on the ranks; workers import it by name."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from orch.errors import OrchError
from orch.gang import Worker


def who(worker: Worker, *args: Any) -> tuple[Any, ...]:
    return (worker.rank, worker.world_size, worker.threads, os.getpid(), *args)


def all_reduce(worker: Worker, name: str = "world", threads: int = 1) -> float:
    import torch

    tensor = torch.full((3,), float(worker.rank + 1))
    worker.progress.set(step=0, task="all_reduce.b0", waiting=True)
    worker.process_group(name, threads=threads).allreduce([tensor]).wait()
    worker.progress.set(waiting=False)
    return float(tensor[0])


def node_labels(worker: Worker) -> dict[str, str]:
    """Return the labels of the Ray node whose raylet made the host that made this worker."""
    import psutil

    for process in psutil.Process().parents():
        for word in process.cmdline():
            if word.startswith("--labels="):
                return dict(json.loads(word.removeprefix("--labels=")))
    return {}


def listens(worker: Worker) -> list[str]:
    """Return the addresses that this worker and its process group listen on."""
    import psutil

    worker.process_group("listens")
    found = psutil.Process().net_connections("inet")
    return sorted({one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN})


def network_of(worker: Worker) -> str:
    """Return what tells the worker's network namespace from others."""
    return os.readlink("/proc/self/ns/net")


def timed_all_reduce(worker: Worker, nbytes: int) -> float:
    """Return the seconds of one all-reduce of `nbytes`, begun together."""
    import torch

    group = worker.process_group("timed")
    tensor = torch.ones(nbytes // 4)
    group.barrier().wait()
    begin = time.perf_counter()
    group.allreduce([tensor]).wait()
    return time.perf_counter() - begin


def cores(worker: Worker) -> list[set[int]]:
    """Run a collective, then say on which cores each thread of this process may run."""
    all_reduce(worker)
    return [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]


def speak(worker: Worker, text: str) -> None:
    sys.stdout.write(f"{text} {worker.rank}\n")
    sys.stderr.write(f"{text} err {worker.rank}\n")


def environment(worker: Worker) -> tuple[int, str, str]:
    import torch

    return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["ORCH_TEST"]


def events(worker: Worker, count: int) -> str:
    for number in range(count):
        worker.emit({"step": number})
    return "done"


def compute(worker: Worker, seconds: float) -> None:
    """Use a core for so long, in steps that every rank waits for; say each."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        worker.emit("step")
        all_reduce(worker)
        sum(range(100_000))


def fail_at(worker: Worker, rank: int, how: str) -> None:
    """Train five steps of all-reduce; `rank` fails in step 3 as `how` says."""
    import torch

    group = worker.process_group("fail")
    for step in range(5):
        worker.progress.set(step=step, task="all_reduce.b1", waiting=False)
        if worker.rank == rank and step == 3:
            _fail(how)
        worker.progress.set(waiting=True)
        group.allreduce([torch.ones(4)]).wait()
        worker.progress.set(waiting=False)


def _fail(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit":
        os._exit(7)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "sleep":
        time.sleep(3600)
    elif how == "raise":
        raise ValueError("a weight is not finite\nsecond line")
    elif how == "orch":
        raise OrchError("data set 'x' is absent", code="E321", hint="make it")
    elif how == "lambda":
        raise SystemExit(3)


def unpicklable(worker: Worker) -> Any:
    return lambda: worker


def gather_in(worker: Worker, ranks: list[int]) -> list[float] | None:
    import torch

    if worker.rank not in ranks:
        return None
    mine, all_of_them = torch.tensor([float(worker.rank)]), [torch.zeros(1) for _ in ranks]
    worker.process_group("sub", ranks=ranks).allgather([all_of_them], [mine]).wait()
    return [float(tensor) for tensor in all_of_them]


def same_group_twice(worker: Worker) -> tuple[bool, bool, bool]:
    import torch.distributed as dist

    one, other = worker.process_group("a"), worker.process_group("b")
    return worker.process_group("a") is one, one is other, dist.is_initialized()


def ddp_gradient(worker: Worker) -> list[float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1), process_group=worker.process_group("ddp", threads=2))
    model(torch.full((2, 4), 1.0 + worker.rank)).sum().backward()
    return [float(x) for x in model.module.weight.grad.flatten()]


def ask_for(worker: Worker, ranks: list[int]) -> None:
    worker.process_group("sub", ranks=ranks)
