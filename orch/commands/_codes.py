"""Error codes, read from the places in the source that raise them, so that a page cannot say something else."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orch.errors import error_pages

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("orch", "techniques")


@dataclass(frozen=True, slots=True)
class Raised:
    """One place that raises a code: the message and hint as written, `{...}` where something is filled in."""

    code: str
    message: str
    hint: str
    module: str
    line: int
    about: str


def raised(root: Path = ROOT) -> list[Raised]:
    """Return every place of our packages under `root` that raises an error with a code, ordered by code and place."""
    found: list[Raised] = []
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "code=" in text:
            found += _in_module(ast.parse(text), str(path.relative_to(root)))
    return sorted(found, key=lambda item: (item.code, item.module, item.line))


def codes(places: Iterable[Raised]) -> list[str]:
    """Return the distinct codes, sorted."""
    return sorted({place.code for place in places})


def page(code: str, places: Iterable[Raised]) -> str:
    """Return the page of one code: every message it stands for, how to mend it, and where it comes from."""
    mine = [place for place in places if place.code == code]
    told = error_pages().get(code)
    lines = [f"{code}: {told.title if told else mine[0].about}", ""]
    if told is not None:
        lines += [told.means, "", *(f"    {line}" for line in told.example.splitlines()), "", told.fix, "", "Messages:"]
    for place in mine:
        lines.append(f"  {place.message or '(a message passed on)'}")
        if place.hint:
            lines.append(f"      to mend it: {place.hint}")
        lines.append(f"      from {place.module}:{place.line}")
    lines += ["", "In a message, {...} stands for what was found. Exit code 3 is a failed run; all else is 2."]
    return "\n".join(lines)


def _in_module(tree: ast.Module, module: str) -> Iterator[Raised]:
    about = (ast.get_docstring(tree) or module).splitlines()[0].rstrip(".")
    scopes: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        code = keywords.get("code")
        if isinstance(code, ast.Constant) and isinstance(code.value, str) and code.value[:1] == "E":
            names = _assigned(scopes, call)
            message = _template(call.args[0], names) if call.args else ""
            hint = _template(keywords["hint"], names) if "hint" in keywords else ""
            yield Raised(code.value, message, hint, module, call.lineno, about)


def _assigned(scopes: Iterable[ast.AST], call: ast.Call) -> dict[str, ast.expr]:
    """Return what the function around `call` assigned to plain names, so that `hint = f"..."` is seen through."""
    inner = [scope for scope in scopes if any(node is call for node in ast.walk(scope))]
    if not inner:
        return {}
    return {
        target.id: node.value
        for node in ast.walk(inner[-1])
        if isinstance(node, ast.Assign) and node.lineno <= call.lineno
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _template(node: ast.expr, names: dict[str, ast.expr]) -> str:
    """Return a string expression as a template: `{name}` for what is filled in at run time."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(value, {}) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, names) + _template(node.right, names)
    if isinstance(node, ast.BoolOp):
        return " / ".join(_template(value, names) for value in node.values)
    if isinstance(node, ast.IfExp):
        return f"{_template(node.body, names)} / {_template(node.orelse, names)}"
    if isinstance(node, ast.Name) and node.id in names:
        return _template(names[node.id], {})
    return "{" + ast.unparse(node) + "}"
