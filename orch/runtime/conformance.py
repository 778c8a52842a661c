"""Does what ran equal the plan? A difference is a sentence; no difference means the simulated figure is about this
code.

Checked per step: every task of this rank exactly once, the order on every stream, the bytes handed to every collective,
the ranks of its group, and the lag rule: work carried over from the previous step runs in the next one, or in a flush,
never in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from orch.plan import (
    ACROSS,
    COMPUTE,
    FAR,
    INSIDE,
    NEAR,
    AllToAll,
    Backward,
    Collective,
    Forward,
    Plan,
    ShareExpert,
    Task,
)
from orch.runtime.record import Record, StepRecord

MOST = 20


def differences(record: Record, rank: int, *, modules: Iterable[str] | None = None) -> list[str]:
    """Return at most `MOST` differences between the record and its plan, in step order; none when they agree.

    `modules` are the modules the model has: a forward of any other (a product without parameters) cannot be seen and is
    not asked for.
    """
    found: list[str] = []
    known = None if modules is None else frozenset(modules)
    pending: bool | None = None
    for step in record:
        carries, pending = _carried(record.plan, step, rank, pending)
        for difference in (*carries, *_step_differences(record.plan, step, rank, known)):
            found.append(f"step {step.number}{' (flush)' if step.flush else ''}: {difference}")
            if len(found) == MOST:
                return found
    return found


def _carried(plan: Plan, step: StepRecord, rank: int, pending: bool | None) -> tuple[list[str], bool]:
    """Return what breaks the lag rule, and whether `step` leaves work; `pending`: whether the one before it did, if
    known.
    """
    found = []
    if pending is not None and step.carried != pending:
        found.append(
            "it finished work of the previous step that was finished already"
            if step.carried
            else "it left work of the previous step unfinished"
        )
    following = plan.steps[(step.place + 1) % plan.period]
    return found, not step.flush and any(task.lag and rank in plan.roles[task.role] for task in following)


def _step_differences(plan: Plan, step: StepRecord, rank: int, modules: frozenset[str] | None) -> Iterator[str]:
    tasks = plan.steps[step.place].tasks
    expected = [number for number, task in enumerate(tasks) if _asked(plan, task, step, rank, modules)]
    yield from _counts(tasks, step.order, expected)
    yield from _orders(tasks, step.order, expected)
    for number in expected:
        task = tasks[number]
        if isinstance(task.op, Collective) and number in step.sent:
            yield from _payload(plan, task, step, number, rank)


def _asked(plan: Plan, task: Task, step: StepRecord, rank: int, modules: frozenset[str] | None) -> bool:
    if rank not in plan.roles[task.role] or (task.lag == 1 and not step.carried) or (task.lag == 0 and step.flush):
        return False
    if isinstance(task.op, Forward):
        return modules is None or task.op.module in modules
    return not isinstance(task.op, Backward) or task.op.in_layer or bool(task.op.ready)


def _counts(tasks: tuple[Task, ...], order: list[int], expected: list[int]) -> Iterator[str]:
    for number in expected:
        if (times := order.count(number)) != 1:
            yield f"task {tasks[number].name!r} ran {times} times instead of once"
    allowed = set(expected)
    for number in dict.fromkeys(order):
        if number not in allowed:
            yield f"task {tasks[number].name!r} ran, but this step does not ask for it"


def _orders(tasks: tuple[Task, ...], order: list[int], expected: list[int]) -> Iterator[str]:
    for stream in dict.fromkeys(task.stream for task in tasks):
        planned = [number for number in expected if tasks[number].stream == stream]
        wanted = set(planned)
        ran = [number for number in order if number in wanted]
        for should, did in zip(planned, ran, strict=False):
            if should != did:
                yield f"stream {stream}: {tasks[did].name!r} ran where the plan has {tasks[should].name!r}"
                break


def _payload(plan: Plan, task: Task, step: StepRecord, number: int, rank: int) -> Iterator[str]:
    op, sent = task.op, step.sent[number]
    if number in step.rows and sent > (most := step.rows[number][0]):
        yield f"task {task.name!r} handed over {sent} bytes for rows of {most}"
    # Of packed rows whose sizes only the data know, the plan has the bytes before they are packed.
    plain = step.of_rows()
    whole = op.buffer.nbytes if isinstance(op, AllToAll) else op.nbytes
    if isinstance(op, AllToAll) and op.ragged:
        yield from _ragged(plan, task, plain, number)
    elif plain.sent[number] != whole:
        yield f"task {task.name!r} handed over {plain.sent[number]} bytes; the plan says {whole}"
    planned = tuple(plan.groups[task.group].block_of(rank))
    if step.ranks[number] != planned:
        yield f"task {task.name!r} ran in ranks {list(step.ranks[number])}; the plan says {list(planned)}"
    if math.isnan(step.starts[number]) or step.ends[number] < step.starts[number]:
        yield f"task {task.name!r} has no end after its start"
    elif task.stream != COMPUTE and (late := _early(plan, step, task, number)):
        yield late


# What brings rows back hands over as many as came, and gets as many as it handed over.
RETURNS = {"combine": "dispatch", "dispatch_backward": "combine_backward"}


def _ragged(plan: Plan, task: Task, step: StepRecord, number: int) -> Iterator[str]:
    """Yield what breaks the rule of payloads that depend on the data.

    On the way out a worker hands over exactly its rows: in one piece, in the near and the far half together, or in the
    hop inside the node, whose relay passes on what it got. On the way back every leg undoes the one that brought the rows.
    """
    op, sent = task.op, step.sent
    assert isinstance(op, AllToAll)
    if op.part in RETURNS:
        yield from _undone(plan, task, step, number)
    elif op.turns > 1 or _stay(plan, step, op):
        yield from _turns(plan, task, step)
    elif op.leg in (NEAR, FAR):
        other = _leg(plan, step, op, op.part, FAR if op.leg == NEAR else NEAR)
        if other is None:
            yield f"task {task.name!r} hands over one half of its rows, and no task the other"
        elif op.leg == FAR:
            mate = _task(plan, step, other)
            total, planned = sent[number] + sent.get(other, 0), op.buffer.nbytes + _rows(mate)
            if total != planned:
                yield f"tasks {task.name!r} and {mate.name!r} handed over {total} bytes; the plan says {planned}"
    elif op.leg == ACROSS:
        other = _leg(plan, step, op, op.part, INSIDE)
        if other is None or sent[number] != step.received.get(other):
            yield f"task {task.name!r} passed on {sent[number]} bytes, which is not what came before"
    elif sent[number] != op.buffer.nbytes:
        yield f"task {task.name!r} handed over {sent[number]} bytes; the plan says {op.buffer.nbytes}"


def _rows(task: Task) -> int:
    """Return the bytes of the rows that an exchange moves."""
    assert isinstance(task.op, AllToAll)
    return task.op.buffer.nbytes


def _stay(plan: Plan, step: StepRecord, op: AllToAll) -> int:
    """Return the bytes that an exchange would hand over if no rows stayed for copies of experts; 0 where there are none."""
    shared = (task.op for task in plan.steps[step.place].tasks if isinstance(task.op, ShareExpert))
    return next((share.whole for share in shared if share.module == op.module), 0)


def _turns(plan: Plan, task: Task, step: StepRecord) -> Iterator[str]:
    """Yield where the turns of an exchange hand over other rows than there are: together all of them, and less where a rank's
    own go nowhere, or those for experts of which it has copies. Told by the last turn.
    """
    op = task.op
    assert isinstance(op, AllToAll)
    if op.turn < op.turns - 1:
        return
    mates = [
        (number, mate)
        for number, mate in enumerate(plan.steps[step.place].tasks)
        if isinstance(mate.op, AllToAll) and (mate.op.part, mate.op.module) == (op.part, op.module)
    ]
    total = sum(step.sent.get(number, 0) for number, _ in mates)
    planned = sum(_rows(mate) for _, mate in mates)
    copied = _stay(plan, step, op)
    whole = len(mates) == op.turns and not copied
    most = copied or (planned if whole else planned * op.turns // len(mates))
    if total > most or (whole and total != planned):
        yield f"the turns of {task.name!r} handed over {total} bytes; the plan says {'' if whole else 'at most '}{most}"


def _undone(plan: Plan, task: Task, step: StepRecord, number: int) -> Iterator[str]:
    """Yield where a chunk that returns rows does not undo the one that brought them."""
    op = task.op
    assert isinstance(op, AllToAll)
    other = _leg(plan, step, op, RETURNS[op.part], op.leg)
    if other is None:
        yield from _pieces_undone(plan, task, step)
    elif (step.sent[number], step.received[number]) != (step.received.get(other), step.sent.get(other)):
        yield (
            f"task {task.name!r} handed over {step.sent[number]} bytes and got {step.received[number]}; "
            f"{_task(plan, step, other).name!r} got {step.received.get(other)} and had handed over {step.sent.get(other)}"
        )


def _pieces_undone(plan: Plan, task: Task, step: StepRecord) -> Iterator[str]:
    """Yield where the pieces in which a chunk returns, of which `task` is one, do not undo together what brought it."""
    op = task.op
    assert isinstance(op, AllToAll)
    tasks = plan.steps[step.place].tasks
    brought = [
        number
        for number, other in enumerate(tasks)
        if isinstance(mate := other.op, AllToAll)
        and (mate.part, mate.module, mate.leg) == (RETURNS[op.part], op.module, op.leg)
        and mate.begin <= op.begin
        and op.end <= mate.end
    ]
    if not brought:
        yield f"task {task.name!r} returns rows that no task brought"
        return
    whole: Any = tasks[brought[0]].op
    if op.end < whole.end:
        return  # the last piece speaks for all
    pieces = [
        number
        for number, other in enumerate(tasks)
        if isinstance(mate := other.op, AllToAll)
        and (mate.part, mate.module, mate.leg) == (op.part, op.module, op.leg)
        and whole.begin <= mate.begin
        and mate.end <= whole.end
    ]
    sent, received = (sum(found.get(number, 0) for number in pieces) for found in (step.sent, step.received))
    if (sent, received) != (step.received.get(brought[0]), step.sent.get(brought[0])):
        yield f"the pieces up to {task.name!r} handed over {sent} bytes and got {received}, which is not what came"


def _task(plan: Plan, step: StepRecord, number: int) -> Task:
    return plan.steps[step.place].tasks[number]


def _leg(plan: Plan, step: StepRecord, op: AllToAll, part: str, leg: str) -> int | None:
    """Return which task is `leg` of the exchange `part` of the chunk that `op` moves."""
    key = (part, op.module, op.chunk, leg)
    for number, task in enumerate(plan.steps[step.place].tasks):
        mate = task.op
        if isinstance(mate, AllToAll) and (mate.part, mate.module, mate.chunk, mate.leg) == key:
            return number
    return None


def _early(plan: Plan, step: StepRecord, task: Task, number: int) -> str:
    """Return what is wrong when a collective was launched before a predecessor of its own step had ended."""
    tasks = plan.steps[step.place].tasks
    for other, candidate in enumerate(tasks[:number]):
        if candidate.name in task.after and candidate.stream == COMPUTE and step.ends[other] > step.starts[number]:
            return f"task {task.name!r} started before {candidate.name!r} had ended"
    return ""
