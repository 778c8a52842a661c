"""The report as one HTML file that needs nothing else: pictures, data and style are inside it. It asks no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from orch.report.captions import TITLES
from orch.report.compare import Pair
from orch.report.data import Subject
from orch.report.fairness import fairness
from orch.report.stored import StoredStack
from orch.units import format_bytes, format_seconds

FIRST = "speedup"  # stands beside the answer, in the first screen

_STYLE = """
:root { --ink: #22303c; --soft: #5d6b78; --line: #dfe4e8; --paper: #ffffff; --ground: #f4f6f8; --accent: #2f7fc1; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 60px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; }
h1 { font-size: 22px; margin: 0; }
h2 { font-size: 17px; margin: 0 0 10px; }
.mode { padding: 2px 10px; border-radius: 20px; font-size: 13px; font-weight: 600; color: #fff; background: #5c7c2f; }
.mode.simulated { background: #7d5ba6; } .mode.emulated { background: #b3701a; }
.facts { color: var(--soft); font-size: 13.5px; width: 100%; }
.answer { font-size: 21px; line-height: 1.35; margin: 16px 0 4px; font-weight: 600; }
.also { color: var(--soft); margin: 0 0 14px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 18px 20px; margin: 16px 0; }
.top { display: grid; grid-template-columns: 1fr; gap: 8px; }
img { max-width: 100%; height: auto; display: block; margin: 0 auto; }
figure { margin: 0; } figcaption { color: var(--soft); font-size: 13px; margin-top: 8px; }
.files { font-size: 12.5px; margin-top: 4px; } .files a { color: var(--accent); margin-right: 12px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 600; padding: 4px 12px 4px 0; white-space: nowrap;
  border-bottom: 2px solid var(--line); }
td { border-bottom: 1px solid var(--line); padding: 5px 12px 5px 0; vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
.up { color: #1c7a4f; font-weight: 600; } .down { color: #a8352b; font-weight: 600; } .same { color: var(--soft); }
.fair td:first-child { font-weight: 600; white-space: nowrap; }
pre { background: var(--ground); padding: 12px; overflow-x: auto; font-size: 12.5px; border-radius: 6px; }
@media print { body { background: #fff; } section { break-inside: avoid; border: none; padding: 6px 0; } .files { display: none; } }
"""


def page(about: Subject, pictures: Mapping[str, Mapping[str, bytes]], texts: Mapping[str, tuple[str, str]]) -> str:
    """Return the HTML. `pictures`: figure -> format -> bytes (svg and png); `texts`: figure -> (caption, CSV)."""
    run = about.run
    name = str(run.facts.get("recipe", run.id))
    rest = [figure for figure in pictures if figure != FIRST]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        # No request leaves the page, whatever a recipe's names hold.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">",
        f'<link rel="icon" href="data:,"><title>{escape(name)} - orch</title><style>{_STYLE}</style></head><body><main>',
        _head(about, name),
        _answer(about),
        '<section class="top" id="gain">',
        _figure(FIRST, pictures[FIRST], texts[FIRST], heading=False) if FIRST in pictures else "",
        f'<div class="scroll">{_results(about)}</div>',
        "</section>",
        *(f'<section id="{figure}">{_figure(figure, pictures[figure], texts[figure])}</section>' for figure in rest),
        _fairness(about),
        _again(about),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _head(about: Subject, name: str) -> str:
    run = about.run
    model, cluster = run.recipe.get("model"), run.recipe.get("cluster")
    facts = [
        f"{_named(model)} on {_named(cluster)}, {run.workers} workers, {run.batch_per_worker(run.baseline)} samples a worker",
        f"run {run.id}",
    ]
    return (
        f'<header><h1>{escape(name)}</h1><span class="mode {escape(run.mode)}">{escape(run.mode)}</span>'
        f'<span class="facts">{escape("; ".join(facts))}</span></header>'
    )


def _named(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("use") or value.get("name") or next(iter(value.values()), ""))
    return str(value)


def answer(about: Subject) -> tuple[str, list[str]]:
    """Return what the run found, in a sentence, and what else must be known to read it."""
    run, pairs = about.run, list(about.pairs())
    also: list[str] = []
    told = [pair for pair in pairs if _told(pair)]
    faster = sorted((pair for pair in told if _gain(pair) > 1.0), key=_gain, reverse=True)
    slower = sorted((pair for pair in told if _gain(pair) < 1.0), key=_gain)
    if faster:
        best = faster[0]
        text = f"{best.own.name} is {_interval(best)} times as fast as {run.baseline}"
        if best.own.lossless is False:
            exact = next((pair for pair in faster if pair.own.lossless), None)
            other = f"{exact.own.name} ({_interval(exact)})" if exact is not None else "none is faster"
            also.append(f"it is lossy, so judge it by time to target as well; of the exact stacks: {other}")
    elif pairs and any(pair.speedup is not None for pair in pairs):
        text = f"No stack is faster than {run.baseline}, as far as this run can tell"
    elif pairs:
        text = f"No stack is clearly faster than {run.baseline} here"
    elif len(run.stacks) > 1:
        text = "There is nothing to compare: fewer than two stacks finished a block"
    else:
        text = f"One stack, {run.baseline}: nothing to compare"
    open_ = [pair.own.name for pair in pairs if pair not in told]
    if open_:
        also.append(f"not distinguishable from {run.baseline}: {', '.join(open_)}")
    if slower:
        also.append(f"slower: {', '.join(f'{pair.own.name} ({_interval(pair)})' for pair in slower)}")
    ceiling = run.results.get("ceiling") or {}
    if ceiling.get("speedup"):
        also.append(
            f"ceiling: with communication free {ceiling['speedup']:.2f} times (predicted); no exact stack gains more"
        )
    if not run.results.get("complete", run.results.get("stacks") is not None):
        also.insert(0, "the run did not finish: these are the blocks that all stacks have done")
    return text, also


def _told(pair: Pair) -> bool:
    if pair.speedup is not None:
        return pair.speedup.distinguishable
    return pair.range is not None and not pair.range.lo <= 1.0 <= pair.range.hi


def _gain(pair: Pair) -> float:
    found = pair.speedup or pair.range
    return found.median if found is not None else 1.0


def _interval(pair: Pair) -> str:
    found = pair.speedup or pair.range
    if found is None or found.lo is None or found.hi is None:
        return f"{_gain(pair):.2f}"
    return f"{found.median:.2f} [{found.lo:.2f}, {found.hi:.2f}]"


def _answer(about: Subject) -> str:
    text, also = answer(about)
    more = " ".join(f"{one[:1].upper()}{one[1:]}." for one in also)
    return f'<p class="answer" id="answer">{escape(text)}.</p><p class="also">{escape(more)}</p>'


def _results(about: Subject) -> str:
    pairs = {pair.own.name: pair for pair in about.pairs()}
    target = bool(about.run.recipe.get("target")) and not about.run.simulated
    heads = ["stack", "step time", f"gain over {about.run.baseline}"]
    heads += ["on the wire"] if about.run.simulated else ["predicted", "on the wire", "loss", "accuracy"]
    heads += ["to target", ""] if target else [""]
    lines = [_result_row(stack, pairs.get(stack.name), target) for stack in about.run.stacks.values() if stack.result]
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _result_row(stack: StoredStack, pair: Pair | None, target: bool) -> str:
    result: Mapping[str, Any] = stack.result
    cells = [format_seconds(stack.step_time_s), _gain_cell(pair)]
    if not stack.run.simulated:
        predicted = float(result["predicted_step_time_s"])
        cells.append(f"{format_seconds(predicted)} ({100 * (predicted / stack.step_time_s - 1):+.0f} %)")
    cells.append(format_bytes(result["wire_bytes_per_worker"]))
    if not stack.run.simulated:
        then = result.get("at_equal_time") or {}
        cells += ["-" if then.get(key) is None else f"{then[key]:.3f}" for key in ("loss", "accuracy")]
    if target:
        reached = result.get("time_to_target_s")
        cells.append("never" if reached is None else format_seconds(reached))
    cells.append("exact" if stack.lossless else "lossy")
    return f"<tr><td>{escape(stack.name)}</td>{''.join(f'<td class=n>{cell}</td>' for cell in cells)}</tr>"


def _gain_cell(pair: Pair | None) -> str:
    if pair is None:
        return '<span class="same">baseline</span>'
    if not _told(pair):
        found = "not distinguishable" if pair.speedup is not None else _interval(pair)
        return f'<span class="same">{escape(found)}</span>'
    return f'<span class="{"up" if _gain(pair) > 1 else "down"}">{escape(_interval(pair))}</span>'


def _figure(name: str, formats: Mapping[str, bytes], text: tuple[str, str], heading: bool = True) -> str:
    caption, data = text
    title = TITLES[name]
    links = [
        f'<a download="{name}.{kind}" href="data:{mime};base64,{_base64(content)}">{kind.upper()}</a>'
        for kind, mime, content in (("csv", "text/csv", data.encode()), ("png", "image/png", formats.get("png", b"")))
        if content
    ]
    return (
        (f"<h2>{escape(title)}</h2>" if heading else "")
        + f'<figure><img alt="{escape(title)}" src="data:image/svg+xml;base64,{_base64(formats["svg"])}">'
        + f'<figcaption>{escape(caption)}</figcaption><div class="files">{"".join(links)}</div></figure>'
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _fairness(about: Subject) -> str:
    rows = "".join(f"<tr><td>{escape(what)}</td><td>{escape(how)}</td></tr>" for what, how in fairness(about))
    table = f'<table class="fair"><tbody>{rows}</tbody></table>'
    return f'<section id="fairness"><h2>On what terms the stacks met</h2>{table}</section>'


def _again(about: Subject) -> str:
    words: Sequence[object] = about.run.facts.get("command") or ()
    command = " ".join(str(word) for word in words) or "not recorded"
    recipe = yaml.safe_dump(dict(about.run.recipe), sort_keys=False, allow_unicode=True, width=110)
    return (
        '<section id="again"><h2>To do it again</h2>'
        f"<pre>{escape(command)}</pre><details><summary>the recipe, every default written out</summary>"
        f"<pre>{escape(recipe)}</pre></details></section>"
    )
