"""What a user sets by environment variables: read here and nowhere else, and an argument always wins.

`ORCH_RUNS` names the directory of runs (default `./runs`). `MLFLOW_TRACKING_URI`, MLflow's own variable, names another
index (an http server, another database); without it the index is a sqlite file inside the directory of runs.
`ORCH_INTERFACE` names the network interface that workers of several machines meet on. `ORCH_SECRET` is what the ranks of
a world of torchrun or srun must know to be let in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUNS_VARIABLE = "ORCH_RUNS"
STORE_VARIABLE = "MLFLOW_TRACKING_URI"
INTERFACE_VARIABLE = "ORCH_INTERFACE"
SECRET_VARIABLE = "ORCH_SECRET"
_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Store:
    """The index of a directory of runs. `local` is False when the user named another one."""

    uri: str
    index_dir: Path
    local: bool

    @property
    def file(self) -> Path | None:
        """The sqlite file of the store, or None for a server."""
        return Path(self.uri.removeprefix(_SQLITE)) if self.uri.startswith(_SQLITE) else None

    @property
    def links(self) -> bool:
        """Whether this process talks to the database itself, and so can link artifacts instead of sending them."""
        return self.uri.startswith(("sqlite:", "postgresql", "mysql", "mssql"))

    @property
    def artifacts(self) -> Path:
        """Where links to run directories are kept, one per entry."""
        return self.index_dir / "artifacts"


def runs_root(argument: str | Path | None = None) -> Path:
    """Return the directory of runs, without `..` and links: the argument, else `ORCH_RUNS`, else `./runs`."""
    return Path(argument or os.environ.get(RUNS_VARIABLE) or "runs").expanduser().resolve()


def store_of(root: Path, uri: str | None = None) -> Store:
    """Return the index that belongs to `root`: the argument, else `MLFLOW_TRACKING_URI`, else `root/.index/mlflow.db`.

    A directory of its own begins with a dot because folders of recipes never do.
    """
    index_dir = root.resolve() / ".index"
    chosen = uri or os.environ.get(STORE_VARIABLE) or ""
    if not chosen:
        return Store(f"{_SQLITE}{index_dir / 'mlflow.db'}", index_dir, local=True)
    if chosen.startswith(_SQLITE):  # a relative path means the directory of whoever wrote it
        chosen = _SQLITE + str(Path(chosen.removeprefix(_SQLITE)).absolute())
    return Store(chosen, index_dir, local=False)


def interface(environ: Mapping[str, str] = os.environ) -> str:
    """Return the interface for workers of several machines: one name or several, the first that is there counts."""
    return environ.get(INTERFACE_VARIABLE, "").strip()


def secret(environ: Mapping[str, str] = os.environ) -> str:
    """Return what the ranks of one world share and nobody else knows; empty if they share nothing."""
    return environ.get(SECRET_VARIABLE, "")
