"""Write a report: the page, and every figure with its data and its caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orch.errors import OrchError, did_you_mean
from orch.report import data, pictures
from orch.report.captions import TITLES, caption
from orch.report.data import Subject, Table
from orch.report.page import page
from orch.report.style import rows_of

FORMATS = ("pdf", "png", "csv")
_MAKERS: Mapping[str, Callable[[Subject], Table]] = {
    "speedup": data.speedup,
    "breakdown": data.breakdowns,
    "timelines": data.timelines,
    "scaling": data.scaling,
    "regime": data.regime,
    "target": data.target,
    "pareto": data.pareto,
    "prediction": data.prediction,
}
FIGURES = tuple(_MAKERS)


@dataclass(frozen=True)
class Written:
    """What was written, and which figures this run has no data for, with the reason."""

    page: Path | None
    files: tuple[Path, ...]
    absent: dict[str, str]


def write(about: Subject, out: Path, figure: str | None = None, formats: Sequence[str] = FORMATS) -> Written:
    """Write the report of a run into `out`: `report.html` and, under `figures/`, each figure in each of `formats` with its
    caption. With `figure` only that one, and no page.

    Raises OrchError E645 for a figure or a format that there is not, E646 for a figure that the run has no data for, E003
    without matplotlib, E602 where files cannot be written.
    """
    _check(figure, formats)
    chosen = FIGURES if figure is None else (figure,)
    tables = {name: _MAKERS[name](about) for name in chosen}
    absent = {name: _why(name, about) for name, table in tables.items() if not table.rows}
    if figure is not None and figure in absent:
        raise OrchError(f"run {about.run.id} has no figure {figure}: {absent[figure]}", code="E646")
    rows = {name: rows_of(table.csv) for name, table in tables.items() if table.rows}
    wanted = [kind for kind in formats if kind != "csv"] + (["svg", "png"] if figure is None else [])
    drawn = {name: pictures.drawn(name, rows, "", list(dict.fromkeys(wanted))) for name in rows} if wanted else {}
    texts = {name: (caption(name, about), tables[name].csv) for name in rows}
    files: list[Path] = []
    try:
        files = _write_figures(out if figure is not None else out / "figures", formats, drawn, texts)
        whole = None
        if figure is None:
            whole = out / "report.html"
            whole.write_text(page(about, drawn, texts), encoding="utf-8")
    except OSError as error:
        raise OrchError(f"cannot write {error.filename or out}: {error.strerror}", code="E602") from None
    return Written(whole, tuple(files), absent)


def _check(figure: str | None, formats: Sequence[str]) -> None:
    if figure is not None and figure not in FIGURES:
        hint = did_you_mean(figure, FIGURES) or f"figures: {', '.join(FIGURES)}"
        raise OrchError(f"a report has no figure {figure!r}", code="E645", hint=hint)
    for kind in formats:
        if kind not in FORMATS:
            raise OrchError(f"a figure has no format {kind!r}", code="E645", hint=f"formats: {', '.join(FORMATS)}")
    if (figure is None or set(formats) != {"csv"}) and not pictures.available():
        hint = "pip install 'orch[run]'; or --figure F --format csv"
        raise OrchError("figures need matplotlib", code="E003", hint=hint)


def _write_figures(
    folder: Path,
    formats: Sequence[str],
    drawn: Mapping[str, Mapping[str, bytes]],
    texts: Mapping[str, tuple[str, str]],
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, (said, table) in texts.items():
        contents = {kind: table.encode() if kind == "csv" else drawn[name][kind] for kind in formats}
        contents["txt"] = f"{TITLES[name]}. {said}\n".encode()
        for kind, content in contents.items():
            path = folder / f"{name}.{kind}"
            path.write_bytes(content)
            files.append(path)
    return files


def _why(name: str, about: Subject) -> str:
    if about.run.simulated and name in ("target", "prediction"):
        return "it was simulated, nothing was trained or measured"
    if name in ("scaling", "regime"):
        return "; ".join(about.lacks) or "no other size or link can be simulated from it"
    if name == "breakdown":
        return "it did not record where its time went"
    return "the run recorded nothing that it shows"
