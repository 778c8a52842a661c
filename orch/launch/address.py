"""`python -m orch.launch.address`: print the address on which the other machines of a job are to meet this one."""

from __future__ import annotations

import sys

from orch.gang import interfaces

if __name__ == "__main__":
    sys.stdout.write(f"{interfaces.chosen_address()}\n")
