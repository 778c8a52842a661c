"""`orch check`: read a recipe and say what is wrong with it, or what it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json, Overrides, RecipeName

if TYPE_CHECKING:
    from orch.recipe import Recipe

PANEL = Panel.EXPERIMENT


def command(
    recipe: RecipeName,
    overrides: Overrides = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Print the whole recipe, defaults written out.")] = False,
    why: Annotated[
        str | None, typer.Option(metavar="KEY", help="Print a value and where it comes from: --why train.steps.")
    ] = None,
    as_json: Json = False,
) -> object:
    """Check a recipe: every name, type, unit and combination. Starts nothing."""
    from orch.commands._output import say
    from orch.recipe import load

    found = load(recipe, overrides or [])
    if why is not None:
        origin = found.origin(why)
        if as_json:
            replaced = [{"value": value, "where": str(where)} for value, where in origin.replaced]
            return {"path": origin.path, "value": origin.value, "where": str(origin.where), "replaced": replaced}
        say(str(origin))
    elif as_json:
        return found.resolved() if resolved else _summary(found)
    else:
        say(_resolved_yaml(found) if resolved else _described(found))
    return None


def _summary(recipe: Recipe) -> dict[str, object]:
    return {
        "recipe": recipe.name,
        "file": str(recipe.path),
        "workers": recipe.described.world_size,
        "baseline": recipe.baseline.name,
        "stacks": {
            name: {"techniques": list(stack.techniques), "lossless": stack.lossless}
            for name, stack in recipe.stacks.items()
        },
    }


def _described(recipe: Recipe) -> str:
    from orch.commands._output import table
    from orch.units import format_count

    rows = [
        [name, " + ".join(stack.techniques), "exact" if stack.lossless else "lossy", _remark(recipe, name)]
        for name, stack in recipe.stacks.items()
    ]
    head = f"{recipe.path}: right; {recipe.name}, {format_count(recipe.described.world_size, 'worker')}, "
    head += format_count(len(rows), "stack")
    return f"{head}\n\n{table(['stack', 'techniques', 'exact', ''], rows)}"


def _remark(recipe: Recipe, stack: str) -> str:
    from orch.stack import untested_pairs

    pairs = [f"{left} with {right}" for left, right in untested_pairs(recipe.stacks[stack].members)]
    remarks = ["baseline"] if stack == recipe.baseline.name else []
    return "; ".join(remarks + [f"never tested together: {', '.join(pairs)}"] * bool(pairs))


def _resolved_yaml(recipe: Recipe) -> str:
    import yaml

    return yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
