"""orch: declare a distributed training experiment; plan it, simulate it, run it, compare it."""

__version__ = "0.1.0"
