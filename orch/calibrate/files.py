"""What a calibration leaves behind: a cluster file, a profile, and the residuals of its back-test as CSV and as a figure."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from orch import __version__
from orch.calibrate.backtest import Residual
from orch.cluster.sharing import BESIDE, BESIDE_SINGLE, SINGLE, STOLEN

if TYPE_CHECKING:
    from orch.calibrate.calibrate import Asked, Calibration
    from orch.cluster import Curve, Link, Measured

_KEYS = {SINGLE: "single", BESIDE: "beside", BESIDE_SINGLE: "beside_single", STOLEN: "stolen"}


def write(folder: Path, asked: Asked, found: Calibration) -> list[Path]:
    """Write everything into `folder` and return the paths; the figure is left out where matplotlib is not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{found.cluster.name}-{asked.on}"
    cluster, profile = folder / f"{name}.yaml", folder / f"{name}.{asked.model}.profile.json"
    source = provenance(asked)
    heading = [f"# {source}", f"# {fit_quality(found)}", "# Written by orch calibrate; not to be edited by hand.", ""]
    document = yaml.safe_dump(cluster_document(found, source), sort_keys=False, width=120)
    cluster.write_text("\n".join(heading) + document, encoding="utf-8")
    measured = next(iter(found.inputs.profiles.values()))
    data = measured.to_json() | {"source": f"{source}; batch of {asked.batch}"}
    profile.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    written = [cluster, profile]
    if found.residuals:
        written += _residuals(folder / f"{name}.residuals", found.residuals, f"{name}: {fit_quality(found)}")
    return written


def provenance(asked: Asked) -> str:
    """Return when, where and with what was measured."""
    day = datetime.now(UTC).date().isoformat()
    host = f"{os.cpu_count()}-core {platform.machine()} {platform.system()}"
    return f"measured {day} by orch {__version__} calibrate --on {asked.on}, {host}, torch {version('torch')}"


def fit_quality(found: Calibration) -> str:
    """Return how far off the smaller worlds were, in one line."""
    if found.error is None:
        return "no smaller world was measured, so how well it extrapolates is not known"
    worst = max(found.residuals, key=lambda one: abs(one.error))
    *smaller, held = (world.world_size for world in found.worlds.values())
    return (
        f"back-test: worlds of {', '.join(map(str, smaller))} ranks predict the collectives of {held}, held out, within "
        f"{100 * found.error:.0f} % (median of {len(found.residuals)}; worst {100 * worst.error:+.0f} %: {worst.collective} "
        f"of {worst.nbytes:.0f} B, {worst.way})"
    )


def cluster_document(found: Calibration, source: str) -> dict[str, Any]:
    """Return the cluster file as plain data, every number with its unit."""
    cluster = found.cluster
    device, sharing, overhead = cluster.device, cluster.sharing, cluster.overhead
    document: dict[str, Any] = {
        "about": f"{cluster.about or cluster.name}, calibrated",
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
        "device": {
            "kind": device.kind,
            "name": device.name,
            "rate": {"fp32": f"{found.rates.flops_per_s:.4g}FLOP/s"},
            "memory_bandwidth": f"{found.rates.bytes_per_s:.4g}B/s",
            **({"memory": f"{device.memory_bytes:.0f}B"} if device.memory_bytes else {}),
            "basis": "measured",
            "source": source,
        },
        "links": {
            name: _link(link, source)
            for name, link in (("intra", cluster.links.intra), ("inter", cluster.links.inter))
            if link is not None
        },
    }
    if sharing is not None:
        document["sharing"] = {"lanes": sharing.lanes, "source": source}
    if overhead is not None:
        document["overhead"] = {
            "step": _seconds(overhead.step_s),
            "collective": _seconds(overhead.collective_s),
            "source": source,
        }
    if cluster.operations:
        document["operations"] = {
            work: {"least": _seconds(line.start_up_s), "factor": round(float(line.per_byte_s), 4), "source": source}
            for work, line in cluster.operations.items()
        }
    return document


def _link(link: Link, source: str) -> dict[str, Any]:
    if not all(found.kind == "measured" for found in link.measured) or not link.measured:
        level = link.point_to_point()
        return {
            "alpha": _seconds(level.alpha_s),
            "beta": f"{level.beta_s_per_byte * 1e9:.6g}ns/B",
            "source": link.source,
        }
    return {
        "per": "node" if link.per_node else "device",
        **_shaped(None if link.usual is None else link.usual.rate_bytes_per_s),
        "algorithm": link.algorithm,
        "source": source,
        "measured": [_measured(found) for found in link.measured],
    }


def _measured(found: Measured) -> dict[str, Any]:
    sizes = sorted({*(found.sizes or ()), *(float(knee) for knee, _ in found.curve.knees)})
    others = {_KEYS[way]: _table(curve, sizes) for way, curve in found.ways}
    return {
        "collective": found.collective,
        "ranks": found.span.size,
        **_shaped(found.rate_bytes_per_s),
        "table": _table(found.curve, sizes),
        **others,
    }


def _shaped(rate_bytes_per_s: float | None) -> dict[str, str]:
    return {} if rate_bytes_per_s is None else {"shaped": f"{rate_bytes_per_s:.6g}B/s"}


def _table(curve: Curve, sizes: list[float]) -> dict[str, str]:
    return {f"{size:.0f}B": _seconds(curve.seconds(size)) for size in sizes}


def _seconds(value: float) -> str:
    return f"{1e6 * float(value):.5g}us"


def _residuals(stem: Path, residuals: tuple[Residual, ...], title: str) -> list[Path]:
    table = stem.with_name(stem.name + ".csv")
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["collective", "way", "bytes", "predicted_s", "measured_s", "error"])
        for one in residuals:
            writer.writerow([one.collective, one.way, one.nbytes, one.predicted_s, one.measured_s, one.error])
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return [table]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    groups: Mapping[tuple[str, str], list[Residual]] = {}
    for one in residuals:
        groups.setdefault((one.collective, one.way), []).append(one)  # type: ignore[attr-defined]
    for (collective, way), found in groups.items():
        axes.plot([one.nbytes for one in found], [100 * one.error for one in found], "o-", label=f"{collective}, {way}")
    axes.axhline(0.0, color="#333333", linewidth=0.8)
    axes.set(xscale="log", xlabel="bytes", ylabel="predicted / measured - 1, %", title=title[:60])
    axes.legend(fontsize=7)
    picture = stem.with_name(stem.name + ".png")
    figure.savefig(picture, dpi=160)
    return [table, picture]
