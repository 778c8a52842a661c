"""Where a study is kept: a journal beside the runs, or a database at a URL; and by which file its drivers take turns."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from optuna.storages import BaseStorage, JournalStorage, RDBStorage

from orch.errors import OrchError
from orch.sweep.journal import Journal, locked
from orch.track.directory import slug


def storage_of(url: str) -> BaseStorage:
    """Return the storage at a path, or at the URL of a database. Raises OrchError (E633) where there is none."""
    try:
        if "://" not in url:
            return JournalStorage(Journal(Path(url)))
        turn = _turn_beside(url)
        # Of several drivers that find a database without tables, each would make them.
        with locked(turn) if turn is not None else nullcontext():
            return RDBStorage(url)
    except OSError as error:
        what = f"the storage {_shown(url)} cannot be used" if "://" in url else f"the journal {url} cannot be kept"
        raise OrchError(f"{what}: {error.strerror or error}", code="E633") from None
    except Exception as error:  # noqa: BLE001 - SQLAlchemy, a driver or the network says no, each in its own way
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OrchError(f"the storage {_shown(url)} cannot be used: {reason}", code="E633") from None


def turn_of(url: str, place: Path) -> Path:
    """Return the file by whose lock drivers of a study take turns: beside the storage, whatever directory of runs each has.

    A database that is no file has none; `place` is a file of this directory of runs, whose drivers then take turns.
    """
    return _turn_beside(url) or place.with_suffix(".turn")


def _turn_beside(url: str) -> Path | None:
    path = url
    if "://" in url:
        from sqlalchemy.engine import make_url  # a fifth of a second, which a journal does without

        path = (make_url(url).database or "") if url.startswith("sqlite") else ""
    return Path(path).absolute().with_suffix(".turn") if path not in ("", ":memory:") else None


def _shown(url: str) -> str:
    from orch.track.redact import redact_text

    return redact_text(url)


def journal_path(root: Path, recipe: str, study: str) -> Path:
    """Return where the journal of a study lies: beside the runs of its recipe."""
    return root / slug(recipe) / "sweeps" / f"{slug(study)}.journal"
