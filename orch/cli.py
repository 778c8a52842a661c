"""The command line: finds commands, runs one, and turns every ending into a line and an exit code.

Exit codes: 0 done, 1 a fault of orch itself, 2 the user's input, 3 a run failed, 130 interrupted.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command as click_command

from orch import __version__, commands
from orch.commands import Panel
from orch.errors import OrchError, did_you_mean

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

_JSON_FLAGS = {"--json", "--json-schema"}
_HELP_FLAGS = {"-h", "--help"}
_INTERRUPTED = OrchError("interrupted", code="E002")
_INTERRUPTED_CODE = 130
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@cache
def command_names() -> tuple[str, ...]:
    """Return the names of all commands: the modules of `orch.commands`, none of them imported."""
    files = os.listdir(os.path.dirname(commands.__file__))
    return tuple(
        sorted(file.removesuffix(".py") for file in files if file.endswith(".py") and not file.startswith("_"))
    )


class Commands(TyperGroup):
    """The commands, each imported when it is asked for, listed under their panels."""

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names by panel, then by name."""
        del ctx
        panels = list(Panel)
        return sorted(command_names(), key=lambda name: (panels.index(_module(name).PANEL), name))

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Import the module of one command; None when there is no such command."""
        del ctx
        return _command(cmd_name) if cmd_name in command_names() else None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Find the command that the first argument names, or say which one was meant."""
        name = args[0]
        if name not in command_names() and not name.startswith("-") and not ctx.resilient_parsing:
            hint = did_you_mean(name, command_names()) or f"commands: {', '.join(sorted(command_names()))}"
            raise OrchError(f"orch has no command {name!r}", code="E001", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write a section of the help for every panel."""
        names = self.list_commands(ctx)
        width = max(len(name) for name in names)
        for panel in Panel:
            inside = [name for name in names if _module(name).PANEL is panel]
            if inside:
                with formatter.section(panel.value):
                    formatter.write_dl([(name.ljust(width), _command(name).get_short_help_str(300)) for name in inside])


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{commands.__name__}.{name}")


@cache
def _command(name: str) -> Command:
    module = _module(name)
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(**_PLAIN)
        app.command(name, context_settings=dict(_SETTINGS))(module.command)
    command = click_command(app)
    command.name = name
    return command


# No rich here: importing it would double the time of `orch --help`, and a pipe wants plain text.
_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": _SETTINGS,
}

app = typer.Typer(**(_PLAIN | {"add_completion": True}), cls=Commands)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"orch {__version__}")
        raise typer.Exit


@app.callback()
def orch(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="On a fault, show the traceback too.")] = False,
) -> None:
    """Declare a distributed training experiment once: plan it, simulate it, run it, compare it.

    Begin with `orch plan quickstart`, then `orch run quickstart`. `orch show NAME` explains any technique, model,
    cluster, recipe, recipe field or error code.
    """
    del version, debug  # both are acted on before a command runs


def program() -> int:
    """Run the command line of this process. After Ctrl-C, and where no thread is left to be waited for, what was registered
    for the end is done, and no more: taking an interpreter apart is 5 % of `orch check`, and with torch and Ray in it
    takes seconds on a busy machine. `--debug` leaves the usual way, for profilers.
    """
    # What a command imports stays: by default the collector looks through all of it again and again, 4 % of `orch check`.
    gc.set_threshold(100_000)
    code = main()
    if code == _INTERRUPTED_CODE or (threading.active_count() == 1 and "--debug" not in sys.argv):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; prints at most one line about what went wrong."""
    _open_streams()
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    # pydantic's plugins are looked for in every installed distribution: 80 ms that nobody here asked for.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "_ORCH_COMPLETE" in os.environ:  # set by the shell's completion script, which `orch --show-completion` prints
        app(prog_name="orch")
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = not _JSON_FLAGS.isdisjoint(options) and _HELP_FLAGS.isdisjoint(options)
    debug = "--debug" in options
    code = 0
    try:
        with _standard_output_reserved() if as_json else _standard_output_flushed():
            code, document = _outcome(arguments, debug=debug)
        if as_json and document is not None:
            _print_document(document)
    except BrokenPipeError:
        # The reader has had enough (`orch list | head -1`); nothing is wrong, but the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    except OSError as error:  # a full disk behind `> file`; where that already ended the command, it has been said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or _failed(_refused(error), 2)[0]
    return code


class _Unminding(io.FileIO):
    """A standard error whose refusals (full, closed, read-only, nobody reads) end nothing: what cannot be said is dropped."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _open_streams() -> None:
    """Give a process that was started without standard streams (`>&-`) ones that drop what they are told, so that no
    file it opens is taken for one of them; and let no refusal of standard error change how a command ends.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        raw = io.BufferedWriter(_Unminding(2, "w", closefd=False))
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)


