"""A stack is a SET of techniques: contracts decide the order of passes, fill empty slots and explain conflicts.

Two halves. `arrange` and `check` read contracts only, so a recipe is checked without drawing a plan; `apply` runs the
passes over a plan, checks it after each, and says what each did. It stands above the registry, which finds the
techniques that fill empty slots, and below recipes, which name stacks. Nothing here imports NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from orch.errors import OrchError, clipped
from orch.plan import Collective, Plan, check
from orch.technique import Context, Form, Knobs, Slot, Technique
from orch.units import format_bytes, format_seconds

# What takes the schedule of a stack that names none: what torch's DDP does, on our runtime.
DEFAULT_SCHEDULE = "bucketed"

Lookup = Callable[[str], Technique]


@dataclass(frozen=True)
class Member:
    """One technique of a stack with its knobs; `given` unless it only fills a slot that the user left empty."""

    technique: Technique
    config: Knobs
    given: bool = True

    @property
    def name(self) -> str:
        """The technique's name."""
        return self.technique.name


@dataclass(frozen=True)
class PassReport:
    """What one pass did to a plan: tasks, payload of a step [bytes a worker] and step time [s], before and after."""

    technique: str
    tasks: tuple[int, int]
    payload_bytes: tuple[float, float]
    step_time_s: tuple[float, float] | None
    changed: bool

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.technique}: changed nothing"
        parts = [f"{self.tasks[0]} -> {self.tasks[1]} tasks"]
        parts.append(" -> ".join(format_bytes(value) for value in self.payload_bytes))
        if self.step_time_s is not None:
            parts.append(" -> ".join(format_seconds(value) for value in self.step_time_s) + " (simulated)")
        return f"{self.technique}: {', '.join(parts)}"


def arrange(chosen: Iterable[Member], lookup: Lookup) -> tuple[Member, ...]:
    """Return the members of a stack in the order of their passes, empty slots filled, or raise OrchError (E51x).

    `lookup` finds a technique by name. Order in `chosen` means nothing.
    """
    by_slot: dict[Slot, Member] = {}
    for member in sorted(chosen, key=lambda member: member.name):
        slot = member.technique.slot
        if slot in by_slot:
            raise _same_slot(by_slot[slot], member)
        by_slot[slot] = member
    given = tuple(by_slot.values())
    _check_excludes(given)
    names = [name for member in given for name in member.technique.defaults]
    for name in (*names, DEFAULT_SCHEDULE):
        technique = lookup(name)
        by_slot.setdefault(technique.slot, Member(technique, technique.config(), given=False))
    members = tuple(sorted(by_slot.values(), key=lambda member: member.technique.slot.rank))
    _check_excludes(members)
    _check_forms(members)
    return members


def is_lossless(members: Iterable[Member]) -> bool:
    """Return whether a stack equals plain S-SGD: every one of its techniques does, with the knobs it has."""
    return all(member.technique.is_lossless(member.config) for member in members)


def engine(members: Iterable[Member]) -> str | None:
    """Return `module:Class` of the runtime that a member brings in place of the plan's own, or None."""
    return next((member.technique.engine for member in members if member.technique.engine is not None), None)


def untested_pairs(members: Sequence[Member]) -> list[tuple[str, str]]:
    """Return the pairs of given techniques of which one does not ship with orch: no test of ours has seen them
    together.
    """
    return [
        (left.name, right.name)
        for left, right in combinations([member for member in members if member.given], 2)
        if not (_ships(left.technique) and _ships(right.technique))
    ]


def apply(
    plan: Plan, members: Sequence[Member], context: Context, step_time_s: Callable[[Plan], float] | None = None
) -> tuple[Plan, list[PassReport]]:
    """Return the plan after all passes, checked after each (PlanError names the pass), and what each pass did.

    `members` come from `arrange`. `step_time_s` predicts a plan; without it the reports give no times.
    """
    reports: list[PassReport] = []
    time = None if step_time_s is None else step_time_s(plan)
    size = payload_bytes(plan)
    for place, member in enumerate(members):
        new = _passed(plan, member, context, finished=place == len(members) - 1)
        changed = new is not plan and new != plan
        times = None
        if step_time_s is not None and time is not None:
            after = step_time_s(new) if changed and not _holds_aggregate(new) else time
            times, time = (time, after), after
        before, size = size, payload_bytes(new) if changed else size
        reports.append(PassReport(member.name, (_tasks(plan), _tasks(new)), (before, size), times, changed))
        plan = new
    return plan, reports


