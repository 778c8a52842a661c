"""Errors a user can cause: each knows where it stands, what to do about it, and its exit code.

One error is one line: `file:line:col: message; hint [E210]`. The command line prints that line and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Position:
    """A place in what the user wrote: a file (line and column count from 1) or an override of the command line."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.source, self.line, self.column) if part is not None)


class OrchError(Exception):
    """Something the user can mend: what was found, what is allowed, and the nearest fix.

    Its text is one line, whatever the user's input holds: unprintable characters are shown escaped.
    """

    exit_code = 2

    def __init__(self, message: str, *, code: str = "E000", where: Position | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.where = where
        self.hint = hint

    def at(self, where: Position) -> OrchError:
        """Return this error placed at `where`, unless it already knows its place."""
        if self.where is None:
            self.where = where
        return self

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where is not None else ""
        hint = f"; {self.hint}" if self.hint else ""
        return clipped(f"{place}{self.message}{hint} [{self.code}]", 2000)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (workers to the driver); the default would lose the keyword-only parts.
        return _rebuild, (type(self), self.message, self.code, self.where, self.hint)


class RunError(OrchError):
    """A run failed: the message names the rank, the step and the task, so that the log need not be searched."""

    exit_code = 3


class LostWorkerError(RunError):
    """A worker, its node or the way to it was lost: a run can go on with other workers. `ranks`: those that are gone."""

    ranks: tuple[int, ...] = ()

    @classmethod
    def of(cls, error: RunError, ranks: Iterable[int]) -> LostWorkerError:
        """Return `error` as the loss of `ranks`, its notes with it."""
        lost = cls(error.message, code=error.code, where=error.where, hint=error.hint)
        lost.ranks = tuple(ranks)
        for note in getattr(error, "__notes__", ()):
            lost.add_note(note)
        return lost


def _rebuild(kind: type[OrchError], message: str, code: str, where: Position | None, hint: str) -> OrchError:
    return kind(message, code=code, where=where, hint=hint)


def clipped(text: str, limit: int = 60) -> str:
    """Return `text` on one line, unprintable characters escaped, cut to `limit` characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def quoted(text: str) -> str:
    """Return `text` in single quotes, fit for a message."""
    return f"'{clipped(text)}'"


@dataclass(frozen=True, slots=True)
class ErrorPage:
    """What there is to say about an error code: the fault, why it is refused, what gives it, and what to do."""

    code: str
    title: str
    means: str
    example: str
    fix: str


def error_pages() -> dict[str, ErrorPage]:
    """Return the pages of error codes, by code. Any `error_pages/*.yaml` adds to them; a code has one page."""
    import yaml

    pages: dict[str, ErrorPage] = {}
    for path in sorted((Path(__file__).parent / "error_pages").glob("*.yaml")):
        for code, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            if code in pages:
                raise ValueError(f"{path.name}: {code} has a page already")
            pages[code] = ErrorPage(code, **entry)
    return dict(sorted(pages.items()))


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name a user most likely meant, whatever its case and whether written with `_` or `-`."""
    by_fold = {_folded(candidate): candidate for candidate in sorted(names, reverse=True)}
    folded = _folded(name)
    close = difflib.get_close_matches(folded, by_fold, n=1, cutoff=0.6)
    # A word of a longer name is near it: ddp is torch-ddp, however much shorter.
    close = close or [fold for fold in by_fold if folded in fold.split("-")]
    return by_fold[close[0]] if close else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `did you mean X?`, or the empty string when nothing is near."""
    found = nearest(name, names)
    return f"did you mean {found}?" if found is not None else ""
