"""The box that closes a report: on what terms the stacks met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orch.experiment.statistics import block_orders
from orch.report.captions import calibration
from orch.report.data import Subject
from orch.track import state

_ORDERS_SHOWN = 3


def fairness(about: Subject) -> list[tuple[str, str]]:
    """Return (what, how it was) for everything that could have favoured one stack over another."""
    run = about.run
    return [
        ("allocation", _allocation(about)),
        ("block order", _order(about)),
        ("seeds", _seeds(about)),
        ("tuning budget", _tuning(run.recipe)),
        ("settings that differ", _settings(run.recipe)),
        ("baseline", _baseline(about)),
        ("versions", ", ".join(_versions(run.environment)) or "not recorded"),
        ("calibration", calibration(about)),
        ("conformance", _conformance(about)),
        ("outliers", _outliers(about)),
        ("failed cells", _failed(about)),
        ("remarks", "; ".join([*map(str, run.results.get("notes") or ()), *dict.fromkeys(about.lacks)]) or "none"),
    ]


def _allocation(about: Subject) -> str:
    run = about.run
    if run.simulated:
        return f"none: {run.workers} workers were simulated, nothing was run"
    workers = run.environment.get("workers") or []
    hosts = dict.fromkeys(str(worker.get("host")) for worker in workers if isinstance(worker, dict))
    where = f" on {len(hosts)} host{'s' * (len(hosts) > 1)} ({', '.join(hosts)})" if hosts else ""
    on = (run.facts.get("extra") or {}).get("on")
    return f"one gang of {run.workers} workers{where}, the same for every stack" + (f", reached by {on}" if on else "")


def _order(about: Subject) -> str:
    run = about.run
    if run.simulated:
        return "none: a simulation has no drift"
    blocks = int((run.recipe.get("measure") or {}).get("blocks", 0))
    orders = [" ".join(order) for order in block_orders(list(run.stacks), blocks, run.seeds[0])]
    more = f"; and {len(orders) - _ORDERS_SHOWN} more" if len(orders) > _ORDERS_SHOWN else ""
    return f"balanced shuffle from the seed; {'; '.join(orders[:_ORDERS_SHOWN])}{more}"


def _seeds(about: Subject) -> str:
    seeds = ", ".join(str(seed) for seed in about.run.seeds)
    return f"{seeds}: first parameters and the order of the data are equal for all stacks of a seed"


def _tuning(recipe: Mapping[str, Any]) -> str:
    found = recipe.get("tune")
    if not found:
        return "none: no stack was tuned, each ran with the settings of the recipe"
    return f"the same for every stack: {', '.join(f'{key} {value}' for key, value in dict(found).items())}"


def _settings(recipe: Mapping[str, Any]) -> str:
    when = recipe.get("when") or {}
    parts = [f"{name}: {_flat(change.get('train') or {})}" for name, change in when.items()]
    return "; ".join(parts) or "none: every stack trained with the same settings"


def _flat(data: Mapping[str, Any], path: str = "") -> str:
    parts = []
    for key, value in data.items():
        whole = f"{path}{key}"
        parts.append(_flat(value, f"{whole}.") if isinstance(value, Mapping) and value else f"{whole}={value}")
    return ", ".join(parts)


def _baseline(about: Subject) -> str:
    name = about.run.baseline
    techniques = list((about.run.recipe.get("stacks") or {}).get(name) or {})
    if "torch-ddp" in techniques:
        return f"{name}: torch's own DistributedDataParallel, not orch's engine"
    return f"{name} ({', '.join(techniques)}), run by orch's own engine: not what torch's DDP would do"


def _versions(environment: Mapping[str, Any]) -> Iterator[str]:
    if "orch" in environment:
        yield f"orch {environment['orch']}"
    if "python" in environment:
        yield f"Python {environment['python']}"
    wanted = ("torch", "ray", "numpy")
    packages = dict(str(one).split("==", 1) for one in environment.get("packages") or () if "==" in str(one))
    yield from (f"{name} {packages[name]}" for name in wanted if name in packages)
    project = environment.get("project") or {}
    if project.get("commit"):
        yield f"commit {str(project['commit'])[:10]}{' with changes of its own' if project.get('dirty') else ''}"


def _conformance(about: Subject) -> str:
    if about.run.simulated:
        return "does not apply: a simulation runs the plan itself"
    checked = [name for name, stack in about.run.stacks.items() if stack.result.get("conformant")]
    if len(checked) == len(about.run.stacks):
        return "every step of every stack did what its plan says: tasks, order, bytes, groups"
    return f"known of {', '.join(checked) or 'no stack'} only"


def _outliers(about: Subject) -> str:
    found = [
        f"{pair.own.name}: block {', '.join(str(block + 1) for block in pair.speedup.outliers)}"
        for pair in about.pairs()
        if pair.speedup is not None and pair.paired and pair.speedup.outliers
    ]
    return f"{'; '.join(found)} (far from the others; kept in every figure)" if found else "none"


def _failed(about: Subject) -> str:
    run = about.run
    ended = state.settle(run.directory.path)
    if run.results.get("complete", True) and run.results.get("stacks"):
        return "none"
    reason = "" if ended is None else f": {ended.status}" + (f", {ended.reason}" if ended.reason else "")
    done = {name: len(stack.block_times_s) for name, stack in run.stacks.items()}
    blocks = ", ".join(f"{name} {count}" for name, count in done.items())
    return f"the run did not finish{reason}; blocks done: {blocks}"
