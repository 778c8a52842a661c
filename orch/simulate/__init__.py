"""The simulator: the plan's one rule evaluated with costs. A longest path; event-driven only where streams share a
resource.
"""

from orch.simulate.ready import ready_times
from orch.simulate.simulator import makespan_s, simulate

__all__ = ["makespan_s", "ready_times", "simulate"]
