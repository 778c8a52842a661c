"""What this machine can do: which ways to reach workers work here, what each lack costs, and how to mend it.

`examine` looks and changes nothing; `leftovers` finds what killed runs left behind, and `remove` takes it away. torch and
Ray are loaded in processes of their own, never here.
"""

from orch.doctor.finding import Finding, State, Way
from orch.doctor.leftovers import Leftover, leftovers, remove
from orch.doctor.report import Report, examine

__all__ = ["Finding", "Leftover", "Report", "State", "Way", "examine", "leftovers", "remove"]