def applied(plan: Plan, members: Sequence[Member], context: Context) -> Plan:
    """Return the plan after all passes, checked after each, as `apply` does; what each did is not asked for."""
    for place, member in enumerate(members):
        plan = _passed(plan, member, context, finished=place == len(members) - 1)
    return plan


def payload_bytes(plan: Plan) -> float:
    """Return the bytes that one worker hands to collectives in a step, averaged over the period."""
    total = 0
    for step in plan.steps:
        for task in step.tasks:
            if isinstance(task.op, Collective):
                total += task.op.nbytes
    return total / plan.period


def _passed(plan: Plan, member: Member, context: Context, *, finished: bool) -> Plan:
    try:
        new = member.technique.rewrite(plan, context, member.config)
        if not isinstance(new, Plan):
            raise TypeError(f"rewrite returned {type(new).__name__}, not a Plan")
        return check(new, finished=finished)
    except OrchError as error:
        error.message = f"technique {member.name}: {error.message}"
        error.args = (error.message,)
        raise
    except Exception as error:
        if _ships(member.technique):
            raise  # a fault of orch
        raise _failed(member, error) from error


def _failed(member: Member, error: Exception) -> OrchError:
    """Return what a stranger's pass died of as a fault of the technique, with the last line of its own that was run."""
    code = getattr(member.technique.rewrite, "__code__", None)
    place, at = "", error.__traceback__
    while at is not None:
        if code is not None and at.tb_frame.f_code.co_filename == code.co_filename:
            place = f" ({Path(code.co_filename).name}, line {at.tb_lineno})"
        at = at.tb_next
    reason = clipped(f"{type(error).__name__}: {error}", 200)
    message = f"technique {member.name} cannot rewrite this plan: {reason}{place}"
    return OrchError(message, code="E223", hint=f"orch test {member.name} tries it on small plans; --debug shows all")


def _tasks(plan: Plan) -> int:
    return sum(len(step) for step in plan.steps)


def _holds_aggregate(plan: Plan) -> bool:
    """A payload that no exchange takes yet has no cost, so a plan between passes may have no step time."""
    return any(task.op.kind == "aggregate" for step in plan.steps for task in step)


def _ships(technique: Technique) -> bool:
    return technique.rewrite.__module__.split(".")[0] == "techniques"


def _same_slot(left: Member, right: Member) -> OrchError:
    slot = left.technique.slot.label
    if left.name == right.name:
        return OrchError(f"{left.name!r} is named twice in one stack", code="E510", hint="name it once")
    message = f"{left.name!r} and {right.name!r} both fill slot {slot}"
    return OrchError(message, code="E510", hint=f"keep one, or make {right.name!r} a stack of its own")


def _check_excludes(members: Sequence[Member]) -> None:
    names = {member.name for member in members}
    for member in members:
        for other, reason in member.technique.excludes.items():
            if other in names:
                raise OrchError(
                    f"{member.name!r} and {other!r} exclude one another: {reason}", code="E511", hint=f"drop {other!r}"
                )


def _check_forms(members: Sequence[Member]) -> None:
    form, giver = Form.DENSE, None
    for member in members:
        needs = member.technique.needs
        if form not in needs:
            raise _wrong_form(member, form, giver)
        if member.technique.gives is not None:
            form, giver = member.technique.gives, member
    exchanged = any(member.technique.slot is Slot.EXCHANGE for member in members)
    if giver is not None and form in (Form.SPARSE, Form.QUANTISED) and not exchanged:
        message = f"{giver.name!r} gives {form} gradients, which no all-reduce can add"
        raise OrchError(message, code="E513", hint="add a technique of slot exchange, such as all-gather")


def _wrong_form(member: Member, form: Form, giver: Member | None) -> OrchError:
    needs = " or ".join(sorted(member.technique.needs))
    if giver is None:
        message = f"{member.name!r} needs {needs} gradients and nothing in this stack makes them"
        return OrchError(message, code="E512", hint=f"drop {member.name!r}, or add a compressor that gives {needs}")
    message = f"{member.name!r} needs {needs} gradients and {giver.name!r} gives {form}"
    return OrchError(message, code="E512", hint=f"drop one of them, or make {member.name!r} a stack of its own")
