"""`orch show`: a page about anything that has a name, made from the code that owns it."""

from __future__ import annotations

from typing import Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json

PANEL = Panel.BROWSE


def complete_name(incomplete: str) -> list[str]:
    """Return names of techniques, clusters and recipes that begin with `incomplete`; imports none of them."""
    from orch import registry

    known = ["recipe", *registry.techniques(), *registry.files("clusters"), *registry.files("recipes")]
    return sorted(name for name in known if name.startswith(incomplete))


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A technique, model, cluster, recipe or data set; a recipe's field (train.steps); an error code; "
            "or `recipe` for every field.",
            autocompletion=complete_name,
        ),
    ],
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="With `recipe`: print the JSON schema that editors complete from.")
    ] = False,
    as_json: Json = False,
) -> object:
    """Explain a technique, model, cluster, recipe, recipe field or error code."""
    from orch.commands import _pages
    from orch.commands._output import say
    from orch.errors import OrchError

    if json_schema:
        from orch.commands import _schema

        if name != "recipe":
            raise OrchError(f"there is no JSON schema of '{name}'", code="E014", hint="orch show recipe --json-schema")
        return _schema.recipe_schema()
    page = _pages.find(name)
    if as_json:
        return page.facts
    say(page.text())
    return None
