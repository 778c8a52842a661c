"""Workers on a Ray cluster: one placement group, all or nothing; in each bundle a host that forks the bundle's workers.

Ray decides where and holds the resources. The workers themselves are plain processes without any of Ray's threads, so
that a measured step is the step's own, exit codes and signals are exact, and one import of torch serves a whole bundle.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orch.errors import OrchError, RunError
from orch.gang import fork_server, interfaces, machine
from orch.gang.host import Address, Host, Reply
from orch.gang.remote_workers import ASK_S, HostLostError, RemoteWorkers
from orch.gang.worker import SPOOL, Spec

_END_S = 5.0
_THREADS = 64  # of a host: one waits in each crew
_crews = itertools.count()

Bundle = tuple[int, bool]  # how many workers, and whether each wants a GPU
Done = Callable[["Placement", bool], None]


class RayHost(Host):
    """The host as a Ray actor: takes its GPUs from Ray, and says where it is."""

    def start(self, crew: int, specs: Sequence[Spec]) -> None:
        """Make the workers of `specs` on the GPUs that Ray gave this actor, on the interface they name: see Host."""
        if specs[0].interface:
            here = interfaces.address_of(specs[0].interface)
            specs = [replace(spec, host=here) for spec in specs]
        super().start(crew, machine.share_out(specs, os.environ.get("CUDA_VISIBLE_DEVICES")))

    def where(self) -> str:
        """Return which machine this is."""
        return machine.identity()


class RayLink:
    """The driver's line to one crew of a RayHost: actor calls."""

    def __init__(self, actor: Any, specs: Sequence[Spec], problem: Callable[[], str]) -> None:
        self.ranks: Sequence[int] = [spec.rank for spec in specs]
        self.name = f"host of ranks {self.ranks}"
        self.shares_disk = False
        self._actor = actor
        self._problem = problem
        self._crew = next(_crews)
        self._started = actor.start.remote(self._crew, list(specs))
        self._where = actor.where.remote()
        self.question: Any = None

    def settle(self) -> None:
        """Return once the workers are made. HostLostError: the host died."""
        self.shares_disk = self._get(self._where) == machine.identity()
        self._get(self._started)
        self.question = self._ask()

    def post(self, rank: int, log_path: str | None, store: Address, payload: bytes) -> None:
        """Hand a call to a rank: see Link."""
        if problem := self._problem():
            raise HostLostError(problem)
        log = log_path if self.shares_disk or log_path is None else SPOOL
        self._actor.post.remote(self._crew, rank, log, store, payload)

    def answer(self) -> Reply | None:
        """Return the host's answer: see Link."""
        if problem := self._problem():  # first: without a session, a call of Ray would start one of its own accord
            raise HostLostError(problem)
        ready, _ = ray.wait([self.question], timeout=0)
        if not ready:
            return None
        reply: Reply = self._get(self.question)
        self.question = self._ask()
        return reply

    def end(self) -> bool:
        """End the crew; tell whether the host is well and can make others."""
        if self._problem():
            return False
        stopped = self._actor.stop.remote(self._crew)
        try:
            ready, _ = ray.wait([stopped], timeout=_END_S)
            return bool(ready) and ray.get(stopped) is None
        except RayError:
            return False

    def _ask(self) -> Any:
        return self._actor.wait.remote(self._crew, ASK_S)

    def _get(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayActorError as error:
            raise HostLostError(f"its host process is gone: {_first_line(error)}") from error


@dataclass(frozen=True, eq=False)
class Placement:
    """Hosts in the bundles of a placement group; they outlive a gang, so that the next needs no new import of torch."""

    bundles: tuple[Bundle, ...]
    group: Any
    actors: tuple[Any, ...]
    addresses: tuple[str, ...]
    problem: Callable[[], str]
    labels: Sequence[Mapping[str, str]] = ()

    def start(self, specs: Sequence[Spec], counts: Sequence[int], done: Done) -> RayWorkers:
        """Return the workers of `specs`, `counts` of them on each host. RunError: a host died."""
        alone = len(set(self.addresses)) == 1
        links: list[RayLink] = []
        first = 0
        try:
            for count, actor, address in zip(counts, self.actors, self.addresses, strict=True):
                host = "127.0.0.1" if alone else address
                links.append(
                    RayLink(actor, [replace(spec, host=host) for spec in specs[first : first + count]], self.problem)
                )
                first += count
            for link in links:
                link.settle()
        except (HostLostError, RayError) as error:
            if isinstance(error, RayTaskError) and isinstance(error.cause, OrchError):
                raise error.cause from None
            raise RunError(f"a host of the gang could not start: {_first_line(error)}", code="E723") from error
        return RayWorkers(self, links, done)

    def end(self) -> None:
        """End the hosts and give their resources back to the cluster."""
        if self.problem():
            return
        for actor in self.actors:
            with contextlib.suppress(RayError):
                ray.kill(actor)
        with contextlib.suppress(RayError):
            remove_placement_group(self.group)


class RayWorkers(RemoteWorkers):
    """Workers of the hosts of a placement. `done(placement, well)` is told when they have ended, and of their hosts."""

    def __init__(self, placement: Placement, links: Sequence[RayLink], done: Done) -> None:
        super().__init__(links)
        self._placement = placement
        self._ray_links = links
        self._done = done

    def pause(self, timeout_s: float) -> None:
        """Wait for an answer: see RemoteWorkers."""
        if not self._placement.problem():
            ray.wait([link.question for link in self._ray_links], timeout=timeout_s)

    def end(self) -> None:
        """End the workers: see Workers."""
        well = [link.end() for link in self._ray_links]  # every one of them, whatever the first says
        self._done(self._placement, all(well))


def place(
    bundles: tuple[Bundle, ...],
    spread: bool,
    patience_s: float,
    problem: Callable[[], str],
    resources: Sequence[str] = (),
    labels: Sequence[Mapping[str, str]] = (),
) -> Placement:
    """Return hosts for `bundles`, all or none; `spread`: each on a node of its own. `problem` says what ails Ray.

    `resources` names, for each bundle, one that only the node has on which it is to be; `labels` what each node must carry.
    RunError: the resources stayed taken for `patience_s`, or a host died.
    """
    wants = [{"CPU": float(n), **({"GPU": float(n)} if gpu else {})} for n, gpu in bundles]
    for want, resource in zip(wants, resources, strict=False):
        want[resource] = 1.0
    selectors = [dict(each) for each in labels] or None
    group = placement_group(wants, "STRICT_SPREAD" if spread else "PACK", bundle_label_selector=selectors)
    actors: list[Any] = []
    try:
        if not group.wait(patience_s):
            text = f"{_wanted(bundles)} did not become free within {patience_s:.0f} s"
            raise RunError(text, code="E722", hint="another job holds them: ray status")
        addresses = _addresses(group, len(bundles))
        path = [entry or os.getcwd() for entry in sys.path]
        for bundle, want in enumerate(wants):
            # Threads, because one of them always sits in `wait`. Not restarted: a gang is all or none.
            options = ray.remote(RayHost).options(
                num_cpus=want["CPU"],
                num_gpus=want.get("GPU", 0),
                max_concurrency=_THREADS,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
            )
            actors.append(options.remote(path, fork_server.PRELOAD))
    except BaseException as error:
        Placement(bundles, group, tuple(actors), (), problem).end()
        if isinstance(error, RayError):
            raise RunError(f"a placement group was not made: {_first_line(error)}", code="E723") from error
        raise
    return Placement(bundles, group, tuple(actors), tuple(addresses), problem, labels)


def bundle_counts(size: int, per_node: int | None, gpu: bool, nodes: Sequence[Mapping[str, float]]) -> list[int]:
    """Return how many workers go on each of as few nodes as can hold them; `nodes`: the resources of each.

    OrchError: they can never fit; says what is wanted, what there is, and what to do.
    """
    slots = sorted((_slots(node, gpu) for node in nodes), reverse=True)
    kind = "GPU" if gpu else "CPU"
    if per_node:
        counts = [per_node] * (size // per_node) + ([size % per_node] if size % per_node else [])
        able = sum(slot >= per_node for slot in slots)
        if able < len(counts):
            wanted = f"{len(counts)} nodes with {per_node} {kind}{'s' * (per_node > 1)} each"
            there = f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {_list(slots)} {kind}s"
            raise _never_fits(f"{size} workers want {wanted}", there)
        return counts
    if sum(slots) < size:
        per = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
        raise _never_fits(f"{size} workers want {size} {kind}s", f"{sum(slots)} on {per}")
    counts = []
    for slot in slots:
        counts.append(min(slot, size - sum(counts)))
        if sum(counts) == size:
            break
    return counts


def refuse_labels(labels: Sequence[Mapping[str, str]]) -> None:
    """Raise OrchError where fewer nodes of the connected cluster carry labels than are to; says which, and how many do."""
    nodes = [node.get("Labels", {}) for node in ray.nodes() if node["Alive"]]
    for wanted in labels:
        count, there = labels.count(wanted), sum(wanted.items() <= node.items() for node in nodes)
        if there < count:
            shown = ",".join(f"{name}={value}" for name, value in wanted.items())
            text = f"{count} node{'s are' if count > 1 else ' is'} to carry {shown}; {there or 'none'} of {len(nodes)} does"
            hint = f"ray start --labels {shown}, or change labels of the cluster"
            raise OrchError(text, code="E712", hint=hint)


def _slots(node: Mapping[str, float], gpu: bool) -> int:
    return int(min(node.get("CPU", 0), node.get("GPU", 0)) if gpu else node.get("CPU", 0))


def _never_fits(wanted: str, there: str) -> OrchError:
    return OrchError(
        f"{wanted}; the cluster has {there}", code="E712", hint="fewer workers (cluster.nodes=...) or a larger one"
    )


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "") if numbers else "no"


def _wanted(bundles: Sequence[Bundle]) -> str:
    kind = "GPU" if bundles[0][1] else "CPU"
    return f"{sum(n for n, _ in bundles)} {kind}s on {len(bundles)} node{'s' * (len(bundles) != 1)}"


def node_resources() -> list[Mapping[str, float]]:
    """Return what each node of the connected cluster has in all, taken or not."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _addresses(group: Any, count: int) -> list[str]:
    node_of = ray.util.placement_group_table(group)["bundles_to_node_id"]
    address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return [address[node_of[bundle]] for bundle in range(count)]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
