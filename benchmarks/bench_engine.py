"""Our engine against torch's DDP with the same buckets: `python -m benchmarks.bench_engine`.

Bars: at most 1.03 with a compute of at least 20 ms a step, at most 1.10 with about 60 tiny buckets, for 2 and 4
workers. Both engines train in the same processes, in short alternating blocks, each step with the same data; the figure
is the median over blocks of the ratio of their median steps, with a t interval.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

BARS = {"buckets": 1.03, "tiny": 1.10}


@dataclass(frozen=True)
class Case:
    """A model of `layers` square layers, its batch, and the cap of a bucket in bytes."""

    name: str
    layers: int
    width: int
    batch: int
    cap: int

    @property
    def bar(self) -> float:
        """The largest step time ratio allowed."""
        return BARS[self.name.split("-")[0]]


CASES = (
    Case("buckets-25MiB", 8, 768, 96, 25 << 20),
    Case("buckets-4MiB", 8, 768, 96, 4 << 20),
    Case("tiny-60", 30, 32, 32, 0),
)


def compare(worker: Any, case: Case, blocks: int, steps: int, which: Sequence[str]) -> dict[str, list[float]]:
    """Return, per engine, the median step time [s] of each block on this rank."""
    import gc

    import torch

    engines = {name: _engine(worker, case, name) for name in which}
    data = torch.randn(case.batch, case.width, generator=torch.Generator().manual_seed(worker.rank))
    meet = worker.process_group("meet") if worker.world_size > 1 else None

    def block(engine: Any, number: int) -> float:
        times = []
        if meet is not None:
            meet.barrier().wait()
        for _ in range(number):
            begin = perf_counter()
            engine.train_step(lambda module: module(data).square().mean())
            times.append(perf_counter() - begin)
        return median(times)

    found: dict[str, list[float]] = {name: [] for name in which}
    for name in which:
        block(engines[name], 5)
    gc.disable()
    for number in range(blocks):
        for name in which if number % 2 == 0 else which[::-1]:
            found[name].append(block(engines[name], steps))
    gc.enable()
    for name, engine in engines.items():
        found[f"{name} differs"] = [float(len(engine.differences()))]
    return found


def _engine(worker: Any, case: Case, name: str) -> Any:
    import torch

    from orch.runtime.base import GLOO_THREADS, Setup
    from orch.runtime.engine import PlanEngine
    from orch.runtime.optimizers import optimizer_factory
    from techniques.schedules import torch_ddp
    from techniques.schedules.torch_ddp_kernels import DdpEngine

    torch.manual_seed(0)
    parts = [part for _ in range(case.layers) for part in (torch.nn.Linear(case.width, case.width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*parts)
    config = torch_ddp.Config(bucket_cap=f"{case.cap}B", first_bucket=f"{min(case.cap, 1 << 20)}B")
    setup = Setup(optimizer_factory({"sgd": {"lr": 1e-3, "momentum": 0.9}}), worker.rank, config=config)
    plan = plan_of(model, worker.world_size, config)
    if name == "ddp":
        return DdpEngine(plan, model, setup, {"world": worker.process_group("ddp", threads=GLOO_THREADS)})
    threads = int(name.partition("-")[2] or GLOO_THREADS)
    return PlanEngine(plan, model, setup, {"world": worker.process_group("orch", threads=threads)})


def plan_of(model: Any, world_size: int, config: Any) -> Any:
    """Return the plan of a chain of layers with DDP's buckets; times play no part in it."""
    from orch.models.profile import Module, Profile, Tensor, reverse_ready_order
    from orch.testing import small
    from orch.workload import data_parallel
    from techniques.schedules import torch_ddp

    owners = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    modules = tuple(Module(name, 0.0, 0.0, forward_s=0.0, backward_s=0.0) for name in owners)
    tensors = tuple(
        Tensor(name, tuple(parameter.shape), (name.rpartition(".")[0],)) for name, parameter in model.named_parameters()
    )
    profile = Profile("chain", modules, tensors, reverse_ready_order(modules, tensors), "a chain of equal layers")
    context = small.context(profile, small.cluster(world_size))
    return torch_ddp.rewrite(data_parallel(profile, world_size, 1), context, config)


def figures(case: Case, workers: int, ranks: Sequence[Mapping[str, list[float]]], name: str) -> dict[str, Any]:
    """Return the ratio of `name` over DDP: medians over ranks of each block's step times, paired by block."""
    from orch.experiment.statistics import compare as ratio

    def over_ranks(engine: str) -> list[float]:
        return [median(times) for times in zip(*(rank[engine] for rank in ranks), strict=True)]

    own, ddp = over_ranks(name), over_ranks("ddp")
    found = ratio(own, ddp)
    return {
        "case": case.name,
        "workers": workers,
        "engine": name,
        "step_s": median(own),
        "ddp_step_s": median(ddp),
        "ratio": {"median": found.median, "lo": found.lo, "hi": found.hi, "n": found.n},
        "bar": case.bar,
        "conforms": not any(rank[f"{name} differs"][0] or rank["ddp differs"][0] for rank in ranks),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; print a line each, and JSON with --json. Returns 1 when a bar is missed or a plan was not kept."""
    from orch.gang import end_all, make_gang

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--engines", nargs="*", default=["orch"], help="orch, or orch-1 for one gloo thread")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    results = []
    for workers in options.workers:
        with make_gang("processes", workers) as gang:
            for case in CASES:
                if case.name in options.cases:
                    which = ["ddp", *options.engines]
                    ranks = gang.call(compare, case, options.blocks, options.steps, which)
                    results += [figures(case, workers, ranks, name) for name in options.engines]
                    for result in results[-len(options.engines) :]:
                        _show(result)
    end_all()
    if options.json:
        print(json.dumps({"machine": platform.platform(), "results": results}))
    return 0 if all(r["conforms"] and r["ratio"]["median"] <= r["bar"] for r in results) else 1


def _show(result: Mapping[str, Any]) -> None:
    ratio = result["ratio"]
    print(
        f"{result['case']:<14} {result['workers']} workers  {result['engine']:<7} {1e3 * result['step_s']:7.2f} ms"
        f"  ddp {1e3 * result['ddp_step_s']:7.2f} ms  ratio {ratio['median']:.3f} [{ratio['lo']:.3f}, {ratio['hi']:.3f}]"
        f"  bar {result['bar']:.2f}  {'conforms' if result['conforms'] else 'DIFFERS FROM ITS PLAN'}",
        flush=True,
    )


if __name__ == "__main__":
    from benchmarks.bench_engine import main as importable_main  # workers cannot import from __main__

    raise SystemExit(importable_main())
