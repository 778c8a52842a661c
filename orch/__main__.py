"""`python -m orch`: the same as the console script `orch`."""

import sys

from orch.cli import program

if __name__ == "__main__":
    sys.exit(program())
