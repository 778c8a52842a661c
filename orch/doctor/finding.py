"""One thing that was looked at: what was found, what it costs if it is a lack, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a finding is to be read: fine; worth knowing; something does not work."""

    OK = "ok"
    NOTE = "note"
    LACK = "lack"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found under `name`. `cost`: what does not work or suffers; `fix`: what to do; both empty where all is well."""

    name: str
    state: State
    found: str
    cost: str = ""
    fix: str = ""

    def text(self) -> str:
        """Return all of it as one line."""
        return "; ".join(part for part in (self.found, self.cost, self.fix) if part)


@dataclass(frozen=True, slots=True)
class Way:
    """A value of `--on`: whether it works here, and if not, why and what to do."""

    name: str
    works: bool
    about: str
    fix: str = ""


def ok(name: str, found: str) -> Finding:
    """Return a finding that is fine."""
    return Finding(name, State.OK, found)


def noted(name: str, found: str, cost: str, fix: str) -> Finding:
    """Return a finding that costs something without stopping anything."""
    return Finding(name, State.NOTE, found, cost, fix)


def lacking(name: str, found: str, cost: str, fix: str) -> Finding:
    """Return a finding without which something does not work."""
    return Finding(name, State.LACK, found, cost, fix)


def gigabytes(nbytes: float) -> str:
    """Return bytes as `9.2 GiB`, or in MiB below one of them."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
