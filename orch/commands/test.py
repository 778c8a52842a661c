"""`orch test`: the shipped contract suite, on one technique."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.commands import Panel
from orch.commands._options import Json, TechniqueName
from orch.errors import OrchError, Position, did_you_mean

if TYPE_CHECKING:
    from orch.technique import Technique
    from orch.testing.contract import Finding

PANEL = Panel.EXTEND


def command(
    name: TechniqueName,
    knobs: Annotated[
        list[str] | None, typer.Argument(metavar="[KNOB=VALUE]...", help="Knobs to prove it with.", show_default=False)
    ] = None,
    worlds: Annotated[str, typer.Option(metavar="N,..", help="World sizes to run steps in.")] = "1,2,3,5,8",
    processes: Annotated[str, typer.Option(metavar="N,..", help="World sizes of real processes; 0: none.")] = "2",
    as_json: Json = False,
) -> object:
    """Prove that a technique keeps the contract: plans, costs, exactness or mass, odd sizes and worlds, resume."""
    from orch import registry

    technique = registry.technique(name)
    chosen = parse_knobs(technique, knobs or [])
    sizes = parse_worlds(worlds)
    real = [] if processes.strip() == "0" else parse_worlds(processes, "--processes")
    if importlib.util.find_spec("torch") is None:
        raise OrchError("the contract runs real steps and needs torch", code="E003", hint="pip install 'orch[run]'")
    from orch.commands._output import say
    from orch.testing.contract import prove

    findings = prove(technique, chosen, sizes, processes=real)
    broken = [finding for finding in findings if not finding.holds]
    if as_json and not broken:
        return {"technique": name, "worlds": sizes, "findings": findings}
    if not as_json:
        say(_lines(findings))
    if broken:
        first = broken[0]
        world = f" in a world of {first.world_size}" if first.world_size is not None else ""
        message = f"{name} breaks its contract in {len(broken)} of {len(findings)} checks; first: {first.check}{world}"
        raise OrchError(message, code="E017", hint=first.message)
    say(f"{name} keeps its contract: {len(findings)} checks hold")
    return None


def parse_knobs(technique: Technique, knobs: Sequence[str]) -> dict[str, Any]:
    """Return knobs given as `name=value`, checked. Raises OrchError at the first that is unknown or not allowed."""
    from pydantic import ValidationError

    from orch.recipe.overrides import parse_override

    given = {override.path: override.node.plain() for override in map(parse_override, knobs, range(1, len(knobs) + 1))}
    chosen = {".".join(path): value for path, value in given.items()}
    try:
        technique.config.model_validate(chosen)
    except ValidationError as error:
        first = error.errors()[0]
        knob = str(first["loc"][0]) if first["loc"] else technique.name
        number = list(chosen).index(knob) + 1 if knob in chosen else 1
        where = Position(f"override {number}: {knobs[number - 1]}") if knobs else None
        raise _bad_knob(technique, knob, str(first["msg"]), where) from None
    return chosen


def _bad_knob(technique: Technique, knob: str, reason: str, where: Position | None) -> OrchError:
    known = technique.config.model_fields
    if knob not in known:
        hint = did_you_mean(knob, known) or f"its knobs: {', '.join(known) or 'none'}"
        return OrchError(f"{technique.name} has no knob {knob!r}", code="E018", where=where, hint=hint)
    reason = reason.removeprefix("Value error, ")
    message = f"{technique.name}.{knob}: {reason[:1].lower()}{reason[1:]}"
    return OrchError(message, code="E018", where=where, hint=f"see orch show {technique.name}")


def parse_worlds(text: str, option: str = "--worlds") -> list[int]:
    """Return world sizes written `1,2,3`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 64 for part in parts):
        message = f"{option} {text}: world sizes are numbers from 1 to 64, separated by commas"
        raise OrchError(message, code="E018", hint=f"such as {option} 1,2,3")
    return sorted({int(part) for part in parts})


def _lines(findings: Sequence[Finding]) -> str:
    from orch.commands._output import table

    by_check: dict[str, list[Finding]] = {}
    for finding in findings:
        by_check.setdefault(finding.check, []).append(finding)
    rows = [[check, _worlds(found), _verdict(found)] for check, found in by_check.items()]
    return table(["check", "worlds", ""], rows)


def _worlds(found: Sequence[Finding]) -> str:
    return ", ".join(str(finding.world_size) for finding in found if finding.world_size is not None)


def _verdict(found: Sequence[Finding]) -> str:
    broken = [finding for finding in found if not finding.holds]
    return "holds" if not broken else f"BROKEN: {broken[0].message}"
