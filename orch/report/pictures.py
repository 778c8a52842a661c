"""Draw figures from their tables. matplotlib (extra `run`) is loaded when something is drawn.

Nothing here is needed for a result: what cannot be drawn is left out, and the CSV stays.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orch.report import paint, paint_maps, paint_times
from orch.report.style import METADATA, STYLE, Rows, rows_of

Tables = Mapping[str, Rows]
Painter = Callable[[Any, Rows, Tables, str], None]

PAINTERS: dict[str, Painter] = {
    "step_time": paint.step_time,
    "speedup": paint.speedup,
    "breakdown": paint.breakdown,
    "timelines": paint_times.timelines,
    "scaling": paint_maps.scaling,
    "regime": paint_maps.regime,
    "loss": paint_times.loss,
    "expert_load": paint_times.expert_load,
    "target": paint_times.target,
    "pareto": paint.pareto,
    "prediction": paint.prediction,
}
OF_A_RUN = ("step_time", "loss", "timelines", "expert_load")  # what `orch run` leaves beside its CSV files


def draw(folder: Path, title: str = "") -> list[Path]:
    """Draw the figures of a run whose CSV lies in `folder`; return the files written, none where matplotlib is not
    installed.

    Raises OSError where they cannot be written.
    """
    if not available():
        return []
    tables = {path.stem: rows_of(path.read_text("utf-8")) for path in sorted(folder.glob("*.csv"))}
    written: list[Path] = []
    for name in OF_A_RUN:
        if tables.get(name):
            formats = ("png", "pdf") if name == "step_time" else ("png",)
            for kind, data in drawn(name, tables, title, formats).items():
                path = folder / f"{name}.{kind}"
                path.write_bytes(data)
                written.append(path)
    return written


def available() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def drawn(name: str, tables: Tables, title: str, formats: Sequence[str]) -> dict[str, bytes]:
    """Return figure `name` in each of `formats` (png, pdf, svg), drawn once."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        PAINTERS[name](figure, tables[name], tables, title)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # found once, it holds for every format
        found: dict[str, bytes] = {}
        for kind in formats:
            data = io.BytesIO()
            figure.savefig(data, format=kind, dpi=160, facecolor="white", metadata=METADATA.get(kind))
            found[kind] = data.getvalue()
    return found