def _outcome(arguments: list[str], *, debug: bool) -> tuple[int, object]:
    """Run the command; return the exit code and the document to print, which for a failure is `{"error": ...}`."""
    try:
        command = click_command(app)
        with command.make_context("orch", list(arguments)) as context:
            return 0, command.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code, None
    except (KeyboardInterrupt, typer.Abort):
        return _failed(_INTERRUPTED, _INTERRUPTED_CODE)
    except OrchError as error:
        if debug:
            raise
        return _failed(error, error.exit_code)
    except typer.TyperException as error:
        return _misused(error, arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        if debug:
            raise
        return _failed(_refused(error), 2)
    except Exception as error:
        if debug:
            raise
        if (missing := _missing(error)) is not None:
            return _failed(missing, missing.exit_code)
        kind = type(error).__name__
        hint = "this is a fault of orch; the same command after `orch --debug` shows where"
        return _failed(OrchError(f"internal error: {kind}: {_first_line(error)}", code="E900", hint=hint), 1)


def _missing(error: Exception) -> OrchError | None:
    """Return what to say where a package is asked for that the base installation does not bring."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in ("", "orch", "techniques"):
        return None
    return OrchError(
        f"this command needs {package}, which is not installed", code="E003", hint="pip install 'orch[run]'"
    )


def _refused(error: OSError) -> OrchError:
    """Return what to say when the system refuses a file or a stream: no fault of orch."""
    what = f"{error.filename}: " if error.filename else "cannot write: " if error.errno == errno.ENOSPC else ""
    return OrchError(f"{what}{error.strerror or _first_line(error)}", code="E005", hint="make room, or allow it")


def _misused(error: typer.TyperException, arguments: Sequence[str]) -> tuple[int, object]:
    context = getattr(error, "ctx", None)
    # The parser itself does not say whose option lacks its argument.
    own = f"orch {arguments[0]}" if arguments[0] in command_names() else "orch"
    path = context.command_path if context is not None else own
    message = error.format_message()
    message = message[:1].lower() + message[1:].rstrip(".").replace(". Did you mean", "; did you mean")
    message = re.sub(r" \(Possible options: (--[\w-]+).*\)$", r"; did you mean \1?", message)
    return _failed(OrchError(f"{path}: {message}", code="E001", hint=f"see {path} --help"), 2)


def _failed(error: OrchError, code: int) -> tuple[int, object]:
    sys.stderr.write(f"{error}\n" if error is not _INTERRUPTED else "interrupted\n")
    where = error.where
    return code, {
        "error": {
            "code": error.code,
            "message": error.message,
            "where": None if where is None else {"source": where.source, "line": where.line, "column": where.column},
            "hint": error.hint,
        }
    }


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _print_document(document: object) -> None:
    from orch.commands._output import dump

    sys.stdout.write(dump(document) + "\n")
    sys.stdout.flush()


@contextmanager
def _standard_output_flushed() -> Iterator[None]:
    """Flush inside the guard of `main`, so that a closed pipe is met there and not at the interpreter's end."""
    yield
    sys.stdout.flush()


@contextmanager
def _standard_output_reserved() -> Iterator[None]:
    """Send to standard error whatever this process, a library or a child writes to standard output meanwhile."""
    sys.stdout.flush()
    stream, descriptor = sys.stdout, os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stream
        os.dup2(descriptor, 1)
        os.close(descriptor)
