"""Every technique for gradients on shaped links, beside torch's DDP and its hooks: `python -m benchmarks.bench_links`.

Step time, and time to a stated training loss, of every schedule, every compressor and the stacks that make sense of both,
in shuffled blocks on four emulated nodes (`make bench-links`; root). A cell is a cluster, a model and a half of the
stacks (lossless, lossy), each with torch's DDP in the same run; cells are kept as they end, so the same line goes on where a
killed one stopped. Bars: `bucketed` at most 1.03 of DDP; at 200 Mbit/s the best lossless stack never slower than DDP;
`acp-sgd` at least 4 times as fast a step as DDP on few large tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.results import fenced, record

Cell = dict[str, Any]

CLUSTERS = ("emulated-4x100mbit", "emulated-4x200mbit", "emulated-4x1gbit")
# What is trained: model, data, batch a worker, optimiser, and the training loss that counts as reached.
MODELS: dict[str, tuple[dict[str, Any], str, int, dict[str, Any], float]] = {
    "many-small": ({"use": "resnet-digits", "width": 8, "depth": 8}, "digits8", 32, {"adam": {"lr": 0.005}}, 1.6),
    "few-large": ({"use": "mlp", "widths": [1024, 1024]}, "digits8", 32, {"sgd": {"lr": 0.2}}, 1.2),
    "transformer": ({"use": "char-transformer", "hidden": 128}, "pydoc_text", 4, {"adam": {"lr": 0.003}}, 3.3),
}
# torch's PowerSGD hook can run one bucket on gloo: the caps make one of every model here.
ONE_BUCKET = {"bucket_cap": "64MiB", "first_bucket": "64MiB"}
STACKS: dict[str, dict[str, list[object]]] = {
    "lossless": {
        "ddp": ["torch-ddp"],
        "bucketed": ["bucketed"],
        "wfbp": ["wfbp"],
        "single-bucket": ["single-bucket"],
        "mg-wfbp": ["mg-wfbp"],
        "dear": ["dear"],
        "s-sgd": ["s-sgd"],
        "parameter-server": ["parameter-server"],
    },
    "lossy": {
        "ddp": ["torch-ddp"],
        "ddp-bf16": [{"torch-ddp": {"hook": "bf16"}}],
        "ddp-power-sgd": [{"torch-ddp": {"hook": "power-sgd", "rank": 4, **ONE_BUCKET}}],
        "top-k": ["top-k"],
        "power-sgd": [{"power-sgd": {"rank": 4}}],
        "acp-sgd": [{"acp-sgd": {"rank": 4}}],
        "mg-wfbp+acp-sgd": ["mg-wfbp", {"acp-sgd": {"rank": 4}}],
        "dear+acp-sgd": ["dear", {"acp-sgd": {"rank": 4}}],
    },
}
RATIO, FASTER = 1.03, 4.0
TRIES = 3
KEPT = Path(__file__).with_name("links.jsonl")


def recipe(cluster: str, model: str, stacks: Mapping[str, list[object]], options: argparse.Namespace) -> str:
    """Return the recipe of one cell."""
    described, data, batch, optimizer, reach = MODELS[model]
    return yaml.safe_dump(
        {
            "orch": 1,
            "name": f"links-{model}",
            "model": described,
            "data": data,
            "train": {"batch_per_worker": batch, "optimizer": optimizer},
            "cluster": cluster,
            "stacks": {name: _members(members) for name, members in stacks.items()},
            "baseline": "ddp",
            "measure": {"blocks": options.blocks, "steps": options.steps, "warmup": 2},
            "target": {"metric": "loss", "reach": reach},
        },
        sort_keys=False,
    )


def _members(members: Iterable[object]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member in members:
        found.update(member if isinstance(member, dict) else {member: {}})
    return found


def run(cluster: str, model: str, half: str, options: argparse.Namespace) -> Cell:
    """Run one cell; a stack that ends the run is left out of the next try, and what it said is kept."""
    stacks = {name: members for name, members in STACKS[half].items() if name == "ddp" or name in options.stacks}
    cell: Cell = {"cluster": cluster, "model": model, "half": half, "crashed": {}, "stacks": {}}
    cell |= {"load": os.getloadavg()[0], "began": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "links.yaml"
            path.write_text(recipe(cluster, model, stacks, options), encoding="utf-8")
            command = [sys.executable, "-m", "orch", "run", str(path), "--on", options.on, "--json", "--no-track"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            found = json.loads(done.stdout)
            return cell | {"stacks": found["stacks"], "load_after": os.getloadavg()[0], "notes": found["notes"]}
        message = _message(done.stdout)
        guilty = re.match(r"stack ([\w.+-]+)[,:]", message)
        if done.returncode == 130 or guilty is None or guilty[1] == "ddp":
            raise SystemExit(f"{model} on {cluster}, {half}: {message or done.returncode}")
        cell["crashed"][guilty[1]] = message
        del stacks[guilty[1]]
    return cell


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError):
        return ""


def kept(path: Path, options: argparse.Namespace) -> dict[tuple[str, str, str], Cell]:
    """Return the cells that are done with the same steps, by cluster, model and half; the last of each counts."""
    found: dict[tuple[str, str, str], Cell] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                cell = json.loads(line)
            except ValueError:
                continue  # the end of one that was killed while it wrote
            if (cell["blocks"], cell["steps"]) == (options.blocks, options.steps):
                found[cell["cluster"], cell["model"], cell["half"]] = cell
    return found


def lines(cell: Cell) -> Iterator[str]:
    """Yield the table of one cell: each stack's step beside its prediction, and its time to the stated loss."""
    reach = MODELS[cell["model"]][-1]
    yield f"{cell['cluster']}, {cell['model']}, {cell['half']}: began {cell['began']} UTC at load {cell['load']:.1f}"
    yield f"  {'stack':<17} {'step':>9} {'over ddp':>20} {'predicted':>18} {f'loss {reach:g} after':>15} {'sent':>9}"
    for name, stack in cell["stacks"].items():
        gain, own = stack["speedup"], stack["time_to_target_s"]
        ratio = "" if name == "ddp" else f"{gain['median']:.2f} [{gain['lo']:.2f}, {gain['hi']:.2f}]"
        predicted = f"{1e3 * stack['predicted_step_time_s']:.1f} ms ({100 * stack['prediction_error']:+.0f} %)"
        reached = "not reached" if own is None else f"{own:.2f} s"
        sent = f"{stack['payload_bytes_per_worker'] / 1024:.0f} KiB"
        yield (
            f"  {name:<17} {1e3 * stack['step_time_s']['median']:6.1f} ms {ratio:>20} {predicted:>18} {reached:>15} {sent:>9}"
        )
    for name, message in cell["crashed"].items():
        yield f"  {name:<17} crashed: {message}"


