"""Plans as JSON: plain data to show, diff, log and keep as golden files."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from orch.errors import OrchError
from orch.plan.buffers import Group, Value
from orch.plan.operations import Operation
from orch.plan.plan import Plan, Step, Task


def to_json(plan: Plan) -> dict[str, Any]:
    """Return `plan` as JSON types. Ranges stay ranges: {"range": [start, stop, step]}."""
    return {
        "name": plan.name,
        "world_size": plan.world_size,
        "roles": {name: _ranks(ranks) for name, ranks in plan.roles.items()},
        "groups": {name: [_ranks(block) for block in group.blocks] for name, group in plan.groups.items()},
        "steps": [[_task(task) for task in step] for step in plan.steps],
    }


def from_json(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `to_json` wrote. Raises OrchError when an operation's class is not to be found."""
    steps = tuple(Step(tuple(_read_task(task) for task in step)) for step in data["steps"])
    roles = {name: _read_ranks(ranks) for name, ranks in data["roles"].items()}
    groups = {
        name: Group(name, tuple(_read_ranks(block) for block in blocks)) for name, blocks in data["groups"].items()
    }
    return Plan(data["name"], data["world_size"], steps, roles, groups)


def _ranks(ranks: range | tuple[int, ...]) -> Any:
    return {"range": [ranks.start, ranks.stop, ranks.step]} if isinstance(ranks, range) else list(ranks)


def _read_ranks(data: Any) -> range | tuple[int, ...]:
    return range(*data["range"]) if isinstance(data, Mapping) else tuple(data)


def _task(task: Task) -> dict[str, Any]:
    """A task without the fields that stand at their default, so that a golden file shows what matters."""
    result: dict[str, Any] = {"name": task.name, "op": _plain(task.op), "stream": task.stream}
    for field in dataclasses.fields(task)[3:]:
        value = getattr(task, field.name)
        if value != field.default:
            result[field.name] = list(value) if isinstance(value, tuple) else value
    return result


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not ("unsaid" in field.metadata and getattr(value, field.name) == field.default)
        }
        return {"is": f"{type(value).__module__}:{type(value).__qualname__}"} | fields
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        kind = _kind(value["is"])
        return kind(**{name: _read(item) for name, item in value.items() if name != "is"})
    return tuple(_read(item) for item in value) if isinstance(value, list) else value


def _kind(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise OrchError(f"the plan holds an operation {path!r} that is not installed", code="E501") from None
    # Only values of a plan are ever made from a file, so that reading a plan runs nothing else.
    if not (isinstance(kind, type) and issubclass(kind, Operation | Value)):
        raise OrchError(f"the plan holds {path!r}, which is not an operation", code="E501")
    return kind


def _read_task(data: Mapping[str, Any]) -> Task:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name != "op"
    }
    return Task(op=_read(data["op"]), **fields)
