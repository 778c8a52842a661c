"""Models that really run, and the glue around them. Only this package of `orch.models` imports torch."""
