"""Maps of other clusters, read back from the axes they were drawn on."""

from __future__ import annotations

from matplotlib.figure import Figure

from orch.report import paint_maps
from orch.report.style import STACKS, rows_of

REGIME = """\
workers,factor,bit_per_s,stack,step_time_s,own
4,1.0,1e10,ddp,1.00,1
4,1.0,1e10,dear,0.50,1
8,1.0,1e10,ddp,1.00,0
8,1.0,1e10,dear,0.99,0
"""
SCALING = """\
stack,mode,workers,step_time_s,samples_per_s,efficiency
ddp,simulated,1,1.0,10.0,1.0
ddp,simulated,2,1.25,16.0,0.8
ddp,measured,2,2.0,10.0,0.5
"""


def drawn(painter, text: str) -> Figure:
    figure = Figure(layout="constrained")
    painter(figure, rows_of(text), {}, "")
    return figure


def colour(patch) -> str:
    from matplotlib.colors import to_hex

    return to_hex(patch.get_facecolor())


def test_a_cell_has_the_colour_of_the_fastest_and_ties_are_hatched() -> None:
    figure = drawn(paint_maps.regime, REGIME)
    axes = figure.axes[0]
    plain = [patch for patch in axes.patches if not patch.get_hatch()]
    hatched = [patch for patch in axes.patches if patch.get_hatch()]
    assert [colour(patch) for patch in plain] == [STACKS[1], STACKS[1]]
    assert [patch.get_x() for patch in hatched] == [0.5]
    assert [text.get_text() for text in axes.texts] == ["2.00", "1.01"]
    (star,) = (line for line in axes.lines if line.get_marker() == "*")
    assert star.get_xdata()[0] == 0
    assert [label.get_text() for label in axes.get_yticklabels()] == ["10 Gbit/s"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["dear", "tied (within 2 %)", "this cluster"]


def test_what_was_simulated_is_dashed_and_what_was_measured_solid() -> None:
    left, right = drawn(paint_maps.scaling, SCALING).axes
    styles = [(line.get_linestyle(), line.get_marker(), list(line.get_ydata())) for line in right.lines]
    assert styles == [("--", "", [100.0, 80.0]), ("-", "o", [50.0])]
    dotted = next(line for line in left.lines if line.get_linestyle() == ":")
    assert list(dotted.get_ydata()) == [10.0, 20.0, 20.0]
    assert left.get_xscale() == left.get_yscale() == "log"
