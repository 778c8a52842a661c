"""`orch ui`: MLflow's browser on the runs of this project, with host settings that work."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Runs
from orch.errors import OrchError

if TYPE_CHECKING:
    from orch.track.settings import Store

PANEL = Panel.BROWSE
_USUAL_PORT = 5000


def command(
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The port; by default 5000, or a free one.", show_default=False),
    ] = None,
    runs: Runs = None,
) -> None:
    """Browse the runs in MLflow's user interface. Ctrl-C ends it."""
    from orch.commands._output import note
    from orch.track import indexer, settings
    from orch.track.redact import redact_text

    root = settings.runs_root(runs)
    store = settings.store_of(root)
    if not store.links:
        raise OrchError(f"the runs are indexed by a server: open {redact_text(store.uri)}", code="E811")
    if not indexer.available():
        raise OrchError("the browser needs MLflow", code="E003", hint="pip install 'orch[run]'")
    if not root.is_dir():
        raise OrchError(
            f"there are no runs in {root}", code="E019", hint="orch run quickstart makes one; or --runs DIR"
        )
    chosen = choose_port(host, port)
    _bring_up_to_date(root, store)
    note(f"http://{reachable(host)}:{chosen} will show {redact_text(store.uri)} in some ten seconds; Ctrl-C ends it")
    # Job runners serve only MLflow's agent features: seven processes of 200 MB that stay behind when the server ends.
    os.environ.update(indexer.QUIET, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
    # A remark to MLflow's authors, which MLflow's users can do nothing about.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:starlette.middleware.wsgi is deprecated")
    # MLflow takes this process over: signals reach it directly, and nothing is left to supervise.
    os.execv(sys.executable, server_arguments(store.uri, host, chosen))


def _bring_up_to_date(root: Path, store: Store) -> None:
    """Let the browser show true ends, and make a lost index anew from the directories.

    Made here, under a lock: MLflow's server and a driver that begins meanwhile would make it twice at once.
    """
    from orch.commands._output import note
    from orch.track import upkeep

    if store.file is not None and not store.file.exists():
        mended = upkeep.fix(root, store)
        if mended.error is not None:
            raise OrchError(
                f"the index {mended.index} cannot be used: {mended.error}", code="E810", hint="orch runs fix"
            )
    else:
        upkeep.settle_all(root, store, note)


def server_arguments(store: str, host: str, port: int) -> list[str]:
    """Return the command line of the server: this Python, one worker, and every name of this machine allowed.

    MLflow refuses requests whose Host header it does not know (protection against DNS rebinding), and by default it
    knows localhost and private addresses only: a laptop that reaches a login node by its name would be turned away.
    """
    names = sorted({"localhost", "127.0.0.1", "[::1]", socket.gethostname(), socket.getfqdn(), reachable(host)})
    hosts = ",".join(pattern for name in names for pattern in (name, f"{name}:*"))
    origins = ",".join(f"http://{name}:{port}" for name in names)
    return [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", host, "--port", str(port),
        "--workers", "1", "--allowed-hosts", hosts, "--cors-allowed-origins", origins,
    ]  # fmt: skip


def reachable(host: str) -> str:
    """Return the name under which a browser finds a server that listens on `host`."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host


def choose_port(host: str, port: int | None) -> int:
    """Return `port` if it is free, or for None the usual one or any free one. Raises OrchError for a port in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (_USUAL_PORT, 0) if port is None else (port,):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError as error:
                reason = error.strerror or str(error)
                continue
            return int(probe.getsockname()[1])
    raise OrchError(f"cannot listen on {host}:{port}: {reason.lower()}", code="E004", hint="leave --port out")
