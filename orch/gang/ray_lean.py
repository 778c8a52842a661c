"""Start a local Ray in 2 s instead of 8: without the parts that a gang never uses.

Measured on 2 cores, `ray.init` to the first actor: 9 to 16 s stock, 2.5 s lean. The time goes into Python processes that a
gang has no use for, and that Ray waits for one after the other: the API server, the autoscaler's monitor, the log monitor,
the dashboard agent and the runtime-environment agent (raylet waits until both have written their port files), and a spare
worker for every CPU. This leaves them out by replacing private functions of Ray for the time of one `ray.init`. They are
private, so a caller falls back to the stock start when anything here does not fit the installed version.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

# Stands in for an agent: reads its standard input, which raylet holds open, so it ends when raylet does.
_STAND_IN = 'sh -c "exec cat >/dev/null" sh'
_AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
_NO_PORT = 1  # nobody listens there, and nobody asks: no metrics, no runtime environments


@contextlib.contextmanager
def lean_start() -> Iterator[None]:
    """Make `ray.init` inside this block start only the control store, raylet and one worker. AttributeError: cannot."""
    from ray._private import services
    from ray._private.node import Node

    _raylet: Any = importlib.import_module("ray._raylet")
    names = [_raylet.METRICS_AGENT_PORT_NAME, _raylet.METRICS_EXPORT_PORT_NAME]
    names += [_raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME, _raylet.RUNTIME_ENV_AGENT_PORT_NAME]
    persist, start = _raylet.persist_port, services.start_ray_process

    def start_lean(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        if process_type == "raylet":
            options = dict(part[2:].split("=", 1) for part in command if part.startswith("--") and "=" in part)
            for name in names:
                persist(options["session_dir"], options["node_id"], name, _NO_PORT)
            command = [_lean_option(part) for part in command]
        return start(command, process_type, *args, **kwargs)

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        """Start nothing."""

    with contextlib.ExitStack() as patches:
        for method in ("start_api_server", "start_monitor", "start_log_monitor"):
            patches.enter_context(mock.patch.object(Node, method, nothing))
        patches.enter_context(mock.patch.object(services, "start_ray_process", start_lean))
        # Ray then takes itself for its minimal package and does not import an HTTP server only to look for one.
        missing = mock.Mock(return_value=ImportError("not wanted"))
        patches.enter_context(mock.patch("ray._private.utils.get_dashboard_dependency_error", missing))
        yield


def _lean_option(part: str) -> str:
    name = part.split("=", 1)[0]
    if name in _AGENTS:
        return f"{name}={_STAND_IN}"
    return "--num_prestart_python_workers=1" if name == "--num_prestart_python_workers" else part
