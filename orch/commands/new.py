"""`orch new`: begin a recipe, a technique or a paper's claims from something that works."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from orch.commands import Panel
from orch.errors import OrchError

PANEL = Panel.EXTEND
app = typer.Typer(
    help="Begin a recipe, a technique or a paper's claims from something that works.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NewName = Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and hyphens.")]


@app.command()
def recipe(name: NewName) -> None:
    """Write NAME.yaml, a recipe that runs, with a comment at every choice."""
    from orch import registry
    from orch.commands import _skeletons
    from orch.commands._output import say

    _check_name(name, registry.files("recipes"), "recipe")
    folder = Path("recipes") if Path("recipes").is_dir() else Path()
    path = folder / f"{name}.yaml"
    _write({path: _skeletons.RECIPE.format(name=name, file=path)})
    say(f"wrote {path}; next: orch check {path}")


@app.command()
def technique(
    name: NewName,
    family: Annotated[
        str, typer.Option(help="The folder of techniques/ it goes to, inside a clone of orch.")
    ] = "schedules",
) -> None:
    """Write a technique that works, and its test, where orch finds them."""
    from orch import registry
    from orch.commands._output import say

    _check_name(name, registry.techniques(), "technique")
    _check_name(family, (), "family")
    clone = registry.PACKAGE.parent
    if (clone / "Makefile").is_file() and Path.cwd().is_relative_to(clone):
        code, test = _in_clone(clone, family, name)
    else:
        code, test = _in_project(name)
    say(f"wrote {code} and {test}")
    say(f"next: orch show {name}; orch test {name}; and in a recipe  stacks: {{mine: [{name}]}}")


@app.command()
def paper(name: NewName) -> None:
    """Write the claims of a paper of your own as data, with a recipe and a table: how to ship an artifact."""
    from orch.commands import _skeletons
    from orch.commands._output import say
    from orch.reproduce.paper import papers

    _check_name(name, papers(), "paper")
    folder = Path("recipes") / "papers"
    claims, recipe, table = folder / f"{name}.yaml", folder / name / "main.yaml", folder / name / "results.csv"
    _write(
        {
            claims: _skeletons.PAPER.format(name=name),
            recipe: _skeletons.PAPER_RECIPE.format(name=name, file=recipe),
            table: _skeletons.PAPER_TABLE.format(name=name),
        }
    )
    say(f"wrote {claims}, {recipe} and {table}")
    say(f"next: orch reproduce {name}; orch reproduce {name} --explain faster")


def _in_clone(clone: Path, family: str, name: str) -> tuple[Path, Path]:
    stem = name.replace("-", "_")
    code = clone / "techniques" / family / f"{stem}.py"
    test = clone / "tests" / "techniques" / family / f"test_{stem}.py"
    files = _technique_files(name, f"techniques.{family}.{stem}", code, test)
    package = code.parent / "__init__.py"
    if not package.exists():
        files[package] = f'"""Techniques of the family {family}."""\n'
    _write(files)
    return _short(code), _short(test)


def _in_project(name: str) -> tuple[Path, Path]:
    """Write both files at the root of the user's project, and list the module in its project file."""
    from orch import registry

    here = registry.project()
    stem = name.replace("-", "_")
    file = here.file or here.root / "orch.toml"
    code, test = here.root / f"{stem}.py", here.root / f"test_{stem}.py"
    if not code.exists():
        _refuse_hidden(name, stem, here.root)
    listed = with_module(file.read_text(encoding="utf-8") if file.exists() else "", stem, file)
    _write(_technique_files(name, stem, code, test))
    file.write_text(listed, encoding="utf-8")
    return _short(code), _short(test)


def _refuse_hidden(name: str, stem: str, root: Path) -> None:
    """Refuse a module that would hide an installed one of its name: with a torch.py in a project nothing trains there."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(stem)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if spec is not None and not any(Path(place).is_relative_to(root) for place in places if place):
        message = f"{stem}.py would stand in the way of the installed module {stem}"
        raise OrchError(message, code="E010", hint=f"such as my-{name}")


def with_module(text: str, module: str, file: Path) -> str:
    """Return a project file's text with `module` in its list of techniques. Raises OrchError where it cannot be added."""
    listed = re.search(r"^(techniques\s*=\s*\[)([^\]]*)\]", text, flags=re.MULTILINE)
    if listed is not None:
        before = listed.group(2).rstrip().rstrip(",")
        items = f'{before}, "{module}"' if before.strip() else f'"{module}"'
        return f"{text[: listed.start()]}{listed.group(1)}{items}]{text[listed.end() :]}"
    line = f'techniques = ["{module}"]\n'
    if file.name != "pyproject.toml":
        return line + text
    head, table, tail = text.partition("[tool.orch]\n")
    if not table:
        raise OrchError(f"{file} has no table [tool.orch]", code="E012", hint=f"add it, with {line.strip()}")
    return head + table + line + tail


def _technique_files(name: str, module: str, code: Path, test: Path) -> dict[Path, str]:
    from orch.commands import _skeletons

    title = name.replace("-", " ").capitalize()
    return {
        code: _skeletons.TECHNIQUE.format(name=name, title=title),
        test: _skeletons.TEST.format(name=name, title=title, module=module),
    }


def _check_name(name: str, taken: object, what: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        fixed = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        hint = f"such as {fixed}" if re.fullmatch(r"[a-z].*", fixed) else "such as my-idea"
        message = f"{name!r} is no name for a {what}: lower-case letters, digits and hyphens, beginning with a letter"
        raise OrchError(message, code="E010", hint=hint)
    stem = name.replace("-", "_")
    if what == "technique" and (keyword.iskeyword(stem) or stem in sys.stdlib_module_names or stem == "orch"):
        message = f"{stem}.py would stand in the way of Python's own {stem}"
        raise OrchError(message, code="E010", hint=f"such as my-{name}")
    if isinstance(taken, dict) and name in taken:
        raise OrchError(
            f"there is a {what} named '{name}' already",
            code="E011",
            hint=f"see orch {'reproduce' if what == 'paper' else 'show'} {name}",
        )


def _write(files: dict[Path, str]) -> None:
    """Write all files or none: an existing one is never replaced."""
    for path in files:
        if path.exists():
            raise OrchError(
                f"{_short(path)} exists already", code="E011", hint="choose another name, or remove it first"
            )
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise OrchError(f"cannot write {_short(path)}: {error.strerror or error}", code="E013") from error


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
