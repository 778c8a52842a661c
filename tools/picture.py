"""Draw docs/timelines.svg: one step of DDP, MG-WFBP and DeAR side by side, as the simulator sees them.

`python tools/picture.py [FILE]`. Plain SVG, the same bytes for the same plan, so a test can hold the picture to the code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orch.experiment.predict import Forecast, predict
from orch.plan.timeline import Span, Timeline
from orch.recipe import load

RECIPE = "resnet50-v100"
OVERRIDES = ["train.batch_per_worker=32"]
STACKS = {"ddp": "DDP", "mg-wfbp": "MG-WFBP", "dear": "DeAR"}
TARGET = Path(__file__).resolve().parent.parent / "docs" / "timelines.svg"

WIDTH, LEFT, LANE, GAP, TOP = 860, 96, 26, 30, 60
COLOURS = {
    "forward": "#7fb3d5",
    "backward": "#2e6da4",
    "update": "#8e44ad",
    "all_reduce": "#e67e22",
    "reduce_scatter": "#f1c40f",
    "all_gather": "#d35400",
}
LANES = {"compute": "compute", "net.inter": "network"}


@dataclass(frozen=True)
class Scale:
    """From seconds of a window to pixels."""

    start_s: float
    length_s: float

    def x(self, seconds: float) -> float:
        """Return the place of a time, cut at the edges of the picture."""
        share = (seconds - self.start_s) / self.length_s
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - 12)


def window(timeline: Timeline, length_s: float) -> Scale:
    """Return the window that begins with the forward pass of an iteration in steady state."""
    first = max(len(timeline) - 3, 0)
    forward = [span.start_s for span in timeline.spans(first) if span.task.op.kind == "forward"]
    return Scale(min(forward), length_s)


def bars(timeline: Timeline, scale: Scale, top: float) -> Iterator[str]:
    """Yield the rectangles of a stack: a lane a stream, neighbours of one kind drawn as one."""
    for number, stream in enumerate(LANES):
        y = top + number * LANE
        for kind, start, end in merged([span for span in timeline.spans() if span.task.stream == stream]):
            x, right = scale.x(start), scale.x(end)
            if right - x > 0.05:
                colour = COLOURS.get(kind, "#7f8c8d")
                yield (
                    f'<rect x="{x:.1f}" y="{y:.0f}" width="{right - x:.1f}" height="{LANE - 6}" fill="{colour}">'
                    f"<title>{kind} {1e3 * (end - start):.1f} ms</title></rect>"
                )


def merged(spans: list[Span]) -> Iterator[tuple[str, float, float]]:
    """Yield (kind, start, end): tasks of compute that follow one another are one bar, collectives stay apart."""
    open_bar: tuple[str, float, float] | None = None
    for span in sorted(spans, key=lambda span: span.start_s):
        kind = span.task.op.kind
        joins = open_bar is not None and kind == open_bar[0] and kind in ("forward", "backward", "update")
        if open_bar is not None and joins and span.start_s - open_bar[2] < 1e-6:
            open_bar = (kind, open_bar[1], span.end_s)
            continue
        if open_bar is not None:
            yield open_bar
        open_bar = (kind, span.start_s, span.end_s)
    if open_bar is not None:
        yield open_bar


def picture(forecast: Forecast) -> str:
    """Return the SVG document."""
    longest = max(forecast.stacks[name].step_time_s.median for name in STACKS)
    length_s = 1.9 * longest
    height = TOP + len(STACKS) * (len(LANES) * LANE + GAP) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="14">{forecast.recipe}, {forecast.cluster.world_size} workers '
        f"({', '.join(OVERRIDES)}): two steps of three stacks, simulated</text>",
        *legend(),
    ]
    for number, (name, title) in enumerate(STACKS.items()):
        stack = forecast.stacks[name]
        top = TOP + 16 + number * (len(LANES) * LANE + GAP)
        gain = "" if name == forecast.baseline else f", {forecast.speedup(name):.2f}x"
        heading = f"{title}: {1e3 * stack.step_time_s.median:.0f} ms a step{gain}"
        parts.append(f'<text x="12" y="{top - 6:.0f}" font-weight="bold">{heading}</text>')
        parts += [
            f'<text x="12" y="{top + lane * LANE + 14:.0f}" fill="#555">{label}</text>'
            for lane, label in enumerate(LANES.values())
        ]
        parts += bars(stack.timeline, window(stack.timeline, length_s), top)
    return "\n".join([*parts, "</svg>", ""])


def legend() -> Iterator[str]:
    """Yield what the colours mean."""
    x = LEFT
    for kind, colour in COLOURS.items():
        yield f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="44">{kind.replace("_", "-")}</text>'
        x += 120


def main(arguments: list[str]) -> int:
    """Write the picture."""
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(picture(predict(load(RECIPE, OVERRIDES))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
