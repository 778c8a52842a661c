"""A Ray of emulated nodes: made for this process and gone with it, or kept warm by `orch up` and only borrowed.

Its state, in the directory named after it, says who owns it, how to reach it and what it is; the token in it lets only
its owner in. A cluster that is kept is owned by its own head process, any other by the process that made it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orch.cluster.node import Node
from orch.errors import OrchError, RunError
from orch.gang import emulate_leftovers, shaping, system
from orch.gang.emulate_leftovers import directory_of, identity_of, is_alive, parts, read_state, remove, write_state
from orch.gang.emulate_net import Network, reset, shaping_of
from orch.gang.emulate_node import Plan, Start, resource_of
from orch.gang.janitor import JANITOR
from orch.gang.ray_local import born_with, read_environment_again
from orch.gang.shaping import Shaping

_START_WITHIN_S = 120.0
_LOCK = "in-use"


class EmulatedRay:
    """Connects this process to emulated `nodes`: a kept cluster of just such nodes if one is free, else one of its own.

    `bundles` names the resource of each node, in order. `note` says what the user may want to know of it.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self.bundles = tuple(resource_of(number) for number in range(len(nodes)))
        self._lock: int | None = None
        self._promise: int | None = None
        self.cluster = self._borrow()
        self.note = f"emulated nodes of {self.cluster}, kept by orch up" if self.cluster else ""
        if not self.cluster:
            self.cluster, self._promise = make(self.nodes)
            self.note = f"emulated nodes of {self.cluster}, made for this run"
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    @property
    def shaping(self) -> Shaping:
        """The handles by which links and nodes are changed while they run."""
        return shaping_of(self.cluster, self.nodes)

    def _borrow(self) -> str:
        for cluster in kept():
            if nodes_of(cluster) == self.nodes and (lock := try_lock(cluster)) is not None:
                self._lock = lock
                reset(cluster, self.nodes)
                return cluster
        return ""

    def _connect(self) -> None:
        import ray

        state = read_state(self.cluster)
        logging.getLogger("ray").setLevel(logging.ERROR)
        with system.deferred_interrupt(), born_with(self.cluster, str(state.get("token", ""))):
            try:
                ray.init(
                    str(state["address"]),
                    _node_ip_address=str(state["node_address"]),
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    configure_logging=False,
                )
            except Exception as error:
                raise _failed(self.cluster, error) from error
        alive = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        dead = [number for number, address in enumerate(state["addresses"]) if address not in alive]
        if dead:
            text = f"node {dead[0]} of emulated cluster {state.get('kept') or self.cluster} is dead"
            raise OrchError(text, code="E733", hint="orch down, then orch up again")

    def problem(self) -> str:
        """Return what keeps the cluster from being asked anything; nothing while all is well."""
        head = read_state(self.cluster).get("head")
        well = isinstance(head, list) and bool(head) and identity_of(head[0]) == head
        return "" if well else f"the head of emulated cluster {self.cluster} died"

    def close(self) -> None:
        """Disconnect; end the cluster and remove all of it if it is ours, give it back if it is kept."""
        with system.deferred_interrupt():
            try:
                with contextlib.suppress(ImportError):
                    import ray

                    ray.shutdown()
            finally:
                if self._promise is not None:
                    remove(parts(self.cluster))
                    JANITOR.release(self._promise)
                    self._promise = None
                if self._lock is not None:
                    os.close(self._lock)
                    self._lock = None
                read_environment_again()


