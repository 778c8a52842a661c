"""Start the Ray nodes of an emulated cluster: a program that enters each namespace, starts a node there, and leaves.

The head (the control store, and a node without CPUs through which drivers connect) is in the machine's own namespace, at
the bridge's address. Ray is imported once: every node is started by a fork, in its namespace and CPU group, so that all
it ever starts is there too. Nodes are started side by side; each has a temporary directory of its own.

Reads a `Plan` as JSON on standard input, and writes `{"address": "HOST:PORT", "head": PID}` or `{"error": TEXT}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

CPUS = 1024  # only count bundles: what a machine can hold is refused before
_OBJECT_STORE_BYTES = 80 << 20  # the least that Ray takes; no memory until it is used
_NEW_NETWORK = 0x40000000
# A node that was killed is dead to the head after some 3 s; one whose cable is cut, after some 9 s.
_SYSTEM = {
    "enable_metrics_collection": False,
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


@dataclass(frozen=True, slots=True)
class Start:
    """A node to start: its address, its namespace and CPU group (paths, "" for none), what is its alone."""

    address: str
    directory: str
    namespace: str = ""
    group: str = ""
    resource: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All nodes of a cluster; the first is the head."""

    head: Start
    nodes: Sequence[Start]

    def to_json(self) -> str:
        """Return this plan as the program reads it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that `to_json` wrote."""
        data = json.loads(text)
        return Plan(Start(**data["head"]), [Start(**node) for node in data["nodes"]])


def resource_of(node: int) -> str:
    """Return the name of the resource by which Ray finds a node."""
    return f"orch_node_{node}"


def start_all(plan: Plan) -> dict[str, Any]:
    """Start the head, then all nodes side by side. RuntimeError: one did not start."""
    for name in ("ray", "ray._private.node", "ray._private.parameter", "ray._private.state"):
        importlib.import_module(name)
    (head,) = _forked([partial(_head, plan.head)])
    _forked([partial(_join, node, head["address"]) for node in plan.nodes])
    return head


def _head(start: Start) -> dict[str, Any]:
    node = _node(start, head=True, num_cpus=0, no_monitor=True, _system_config=_SYSTEM)
    (process,) = node.all_processes["gcs_server"]
    return {"address": node.gcs_address, "head": process.process.pid}


def _join(start: Start, address: str) -> dict[str, Any]:
    _enter(start)
    _node(start, head=False, num_cpus=CPUS, gcs_address=address, resources={start.resource: float(CPUS)})
    return {}


def _enter(start: Start) -> None:
    """Move this process, and so all it starts, into the node's namespace and CPU group."""
    with open(start.namespace, "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {start.namespace}")
    if start.group:
        with open(os.path.join(start.group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write("0")


def _node(start: Start, *, head: bool, **settings: Any) -> Any:
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    from orch.gang.ray_lean import lean_start

    os.makedirs(start.directory, exist_ok=True)
    parameters = RayParams(
        node_ip_address=start.address,
        temp_dir=start.directory,
        num_gpus=0,
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        include_log_monitor=False,
        **settings,
    )
    with lean_start():
        return Node(parameters, head=head, shutdown_at_exit=False, spawn_reaper=False)


def _forked(tasks: Sequence[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run every task in a fork of this process, all at once; RuntimeError with the first error."""
    readers = []
    for task in tasks:
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(read)
            _tell(write, task)
        os.close(write)
        readers.append(read)
    answers = []
    for reader in readers:
        with os.fdopen(reader, "rb") as file:
            answers.append(json.loads(file.read() or b'{"error": "it ended without a word"}'))
    for _ in tasks:
        os.wait()
    for answer in answers:
        if "error" in answer:
            raise RuntimeError(answer["error"])
    return answers


def _tell(write: int, task: Callable[[], dict[str, Any]]) -> None:
    try:
        answer = task()
    except BaseException as error:  # noqa: BLE001 - the parent decides what it means
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        answer = {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}
    with contextlib.suppress(OSError):
        os.write(write, json.dumps(answer).encode())
    os._exit(0)


def main() -> None:
    """Read the plan, start it, and say how that went."""
    output = os.dup(1)
    os.dup2(2, 1)  # Ray may print; the answer is all that goes out
    os.set_inheritable(output, False)
    try:
        answer = start_all(Plan.from_json(sys.stdin.read()))
    except Exception as error:  # noqa: BLE001 - said by whoever started this
        answer = {"error": str(error)}
    os.write(output, json.dumps(answer).encode())
