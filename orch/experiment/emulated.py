"""Keep emulated clusters and end them: what `orch up` and `orch down` do."""

from __future__ import annotations

import time
from typing import Any

from orch.errors import OrchError, quoted
from orch.gang import emulate_net, emulate_ray
from orch.recipe.clusters import load_cluster


def up(name: str) -> dict[str, Any]:
    """Make the emulated cluster of that name, or path, and keep it; return what it is. Of two alike, one is enough.

    OrchError: this machine cannot, or it is up already. RunError: the kernel or Ray refused; nothing is left then.
    """
    cluster = load_cluster(name)
    nodes = tuple(map(cluster.node, range(cluster.nodes)))
    emulate_net.refuse(nodes, cluster.world_size, "cpu" if cluster.device.kind == "cpu" else "cuda")
    if cluster.name in emulate_ray.kept().values():
        raise OrchError(f"{quoted(cluster.name)} is up already", code="E735", hint=f"orch down {cluster.name}")
    begin = time.monotonic()
    made = emulate_ray.keep(cluster.name, nodes)
    return {"cluster": cluster.name, "name": made, "nodes": len(nodes), "took_s": time.monotonic() - begin}


def down(name: str | None) -> list[str]:
    """End the kept cluster of that name, or all; return their names. OrchError: there is none, or a run is using it."""
    there = emulate_ray.kept()
    wanted = {made: kept for made, kept in there.items() if name is None or name in (kept, made)}
    if name is not None and not wanted:
        known = f"up: {', '.join(there.values())}" if there else "no emulated cluster is up"
        raise OrchError(f"{quoted(name)} is not up", code="E735", hint=known)
    for made, kept in wanted.items():
        emulate_ray.end(made, kept)
    return list(wanted.values())
