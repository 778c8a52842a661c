"""Runs that something else starts: a batch script for Slurm, a RayJob for KubeRay. What they start is `orch run` again.

`WAYS` are the values of `--on` that end here; they print or submit, and reach no worker themselves.
"""

from orch.launch.job import WAYS, Job, job_of

__all__ = ["WAYS", "Job", "job_of"]
