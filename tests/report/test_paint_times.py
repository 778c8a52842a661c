"""Timelines and curves, read back from the axes they were drawn on."""

from __future__ import annotations

from matplotlib.figure import Figure

from orch.report import paint_times
from orch.report.style import rows_of

TIMELINE = """\
stack,mode,stream,task,kind,start_s,end_s,critical
ddp,simulated,compute,forward.a .. forward.b,forward,0.0,1.0,1
ddp,simulated,compute,backward.b,backward,1.0,3.0,1
ddp,simulated,net.inter,all_reduce.b0,all_reduce,3.0,4.0,1
ddp,measured,compute,forward.a,forward,0.0,2.0,0
"""


def drawn(painter, text: str, **tables: str) -> Figure:
    figure = Figure(layout="constrained")
    painter(figure, rows_of(text), {name: rows_of(table) for name, table in tables.items()}, "")
    return figure


def test_streams_are_lanes_and_the_critical_path_is_one_line_each() -> None:
    axes = drawn(paint_times.timelines, TIMELINE).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "ddp, simulated    compute", " network", "ddp, measured    compute",
    ]  # fmt: skip
    assert axes.get_xlabel().startswith("time [s], measured and simulated")
    dark = [found for found in axes.collections if tuple(found.get_facecolor()[0][:3]) == (0.2, 0.2, 0.2)]
    widths = [[path.get_extents().width for path in found.get_paths()] for found in dark]
    assert widths == [[3.0], [1.0]]  # forward and backward touch: one line


def test_a_curve_a_seed_and_a_name_a_stack() -> None:
    head = "stack,seed,metric,steps,clock_s,sent_bytes,value,reach\n"
    text = head + "".join(f"{s},{seed},loss,{n},{n}.0,{n * size},{3 - n},1.5\n"
                          for s, size in (("a", 1000000), ("b", 1000)) for seed in (0, 1) for n in (1, 2))  # fmt: skip
    left, right = drawn(paint_times.target, text).axes
    curves = [line for line in left.lines if line.get_linestyle() == "-"]
    assert len(curves) == 4
    assert list(left.get_legend_handles_labels()[1]) == ["a", "b", "target: loss 1.5"]
    assert right.get_xscale() == "log"  # payloads a thousand times apart
    assert left.get_ylabel() == "training loss, mean of 10 steps"


def test_training_shows_what_was_judged_too() -> None:
    text = "stack,seed,step,clock_s,loss,mean_of_last\na,0,0,1.0,2.0,2.0\na,0,1,2.0,1.0,1.5\n"
    judged = "stack,seed,clock_s,val_loss,val_accuracy\na,0,0.0,2.0,0.1\n"
    assert len(drawn(paint_times.loss, text).axes) == 1
    panels = drawn(paint_times.loss, text, accuracy=judged).axes
    assert list(panels[0].lines[0].get_ydata()) == [2.0, 1.5]
    assert list(panels[1].lines[0].get_ydata()) == [0.1]
