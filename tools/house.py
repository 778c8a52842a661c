"""Hold the size and layout rules of the house: `python tools/house.py [ROOT]` prints one line a breach and exits 1.

Files at most 400 lines, functions at most 60, no constructor over 8 parameters, a docstring in every module, every
test file beside its source, every test with something that can fail, no path of one machine, nothing left to do.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
SOURCES = ("orch", "techniques", "tools", "benchmarks", "examples")
# Tests about the whole rather than about one module: each stands for a promise, not for a file.
WHOLE = ("tests/golden/", "tests/gpu/", "tests/house/", "tests/matrix/")

_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|tmp|root|home)/[A-Za-z_.]+/")
_UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|NotImplementedErro[r])\b")
_ASSERTS = re.compile(r"\bassert|\braises\b|\bwarns\b|\bassert_\w+|\bcheck_\w+|\bfail\(")
_TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".sh", ".cfg", ".json", ".csv", ""}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tracked(root: Path) -> list[str]:
    """Return the files git knows under `root`, or every file where it is no clone."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode == 0:
        return sorted(name for name in set(listing.stdout.splitlines()) if (root / name).is_file())
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def size_breaches(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    """Yield what is too long or too wide in one module."""
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{name}: {lines} lines; at most {MAX_FILE_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, Function):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines; at most {MAX_FUNCTION_LINES}"
        elif isinstance(node, ast.ClassDef):
            wide = constructor_width(node)
            if wide > MAX_PARAMETERS:
                yield f"{name}:{node.lineno}: {node.name} is made of {wide} parameters; at most {MAX_PARAMETERS}"


def constructor_width(node: ast.ClassDef) -> int:
    """Return how many parameters `__init__` takes, or how many fields of a dataclass have no default."""
    for item in node.body:
        if isinstance(item, Function) and item.name == "__init__":
            arguments = item.args
            return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return 0
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and item.value is None]
    return sum("ClassVar" not in ast.unparse(item.annotation) for item in fields)


def docstring_breaches(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield a module that says nothing about itself; an empty `__init__.py` has nothing to say."""
    if tree.body and not ast.get_docstring(tree):
        yield f"{name}: no module docstring"


def assertion_breaches(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    """Yield tests that cannot fail: neither they nor a helper of the same file that they call asserts anything."""
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    asserting = {node for node in functions if _ASSERTS.search(ast.get_source_segment(text, node) or "")}
    helpers = {node.name for node in asserting}
    for node in functions:
        if node.name.startswith("test") and node not in asserting:
            called = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
            if not called & helpers:
                yield f"{name}:{node.lineno}: {node.name} asserts nothing"


def mirror_breaches(name: str, names: set[str]) -> Iterator[str]:
    """Yield a test file whose path is not `tests/` + the path of a source, with `test_` before its name."""
    path = Path(name)
    if name.startswith(WHOLE) or not path.name.startswith("test_"):
        return
    inner = path.parent.relative_to("tests")
    stem = path.stem.removeprefix("test_")
    candidates = [Path(top) / inner / stem for top in ("", *SOURCES)]
    if inner == Path("."):
        candidates += [Path(stem), Path(stem.upper())]
    for candidate in candidates:
        base = str(candidate)
        if any(other in names for other in (f"{base}.py", f"{base}/__init__.py", f"{base}.md")):
            return
        if any(other.startswith(f"{base}/") for other in names):
            return
    yield f"{name}: mirrors no source; tests/<path>/test_<module>.py tests <path>/<module>.py"


def text_breaches(name: str, text: str) -> Iterator[str]:
    """Yield paths that exist on one machine only, and work left for later."""
    for number, line in enumerate(text.splitlines(), start=1):
        if _MACHINE_PATH.search(line):
            yield f"{name}:{number}: holds a path of one machine"
        if name.endswith(".py") and (found := _UNFINISHED.search(line)):
            yield f"{name}:{number}: {found.group(0)}: finish it or leave it out"


def breaches(root: Path) -> Iterator[str]:
    """Yield every breach under `root`, one line each, in the order of the files."""
    names = tracked(root)
    for name in names:
        if Path(name).suffix not in _TEXT:
            continue
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield from text_breaches(name, text)
        if not name.endswith(".py"):
            continue
        tree = ast.parse(text, filename=name)
        yield from docstring_breaches(name, tree)
        yield from size_breaches(name, text, tree)
        if name.startswith("tests/"):
            yield from assertion_breaches(name, text, tree)
            yield from mirror_breaches(name, set(names))


def main(arguments: list[str]) -> int:
    """Print the breaches of a tree; return the exit code."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = list(breaches(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
