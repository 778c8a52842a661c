"""Bars and points show what their tables say: read back from the axes they were drawn on."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from orch.report import paint
from orch.report.style import rows_of

SPEEDUP = """\
stack,mode,gain,lo,hi,distinguishable,n,ceiling_gain,lossless
ddp,measured,1.0,,,,8,1.5,True
dear,measured,1.3,1.2,1.4,True,8,1.5,True
top-k,measured,0.9,0.7,1.1,False,8,1.2,False
"""


def drawn(painter, text: str):
    figure = Figure(layout="constrained")
    rows = rows_of(text)
    painter(figure, rows, {}, "")
    return figure


def test_gains_start_at_one_and_end_where_they_end() -> None:
    axes = drawn(paint.speedup, SPEEDUP).axes[0]
    assert [bar.get_x() for bar in axes.patches] == [1.0, 1.0, 1.0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.0, 0.3, -0.1])
    assert [text.get_text() for text in axes.texts] == ["baseline", "1.30× [1.20, 1.40]", "not distinguishable, lossy"]
    ticks = [line for line in axes.lines if line.get_color() == paint.LIMIT]
    assert [line.get_xdata()[0] for line in ticks] == [1.5, 1.5, 1.2]
    assert axes.patches[2].get_alpha() < 1 == axes.patches[1].get_alpha()


def test_classes_are_stacked_to_the_step() -> None:
    text = "stack,mode,class,seconds_a_step\na,measured,compute,2.0\na,measured,exposed:net.inter,1.0\na,measured,overhead,0.0\n"
    axes = drawn(paint.breakdown, text).axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0.0, 2.0), (2.0, 1.0)]
    assert axes.get_xlabel() == "time of a step [s], measured"


def test_the_front_is_joined_and_filled() -> None:
    points = ("a,measured,0.1,loss,2.0,1", "b,measured,0.2,loss,1.0,1", "c,measured,0.3,loss,3.0,0")
    text = "\n".join(("stack,mode,step_time_s,cost,value,front", *points))
    axes = drawn(paint.pareto, text).axes[0]
    front = axes.lines[0]
    assert list(front.get_xdata()) == [100.0, 200.0]
    assert [line.get_markerfacecolor() == "white" for line in axes.lines[1:]] == [False, False, True]
    assert axes.get_ylabel() == "training loss after the same steps"


def test_bytes_have_a_unit_and_start_at_nothing() -> None:
    text = f"stack,mode,step_time_s,cost,value,front\na,simulated,0.1,wire_bytes_per_worker,{8 * 2**20},1\n"
    axes = drawn(paint.pareto, text).axes[0]
    assert axes.get_ylabel().endswith("[MiB]")
    assert axes.get_ylim()[0] == 0


def test_predictions_lie_on_the_same_scale_as_measurements() -> None:
    text = "stack,what,measured_s,predicted_s\na,step,1.0,3.0\na,compute,1.0,2.0\n"
    left, right = drawn(paint.prediction, text).axes
    assert left.get_xlim() == left.get_ylim()
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in left.lines if line.get_marker() == "o"]
    assert points == [(1.0, 3.0)]
    assert right.get_title() == "classes of time in it"
