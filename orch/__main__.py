"""`python -m orch`: the same as the console script `orch`."""

import sys

from orch.cli import main

if __name__ == "__main__":
    sys.exit(main())
