"""Runs on disk: a run is a plain directory; MLflow is an index over such directories that can be rebuilt at any time.

Only `mlflow_index` imports mlflow, and only a process that keeps the index imports it, so that `orch runs` stays quick.
"""
