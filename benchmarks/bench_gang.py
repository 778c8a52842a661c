"""From a command to the first all-reduce: `python -m benchmarks.bench_gang`.

Bars: on our own Ray at most 2.5 times torchrun, cold; at most 0.3 s for a gang of the same or of another size on warm
workers. Cold starts are whole processes, timed from outside, by turns (torchrun, Ray, processes, torchrun, ...); warm
ones are timed inside one process, from asking for a gang to the result of its first all-reduce.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from orch.gang import end_all, make_gang

BARS = {"cold": 2.5, "warm_s": 0.3}
WAYS = ("torchrun", "local", "processes")
DONE = "first all-reduce done"


def all_reduce(worker: Any) -> float:
    """Reduce one tensor over all ranks, in the worker."""
    import torch

    tensor = torch.ones(4)
    worker.process_group("bench").allreduce([tensor]).wait()
    return float(tensor[0])


def under_torchrun() -> None:
    """Do what a minimal torchrun script does; rank 0 says when it is done."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    if dist.get_rank() == 0:
        print(DONE, flush=True)
    dist.destroy_process_group()


def in_a_gang(on: str, size: int) -> None:
    """Make a gang in this process and say when its first all-reduce is done."""
    from benchmarks import bench_gang  # by its name, which workers can import; this module may be __main__

    with make_gang(on, size) as gang:
        gang.call(bench_gang.all_reduce)
        print(DONE, flush=True)


def cold_s(way: str, size: int) -> float:
    """Return the seconds from starting a process to the first all-reduce of `size` ranks."""
    this = ["-m", "benchmarks.bench_gang"]
    if way == "torchrun":
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        command = [sys.executable, *run, *this, "--child", "torchrun"]
    else:
        command = [sys.executable, *this, "--child", way, "--workers", str(size)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        line = child.stdout.readline().strip()
        taken = perf_counter() - begin
        if line != DONE:
            child.kill()
            raise SystemExit(f"{way}: {child.stderr.read()}")
        child.communicate(timeout=60)
    return taken


def warm_s(on: str, size: int, repeats: int) -> dict[str, list[float]]:
    """Return seconds to the first all-reduce on warm workers of the same size, and of a size made afresh each time."""
    from benchmarks import bench_gang

    def once(number: int, **changed: Any) -> float:
        begin = perf_counter()
        with make_gang(on, number, **changed) as gang:
            gang.call(bench_gang.all_reduce)
        return perf_counter() - begin

    once(size)
    same = [once(size) for _ in range(repeats)]
    fresh = [once(size, env={"ORCH_BENCH": str(number)}) for number in range(repeats)]
    end_all()
    return {"same workers": same, "new workers, warm host": fresh}


def spread(values: Sequence[float]) -> str:
    """Return `median [first quartile, third quartile]`."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds; print the figures, or JSON with --json. Returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        under_torchrun() if options.child == "torchrun" else in_a_gang(options.child, options.workers)
        return 0
    cold: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            cold[way].append(cold_s(way, options.workers))
    warm = {on: warm_s(on, options.workers, 2 * options.rounds) for on in ("local", "processes")}
    # Paired by round, so that a busy machine slows both.
    ratios = {way: [a / b for a, b in zip(cold[way], cold["torchrun"], strict=True)] for way in WAYS[1:]}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    good = median(ratios["local"]) <= BARS["cold"] and median(warm["local"]["same workers"]) <= BARS["warm_s"]
    if options.json:
        facts = {"machine": machine, "workers": options.workers}
        print(json.dumps({**facts, "cold_s": cold, "cold_over_torchrun": ratios, "warm_s": warm, "good": good}))
        return 0 if good else 1
    print(f"{options.workers} workers, {options.rounds} rounds; {machine}; median [quartiles]")
    for way in WAYS:
        print(f"cold, {way}: {spread(cold[way])} s")
    for way, ratio in ratios.items():
        print(f"cold, {way} over torchrun: {spread(ratio)} (bar for local: {BARS['cold']})")
    for on, kinds in warm.items():
        for kind, values in kinds.items():
            print(f"warm, {on}, {kind}: {spread(values)} s (bar: {BARS['warm_s']})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
