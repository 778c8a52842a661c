"""What may be imported when: a subprocess per command, since one import here would hide another's."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "ray", "mlflow", "optuna", "transformers", "sklearn", "matplotlib")
LIGHT_COMMANDS = {
    "help": ["--help"],
    "list": ["list"],
    "list json": ["list", "techniques", "--json"],
    "show technique": ["show", "mg-wfbp"],
    "show cluster": ["show", "local-4"],
    "show model": ["show", "gpt2"],
    "check": ["check", "quickstart"],
    "plan": ["plan", "quickstart"],
    "schema": ["show", "recipe", "--json-schema"],
    "show recipe": ["show", "recipe"],
    "show code": ["show", "E001"],
    "papers": ["reproduce"],
    "claim": ["reproduce", "mg-wfbp", "--explain", "mg9"],
}
# Whose business a library is. Everything else asks them, or imports it inside a function that needs it.
OWNERS = {
    "mlflow": ("orch/track/",),
    "ray": ("orch/gang/",),
    "optuna": ("orch/sweep/",),
}


@pytest.mark.parametrize("name", LIGHT_COMMANDS)
def test_looking_imports_nothing_heavy(name: str) -> None:
    code = (
        "import json, sys; from orch import cli; code = cli.main(json.loads(sys.argv[1]));"
        f"print(json.dumps([code, [m for m in {HEAVY} if m in sys.modules]]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(LIGHT_COMMANDS[name])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []], done.stderr


def test_every_technique_loads_without_torch() -> None:
    code = (
        "import sys; from orch import registry; names = list(registry.techniques());"
        "[registry.technique(name) for name in names]; assert names;"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_by_its_owner_only(library: str) -> None:
    strangers = []
    for package in ("orch", "techniques"):
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if not name.startswith(OWNERS[library]) and library in imported(path):
                strangers.append(name)
    assert strangers == []


def imported(path: Path) -> set[str]:
    """Return the top-level names a file imports, wherever in it, types only included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names