def bars(cells: Mapping[tuple[str, str, str], Cell]) -> Iterator[tuple[bool, str]]:
    """Yield whether each bar that the cells speak of is met, and a line that says so with its figures."""
    for (cluster, model, half), cell in cells.items():
        stacks, where = cell["stacks"], f"{model} on {cluster}"
        if half == "lossless" and "bucketed" in stacks:
            gain = stacks["bucketed"]["speedup"]
            ratio, low = 1.0 / gain["median"], 1.0 / gain["hi"]
            yield (
                ratio <= RATIO,
                f"{where}: bucketed {ratio:.3f} of ddp [{low:.3f}, {1.0 / gain['lo']:.3f}], bar {RATIO}",
            )
        if half == "lossless" and cluster == "emulated-4x200mbit":
            own = {name: one["speedup"]["median"] for name, one in stacks.items() if one["lossless"] and name != "ddp"}
            best = max(own, key=lambda name: own[name])
            yield own[best] >= 1.0, f"{where}: best lossless stack, {best}, {own[best]:.2f} times as fast as ddp, bar 1"
        if model == "few-large" and "acp-sgd" in stacks:
            gain, mine, ddp = stacks["acp-sgd"]["speedup"], *(stacks[n]["time_to_target_s"] for n in ("acp-sgd", "ddp"))
            times = ", ".join(
                f"{n} {'never' if t is None else f'{t:.2f} s'}" for n, t in (("acp-sgd", mine), ("ddp", ddp))
            )
            yield (
                gain["median"] >= FASTER,
                f"{where}: acp-sgd {gain['median']:.2f} times as fast a step, bar {FASTER:g}; to the loss: {times}",
            )


def told(cells: Mapping[tuple[str, str, str], Cell], whole: int) -> tuple[str, bool]:
    """Return every cell and every bar as text, and whether all bars are met."""
    found = list(bars(cells))
    text = [
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}; emulated links, measured"
    ]
    text += [line for cell in cells.values() for line in lines(cell)]
    text += [f"{'met   ' if met else 'MISSED'} {line}" for met, line in found]
    return "\n".join([*text, f"{len(cells)} cells of {whole}"]), all(met for met, _ in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are not done yet, or a part of them; exit 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = list(dict.fromkeys(name for half in STACKS.values() for name in half))
    parser.add_argument("--on", default="emulate")
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--halves", nargs="+", default=list(STACKS), choices=list(STACKS))
    parser.add_argument("--stacks", nargs="+", default=every, choices=every)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--kept", type=Path, default=KEPT, help="where cells are kept; remove it to begin anew")
    parser.add_argument("--most", type=int, default=-1, help="cells to run now; 0 only shows those that are done")
    parser.add_argument("--record", action="store_true", help="write what is shown into RESULTS.md")
    options = parser.parse_args(arguments)
    wanted = [(c, m, h) for c in options.clusters for m in options.models for h in options.halves]
    left = [key for key in wanted if key not in kept(options.kept, options)]
    for key in left[: options.most if options.most >= 0 else None]:
        cell = run(*key, options) | {"blocks": options.blocks, "steps": options.steps}
        with options.kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(cell) + "\n")
        print("\n".join(lines(cell)), file=sys.stderr, flush=True)
    done = kept(options.kept, options)
    text, met = told({key: done[key] for key in wanted if key in done}, len(wanted))
    print(text)
    if options.record:
        record("links", fenced(text))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
