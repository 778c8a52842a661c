"""What planning and simulating a stack costs: `python -m benchmarks.bench_simulator`.

Bars: at most 10 ms for ResNet-152 on 64 equal workers, plan building included; BERT-large with per-rank jitter over 3
iterations at most 0.3 s on 8192 workers and 2 s on 65,536; time linear in tasks and ranks. Times are CPU seconds of
this process, which a busy machine does not stretch as it stretches the clock; medians and the range of the repeats.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import process_time

from orch import registry
from orch.cluster import Cluster, load
from orch.models import catalogue
from orch.models.profile import Profile
from orch.plan import Plan
from orch.simulate import makespan_s, ready_times, simulate
from orch.stack import Member, apply, arrange
from orch.technique import Context
from orch.testing.small import member
from orch.workload import data_parallel, forward_reads

Stack = tuple[Member, ...]

# A doubling of tasks or ranks may take this many times as long: 2, and what a small case has of fixed cost and caches.
LINEAR = 3.0


@dataclass(frozen=True)
class Figure:
    """Seconds of a case, and the most it may take."""

    name: str
    median_s: float
    least_s: float
    most_s: float
    bar_s: float

    @property
    def holds(self) -> bool:
        """Whether the bar is met."""
        return self.median_s <= self.bar_s


def cluster(nodes: int, jitter: float = 0.0) -> Cluster:
    """Return nodes of 8 made-up GPUs on 100 Gbit Ethernet."""
    source = "made up for a benchmark"
    return load(
        {
            "nodes": nodes,
            "devices_per_node": 8,
            "device": {
                "kind": "gpu",
                "name": "example",
                "rate": {"fp32": "10TFLOP/s"},
                "memory_bandwidth": "900GB/s",
                "memory": "16GiB",
                "source": source,
            },
            "jitter": jitter,
            "links": {
                "intra": {"alpha": "5us", "bandwidth": "100GB/s", "per": "device", "source": source},
                "inter": {"alpha": "30us", "bandwidth": "100Gbit", "per": "node", "source": source},
            },
        }
    )


def profile(name: str) -> Profile:
    """Return the profile of a model of the catalogue."""
    model = catalogue.model(name)
    return model.profile(model.knobs())


def once(model: Profile, where: Cluster, stack: Stack, iterations: int | None) -> None:
    """Draw the plan of a stack and simulate it."""
    context = Context(
        where,
        where.world_size,
        lambda plan, step: ready_times(plan, step, where),
        lambda plan: makespan_s(plan, where),
        {tensor.name: tensor.shape for tensor in model.tensors},
        forward_reads(model),
    )
    plan, _ = apply(data_parallel(model, where.world_size, 32), stack, context)
    simulate(plan, where, iterations=iterations)


def stack_of(name: str) -> Stack:
    """Return the stack of one technique and what fills its empty slots."""
    return arrange([member(registry.technique(name))], registry.technique)


def timed(name: str, bar_s: float, repeats: int, work: Callable[..., object], *arguments: object) -> Figure:
    """Return the figure of `work(*arguments)`, run once before to load what it needs."""
    work(*arguments)
    times = []
    for _ in range(repeats):
        begin = process_time()
        work(*arguments)
        times.append(process_time() - begin)
    return Figure(name, median(times), min(times), max(times), bar_s)


def figures(repeats: int) -> list[Figure]:
    """Return all figures; the bar of growth is a multiple of what half as much takes."""
    resnet, bert, bucketed = profile("resnet152"), profile("bert-large"), stack_of("bucketed")
    found = [
        timed(f"resnet152, 64 workers, {stack}", 0.010, 5 * repeats, once, resnet, cluster(8), stack_of(stack), None)
        for stack in ("bucketed", "mg-wfbp", "dear")
    ]
    for nodes, bar_s in ((1024, 0.3), (8192, 2.0)):
        name = f"bert-large, {8 * nodes} workers with jitter, 3 iterations"
        found.append(timed(name, bar_s, repeats, once, bert, cluster(nodes, 0.05), bucketed, 3))
    half = timed("half the ranks", 0.0, repeats, once, bert, cluster(4096, 0.05), bucketed, 3)
    found.append(replace(found[-1], name="65,536 workers after 32,768", bar_s=LINEAR * half.median_s))
    plan, where = data_parallel(resnet, 64, 32), cluster(8)
    half, whole = (timed("twice the tasks", 0.0, repeats, simulate_for, plan, where, count) for count in (50, 100))
    found.append(replace(whole, bar_s=LINEAR * half.median_s))
    return found


def simulate_for(plan: Plan, where: Cluster, iterations: int) -> None:
    """Simulate so many iterations: each has the tasks of a step."""
    simulate(plan, where, iterations=iterations)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a figure, or JSON with --json. Returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = figures(options.repeats)
    if options.json:
        print(json.dumps({"figures": [asdict(figure) for figure in found], "machine": platform.platform()}))
    else:
        for figure in found:
            range_ms = f"[{1e3 * figure.least_s:.1f}, {1e3 * figure.most_s:.1f}]"
            verdict = "" if figure.holds else "  MISSED"
            print(f"{figure.name}: {1e3 * figure.median_s:.1f} ms {range_ms}, bar {1e3 * figure.bar_s:.0f} ms{verdict}")
    return 0 if all(figure.holds for figure in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
