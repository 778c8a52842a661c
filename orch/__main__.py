"""`python -m orch`: the same as the console script `orch`."""

from orch.cli import main

if __name__ == "__main__":
    main()
