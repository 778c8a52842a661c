"""Where every input of a simulated cell comes from, and what that makes of it as evidence.

An input's evidence ids are compared with the claim's own: where they meet, the input was fitted on what it is to
explain, and there is no outcome. An id may hold `*`, for a cluster fitted on the rows of several models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from orch.cluster.link import Link
from orch.cluster.span import Span
from orch.recipe import Recipe
from orch.recipe.overrides import is_override
from orch.recipe.source import display
from orch.reproduce.evaluate import INSIDE, CellDraws, Setting
from orch.reproduce.paper import Paper

_UNSURE = re.compile(r"\b(?:(recollect\w*)|guess\w*)\b", re.IGNORECASE)
_RESULTS = ("compute.", "cluster.links.", "cluster.device.", "uncertain.")


class Evidence(StrEnum):
    """What an outcome rests on, strongest first."""

    MEASURED = "measured"
    EMULATED = "emulated or other hardware"
    INDEPENDENT = "simulated, independent inputs"
    FITTED_ELSEWHERE = "simulated, inputs fitted on other rows"
    FITTED = "fitted"
    NONE = "none"


@dataclass(frozen=True)
class Origin:
    """One input of a cell: what it is, its value or range as text, where it was written, why, and its evidence."""

    name: str
    value: str
    where: str
    source: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def unsure(self) -> str:
        """`recollection` or `guess` where its source says so, else nothing."""
        found = _UNSURE.search(self.source)
        return "" if found is None else "recollection" if found[1] else "guess"


def origins(
    paper: Paper, experiment: str, draws: CellDraws, costs: Sequence[Setting], stacks: Sequence[str]
) -> list[Origin]:
    """Return every input that the given stacks of a cell were computed from."""
    recipe = draws.recipe
    found = [
        Origin(setting.path, setting.value, *_of_row(paper, experiment, draws, setting), _results(setting))
        for setting in draws.cell.settings
        if setting not in costs
    ]
    if spec := paper.spec.experiments[experiment].plan_costs:
        source = f"{spec.source}: {spec.where}"
        found += [Origin(f"planner: {cost.path}", cost.value, str(cost.where), source) for cost in costs]
    profile, device = recipe.model.profile(recipe.data), recipe.cluster.device
    model = f"{recipe.model.name}: {len(profile.tensors)} tensors"
    found.append(Origin("profile", model, _at(recipe, "model"), profile.source))
    if recipe.spec.compute is None and not profile.measured:
        found.append(Origin("device", device.name, _at(recipe, "cluster.device.source"), device.basis.source))
    kinds = sorted({kind for name in stacks for kind in draws.stacks[name].kinds})
    found += [origin for kind in kinds for origin in _links(recipe, kind)]
    found += [
        Origin(
            f"uncertain: {entry.path}", entry.shown, str(entry.where), entry.known.source, tuple(entry.known.evidence)
        )
        for entry in draws.inputs
    ]
    found += [_stack(recipe, name) for name in stacks]
    return found


def _of_row(paper: Paper, experiment: str, draws: CellDraws, setting: Setting) -> tuple[str, str]:
    """Return where a setting was written, with the row it took numbers from, and how those came to us."""
    row, cells = draws.cell.row, paper.spec.experiments[experiment].cells
    if row is None or cells is None or not setting.numbers:
        return str(setting.where), ""
    table = paper.spec.evidence[cells.table]
    return f"{setting.where}; {row.where}", f"{table.source}: {table.where}"


def _results(setting: Setting) -> tuple[str, ...]:
    """Return the ids of the results a setting takes from a table; a batch or a model is a condition, not a result."""
    return setting.numbers if setting.path.startswith(_RESULTS) else ()


def _at(recipe: Recipe, path: str) -> str:
    from orch.errors import OrchError

    try:
        where = recipe.origin(path).where
    except OrchError:
        return display(recipe.path)
    # An override is one of the cell's settings, which stand in the list with their own place.
    return display(recipe.path) if is_override(where) else str(where)


def _links(recipe: Recipe, kind: str) -> list[Origin]:
    """Return the links that a collective of all ranks uses, with what speaks for its cost."""
    links, span = recipe.cluster.links, recipe.cluster.world
    if kind.endswith(INSIDE) and links.intra is not None:
        node = Span(recipe.cluster.devices_per_node, 1, recipe.cluster.devices_per_node)
        return [_link(recipe, "intra", links.intra, kind.removesuffix(INSIDE), node)]
    outer = links.inter if span.nodes > 1 else links.intra
    if outer is None or span.size == 1:
        return []
    used = [_link(recipe, "inter" if span.nodes > 1 else "intra", outer, kind)]
    if span.nodes > 1 and span.per_node > 1 and outer.chosen(kind, span) is None and links.intra is not None:
        used.append(_link(recipe, "intra", links.intra, kind))
    return used


def _link(recipe: Recipe, which: str, link: Link, kind: str, span: Span | None = None) -> Origin:
    span = span or recipe.cluster.world
    measured = link.chosen(kind, span)
    path = f"cluster.links.{which}"
    if measured is None:
        level = link.point_to_point()
        value = f"{kind} from alpha {level.alpha_s * 1e6:.4g} us, beta {level.beta_s_per_byte * 1e9:.4g} ns/B"
        return Origin(path, value, _at(recipe, f"{path}.source"), link.source, link.evidence)
    place = link.measured.index(measured)
    curve = measured.on(kind, span)
    line = f"{curve.start_up_s * 1e6:.4g} us + {curve.per_byte_s * 1e9:.4g} ns/B" + (
        ", with knees" if curve.knees else ""
    )
    value = f"{measured.collective} of {measured.span.size} ranks, as {kind} of {span.size}: {line}"
    at = _at(recipe, f"{path}.measured.{place}.ranks")
    return Origin(f"{path}.measured.{place}", value, at, measured.source or link.source, measured.evidence)


def _stack(recipe: Recipe, name: str) -> Origin:
    members = recipe.stacks[name].members
    texts = []
    for member in members:
        defaults = type(member.config)().model_dump()
        given = {knob: value for knob, value in member.config.model_dump().items() if value != defaults[knob]}
        texts.append(f"{member.name} {given}" if given else member.name)
    value = ", ".join(texts)
    sources = "; ".join(dict.fromkeys(member.technique.source for member in members))
    return Origin(f"stack {name}", value, _at(recipe, f"stacks.{name}.{members[0].name}"), sources)


def meet(left: Iterable[str], right: Iterable[str]) -> list[str]:
    """Return the ids of `left` that meet one of `right`: equal, matched by `*` on either side, or the whole table of it."""
    right = list(right)
    return [one for one in left if any(_same(one, other) for other in right)]


def _same(one: str, other: str) -> bool:
    return any(fnmatchcase(a, b) or fnmatchcase(a, f"{b}/*") for a, b in ((one, other), (other, one)))


def evidence_of(inputs: Sequence[Origin], published: Sequence[str]) -> tuple[Evidence, str]:
    """Return what simulated draws rest on as evidence for numbers with the ids `published`, and why."""
    for origin in inputs:
        if met := meet(origin.evidence, published):
            return Evidence.FITTED, f"{origin.name} was fitted on {', '.join(met)}, which is what it is to explain"
    fitted = [origin for origin in inputs if origin.evidence]
    if fitted:
        names = ", ".join(dict.fromkeys(origin.name for origin in fitted))
        return Evidence.FITTED_ELSEWHERE, f"from published rows: {names}"
    return Evidence.INDEPENDENT, "no input comes from the paper's own results"


def caps(inputs: Sequence[Origin]) -> str:
    """Return the first input that rests on a recollection or a guess, as a reason to say no more than consistent."""
    return next((f"{origin.name} rests on a {origin.unsure}" for origin in inputs if origin.unsure), "")
