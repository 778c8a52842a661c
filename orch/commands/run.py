"""`orch run`: really run every stack of a recipe and compare them, each figure beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orch.commands import Panel
from orch.commands._options import Json, OptionalRecipeName, Overrides
from orch.errors import OrchError

PANEL = Panel.EXPERIMENT


def command(
    recipe: OptionalRecipeName = None,
    overrides: Overrides = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="How to reach workers: local, emulate, torchrun, slurm, kuberay, HOST:PORT or ray://HOST:PORT.",
        ),
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Only simulate, and keep the figures as a run.")] = False,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs are kept; default: $ORCH_RUNS, else ./runs.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with a run that ended before it was done: its id, or last."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the trace of all ranks here too (ui.perfetto.dev); see trace.json."),
    ] = None,
    no_track: Annotated[bool, typer.Option("--no-track", help="Leave no run directory and no index entry.")] = False,
    print_only: Annotated[
        bool,
        typer.Option("--print", help="With --on slurm or kuberay: print what would be submitted, and submit nothing."),
    ] = False,
    job: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="With --on slurm or kuberay: about the job (time=2:00:00, image=...)."),
    ] = None,
    as_json: Json = False,
) -> object:
    """Run every stack in one gang, in shuffled blocks; compare them with the baseline and with their predictions."""
    from orch.launch import WAYS

    _refuse_unmeant(on in WAYS, on, recipe is None or resume is not None, trace, "--print" if print_only else job)
    if on in WAYS:
        return _launch(on, recipe, overrides or [], runs, job or [], print_only, as_json)
    from orch.experiment.invoke import Invocation, invoke
    from orch.experiment.show import Terminal

    document = invoke(
        Invocation(
            recipe,
            tuple(overrides or ()),
            on=on,
            simulate=simulate,
            runs=runs,
            track=not no_track,
            resume=resume,
            trace=trace,
        ),
        Terminal(),
    )
    if document is None:
        return None  # a rank of torchrun other than the first: rank 0 speaks for all
    _say(document, recipe or document["experiment"], quiet=as_json)
    _draw(document)
    return document if as_json else None


def _refuse_unmeant(elsewhere: bool, on: str | None, goes_on: bool, trace: Path | None, job: object) -> None:
    """Raise OrchError (E001) for options that mean nothing together: about a job where there is none, and the other way."""
    if on is not None and not on.strip():
        raise OrchError("--on is empty", code="E001", hint="leave it out, or name a way: local")
    if elsewhere and trace is not None:
        hint = "trace.json in the run directory is the same"
        raise OrchError("--trace is written where a run ends, which is elsewhere", code="E001", hint=hint)
    if elsewhere and goes_on:
        raise OrchError(f"--on {on} begins a run of a recipe", code="E001", hint=f"orch run RECIPE --on {on}")
    if job and not elsewhere:
        option = "--print" if job == "--print" else "--job"
        raise OrchError(f"{option} is about what is submitted", code="E001", hint="--on slurm, or --on kuberay")


def _launch(
    on: str,
    name: str | None,
    overrides: list[str],
    runs: Path | None,
    settings: list[str],
    print_only: bool,
    as_json: bool,
) -> object:
    """Print or submit what starts this run elsewhere."""
    from orch.commands._output import say
    from orch.experiment.invoke import refuse
    from orch.launch import job_of, kuberay, slurm
    from orch.recipe import load
    from orch.track.settings import runs_root

    if name is None:
        raise OrchError("no recipe is named", code="E001", hint="orch run RECIPE --on slurm; orch list recipes")
    recipe = load(name, overrides)
    refuse(recipe)  # here and now, not when the job begins
    job = job_of(recipe, name, overrides, runs_root(runs), settings)
    if on == "kuberay":
        document = kuberay.manifest(job)
        if not print_only:
            hint = "add --print, and pipe it to kubectl create -f -"
            raise OrchError("--on kuberay prints a manifest; submitting is kubectl's", code="E728", hint=hint)
        if not as_json:
            say(kuberay.yaml_of(document).rstrip())
        return document if as_json else None
    text = slurm.script(job, Path.cwd())
    if print_only:
        if not as_json:
            say(text.rstrip())
        return {"script": text} if as_json else None
    number = slurm.submit(text)
    if not as_json:
        say(f"submitted batch job {number}\nnext: squeue -j {number}; tail -f orch-{number}.log; orch runs")
    return {"job": number, "script": text} if as_json else None


def _say(document: dict[str, Any], recipe: str, *, quiet: bool) -> None:
    if quiet:
        return
    from orch.commands._output import say, table
    from orch.experiment.tables import faults_of, footnotes, next_steps, table_of

    say(table(*table_of(document)))
    if document.get("faults"):
        say(f"\n{table(*faults_of(document['faults']))}")
    for line in (*footnotes(document), *next_steps(document, recipe)):
        say(line)


def _draw(document: dict[str, Any]) -> None:
    """Draw the run's figures, after the results are shown: nobody waits for them, and a run does not fail by them."""
    import sys
    from contextlib import suppress

    from orch.report.pictures import draw
    from orch.units import format_count

    sys.stdout.flush()
    if document["run_dir"] is not None:
        with suppress(OSError, ValueError):
            draw(
                Path(document["run_dir"]) / "figures",
                f"{document['experiment']}, {format_count(document['workers'], 'worker')}",
            )
