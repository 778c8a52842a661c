"""Gangs: the workers of a run, all or none, behind one interface. Knows no technique, no tracking and no plan.

`make_gang` makes one; `refuse_or_note` says beforehand what can never be; `Gang.call` runs a function on every rank;
`Worker` is what the function is given; `serve_other_ranks` is what ranks other than 0 do under torchrun. Importing this
loads neither torch nor ray.
"""

from orch.gang.gang import Gang, OnEvent
from orch.gang.pool import alike, end_all, make_gang, refuse_or_note
from orch.gang.progress import Place, Progress
from orch.gang.torchrun import serve_other_ranks
from orch.gang.worker import Worker

__all__ = [
    "Gang",
    "OnEvent",
    "Place",
    "Progress",
    "Worker",
    "alike",
    "end_all",
    "make_gang",
    "refuse_or_note",
    "serve_other_ranks",
]