def make(nodes: Sequence[Node], kept_as: str = "") -> tuple[str, int | None]:
    """Make the network of `nodes` and start Ray on it; return its name and the janitor's promise to remove it.

    `kept_as` names a cluster that outlives this process, about which nothing is promised. RunError: the kernel or Ray
    refused; nothing is left then.
    """
    state: dict[str, Any] = {"owner": identity_of(os.getpid()), "kept": "", "nodes": [asdict(node) for node in nodes]}
    cluster = emulate_leftovers.claim(state)
    program = [sys.executable, "-I", "-S", emulate_leftovers.__file__, cluster]
    promise = JANITOR.guard(tag=cluster, command=program)
    try:
        network = Network(cluster, nodes)
        token = secrets.token_hex(32)
        head = _start(cluster, network, token)
        state |= {"address": head["address"], "head": identity_of(head["head"]), "token": token}
        state |= {"node_address": network.address, "addresses": network.addresses}
        if kept_as:
            state |= {"kept": kept_as, "owner": state["head"]}
        write_state(cluster, state)
    except BaseException:
        with system.deferred_interrupt():
            remove(parts(cluster))
            JANITOR.release(promise)
        raise
    if not kept_as:
        return cluster, promise
    JANITOR.release(promise)
    return cluster, None


def _start(cluster: str, network: Network, token: str) -> dict[str, Any]:
    directory = directory_of(cluster)
    plan = Plan(
        Start(network.address, f"{directory}/head"),
        [
            Start(
                address,
                f"{directory}/{number}",
                os.path.join(emulate_leftovers.NAMESPACES, shaping.namespace(cluster, number)),
                network.group(number),
                resource_of(number),
            )
            for number, address in enumerate(network.addresses)
        ],
    )
    boot = f"import sys; sys.path[:] = {[entry or os.getcwd() for entry in sys.path]!r}; "
    boot += "from orch.gang.emulate_node import main; main()"
    log_path = f"{directory}/start.log"
    with born_with(cluster, token), open(log_path, "wb") as log:
        try:
            done = subprocess.run(
                [sys.executable, "-c", boot],
                input=plan.to_json().encode(),
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=_START_WITHIN_S,
                check=False,
                start_new_session=True,  # Ctrl-C is for the driver, which then removes everything
            )
        except subprocess.SubprocessError as error:
            raise _failed(cluster, error) from error
    answer: dict[str, Any] = json.loads(done.stdout or b"{}")
    if "address" not in answer:
        with open(log_path, encoding="utf-8", errors="replace") as file:
            last = ([line.strip() for line in file if line.strip()] or ["it ended without a word"])[-1]
        raise _failed(cluster, RuntimeError(answer.get("error") or last))
    return answer


def _failed(cluster: str, error: BaseException) -> RunError:
    lines = str(error).strip().splitlines()
    text = f"the Ray of emulated cluster {cluster} did not start: {lines[0] if lines else type(error).__name__}"
    return RunError(text, code="E734", hint="orch doctor says what this machine lacks")


def kept() -> dict[str, str]:
    """Return the clusters that `orch up` keeps and that are alive, and what each is kept as."""
    states = {name: read_state(name).get("kept") for name in emulate_leftovers.clusters()}
    return {name: str(kept_as) for name, kept_as in states.items() if kept_as and is_alive(name)}


def keep(kept_as: str, nodes: Sequence[Node]) -> str:
    """Make a cluster that outlives this process, to be found as `kept_as`; return its name."""
    cluster, _ = make(nodes, kept_as)
    return cluster


def end(cluster: str, kept_as: str) -> None:
    """Remove a kept cluster. OrchError: a run is using it. RunError: something of it resists."""
    lock = try_lock(cluster)
    if lock is None:
        raise OrchError(f"emulated cluster {kept_as} is in use by a run", code="E735", hint="end the run first")
    try:
        left = remove(parts(cluster))
    finally:
        os.close(lock)
    if left:
        raise RunError(f"{left[0].kind} {left[0].name} of {kept_as} could not be removed", code="E732", hint="be root")


def nodes_of(cluster: str) -> tuple[Node, ...]:
    """Return the nodes that a cluster was made of."""
    return tuple(Node(**node) for node in read_state(cluster).get("nodes", ()))


def try_lock(cluster: str) -> int | None:
    """Return an open file that keeps others from using a cluster until it is closed; None: somebody uses it."""
    descriptor = os.open(os.path.join(directory_of(cluster), _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
