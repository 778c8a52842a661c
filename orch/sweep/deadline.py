"""When to begin no more trials: a time from now, or the end of the Slurm job this driver runs in."""

from __future__ import annotations

import os
import re
import time

from orch.errors import OrchError
from orch.units import SECONDS

END = "SLURM_JOB_END_TIME"


def until(deadline: str | None) -> float | None:
    """Return the seconds from now in which trials may begin; None without a deadline. Raises OrchError (E638)."""
    if deadline is None:
        return None
    match = re.fullmatch(r"walltime(?:\s*-\s*(.+))?", deadline.strip())
    if match is None:
        return SECONDS.parse(deadline)
    end = os.environ.get(END, "")
    if not end.isdecimal():
        message = f"deadline: {deadline}, but this is no Slurm job: {END} is not set"
        raise OrchError(message, code="E638", hint="give a time from now: sweep.deadline=2h")
    spare = SECONDS.parse(match[1]) if match[1] else 0.0
    return float(end) - time.time() - spare
