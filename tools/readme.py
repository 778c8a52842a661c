"""Run the blocks of a Markdown file, so that what it shows is what happens: `python tools/readme.py README.md`.

Which blocks run, by the language after the fence:
  console  every line after `$ ` runs in a fresh project folder; what follows must be its output, `...` standing for
           anything: within a line, or, alone on one, for any number of lines
  python   runs in the same folder; it must not fail
  yaml     is a recipe: written to the file that its first comment names, then checked
  sh       is for people; each `make TARGET` in it must be a target of the Makefile
Other blocks (text) are not run. A text block below a comment `<!-- recorded: COMMAND -->` is what COMMAND printed when somebody
last called `python tools/readme.py --record README.md`: real runs take a minute and differ from machine to machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_RECORDED = re.compile(r"<!-- recorded: (.*?) -->\n```text\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line of its fence, counted from 1."""

    language: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a Markdown text."""
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in _BLOCK.finditer(text)]


def links(text: str) -> list[str]:
    """Return the targets of links and pictures, without anchors."""
    return [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if target]


def faults(block: Block, folder: Path) -> Iterator[str]:
    """Run a block in `folder`; yield what does not hold, one message a fault."""
    if block.language == "console":
        yield from _console(block, folder)
    elif block.language == "python":
        yield from _failure(block, [sys.executable, "-c", block.text], folder)
    elif block.language == "yaml":
        yield from _recipe(block, folder)
    elif block.language == "sh":
        yield from _make(block)


def _console(block: Block, folder: Path) -> Iterator[str]:
    for command, expected in sessions(block.text):
        done = _run(["bash", "-c", command], folder)
        if not matches(expected, done.stdout):
            yield f"line {block.line}: `{command}` printed\n{done.stdout}instead of\n{expected}"


def sessions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (command, expected output) of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def matches(expected: str, output: str) -> bool:
    """Whether an output is as expected, `...` standing for anything; spaces at the ends of lines do not count."""
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ ]*\n"
    return re.fullmatch(pattern, output if output.endswith("\n") or not output else output + "\n") is not None


def _recipe(block: Block, folder: Path) -> Iterator[str]:
    named = re.match(r"# (\S+\.yaml)", block.text)
    if named is None:
        yield f"line {block.line}: a recipe's first line names its file: # recipes/NAME.yaml: ..."
        return
    path = folder / named[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
    yield from _failure(block, [sys.executable, "-m", "orch", "check", str(path)], folder)


def _make(block: Block) -> Iterator[str]:
    for target in re.findall(r"^make (\w+)", block.text, flags=re.MULTILINE):
        if subprocess.run(["make", "-n", "-C", str(ROOT), target], capture_output=True, check=False).returncode:
            yield f"line {block.line}: the Makefile has no target {target}"


def _failure(block: Block, command: list[str], folder: Path) -> Iterator[str]:
    done = _run(command, folder)
    if done.returncode != 0:
        yield f"line {block.line}: the {block.language} block fails:\n{done.stdout}"


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader would: `orch` on the path, this clone's code, no project but the folder."""
    bin_folder = folder / "bin"
    if not bin_folder.exists():
        bin_folder.mkdir()
        script = f'#!/bin/sh\nexec "{sys.executable}" -m orch "$@"\n'
        (bin_folder / "orch").write_text(script, encoding="utf-8")
        (bin_folder / "orch").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
    }
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def recorded(text: str) -> list[tuple[str, str]]:
    """Return (command, output) of every recorded block."""
    return [(m[1], m[2]) for m in _RECORDED.finditer(text)]


def record(path: Path) -> None:
    """Run the commands of a file's recorded blocks again, and put what they print in place of what they printed."""
    with tempfile.TemporaryDirectory() as folder:

        def again(match: re.Match[str]) -> str:
            done = _run(["bash", "-c", f"{{ {match[1]}; }} 2>/dev/null"], Path(folder))
            if done.returncode != 0:
                raise SystemExit(f"{path}: `{match[1]}` fails with {done.returncode}")
            output = done.stdout.replace(f"{folder}/", "")
            return f"<!-- recorded: {match[1]} -->\n```text\n{output}```"

        path.write_text(_RECORDED.sub(again, path.read_text(encoding="utf-8")), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run every block of the files; print the faults and return the exit code."""
    if "--record" in arguments:
        for name in arguments:
            if name != "--record":
                record(Path(name))
        return 0
    found = 0
    for name in arguments or ["README.md"]:
        with tempfile.TemporaryDirectory() as folder:
            for block in blocks(Path(name).read_text(encoding="utf-8")):
                for fault in faults(block, Path(folder)):
                    print(f"{name}: {fault}")
                    found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
