"""The commands of `orch`, one file each and found by being here: adding a command is adding a file.

A module holds `PANEL` (where `orch --help` lists it) and either `command`, a function whose docstring is its help, or
`app`, a Typer of subcommands. It reads, makes one call and shows; heavy imports stand inside the function. A command
asked for `--json` returns its document, and `orch.cli` prints it; otherwise it prints text and returns nothing.
"""

from __future__ import annotations

from enum import StrEnum


class Panel(StrEnum):
    """The headings of `orch --help`, in order."""

    EXPERIMENT = "Experiments"
    BROWSE = "Browse"
    EXTEND = "Extend"
