"""Whether what a recipe says of faults and of going on with fewer nodes can happen on its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orch.errors import OrchError, did_you_mean, quoted

if TYPE_CHECKING:
    from orch.cluster import ClusterSpec
    from orch.models.catalogue import ChosenModel
    from orch.recipe.schema import RecipeFile
    from orch.recipe.stacks import Stack
    from orch.recipe.tree import Node


def check_faults(tree: Node, spec: RecipeFile, stacks: Mapping[str, Stack], cluster: ClusterSpec) -> None:
    """Refuse a fault that cannot happen: no such rank, node, stack or step."""
    entries = tree.get("faults") or tree
    faults = [entry.fault for entry in spec.faults]
    for number, fault in enumerate(faults):
        node = entries.value[number] if isinstance(entries.value, tuple) else entries
        where = node.where
        what, most = ("rank", cluster.world_size) if fault.kind == "kill-rank" else ("node", cluster.nodes)
        if fault.at >= most:
            raise OrchError(
                f"faults: there is no {what} {fault.at}", code="E245", where=where, hint=f"there are {most}"
            )
        if fault.stack is not None and fault.stack not in stacks:
            hint = did_you_mean(fault.stack, stacks) or f"stacks: {', '.join(stacks)}"
            message = f"faults: {quoted(fault.stack)} is no stack of this recipe"
            raise OrchError(message, code="E245", where=where, hint=hint)
        for name in stacks if fault.stack is None else (fault.stack,):
            steps = stacks[name].train.steps or spec.measure.total
            if fault.step >= steps:
                message = f"faults: the training of stack {name} ends before step {fault.step}"
                raise OrchError(message, code="E245", where=where, hint=f"it has steps 0 to {steps - 1}")
            if fault.until is not None and fault.until > steps:
                message = f"faults: {fault}: the training of stack {name} ends before"
                raise OrchError(message, code="E245", where=where, hint=f"until {steps} at most, or leave it out")
        if fault.kind in ("drop-rate", "link-rate") and cluster.nodes == 1:
            message = f"faults: {fault}: a cluster of one node has no such link"
            raise OrchError(message, code="E245", where=where, hint="cluster.nodes=2, or remove that fault")
        if fault in faults[:number]:
            raise OrchError(f"faults: {fault}, twice", code="E245", where=where, hint="once is enough")
        if other := next((other for other in faults[:number] if fault.meets(other)), None):
            message = f"faults: {fault}, which at once is to be otherwise: {other}"
            raise OrchError(message, code="E245", where=where, hint="let one end before the other begins")


def check_fewer(
    tree: Node, spec: RecipeFile, stacks: Mapping[str, Stack], cluster: ClusterSpec, model: ChosenModel
) -> None:
    """Refuse to go on with fewer nodes where that would train something else."""
    least = spec.recover.min_nodes
    if least is None:
        return
    where = (tree.find(("recover", "min_nodes")) or tree).place
    lossy = next((name for name, stack in stacks.items() if not stack.lossless), None)
    bare = next((name for name, stack in stacks.items() if stack.train.global_batch is None), None)
    if least > cluster.nodes:
        text, hint = f"is more than the {cluster.nodes} that the cluster has", "as many at most"
    elif cluster.unequal or cluster.labels or any(factor != 1.0 for factor in cluster.speed.values()):
        text, hint = "and nodes that differ: nobody knows which would be left", "leave it out"
    elif spec.parallel is not None and spec.parallel.pipeline > 1:
        text, hint = "and stages that live on all nodes: some would be gone", "leave it out"
    elif model.mixtures:
        text, hint = "and experts that live on all nodes: some would be gone", "leave it out"
    elif bare is not None:
        text, hint = f"but stack {bare} has a batch a worker: fewer would train other steps", "give train.global_batch"
    elif lossy is not None:
        text, hint = f"but stack {lossy} keeps on each rank what it has not sent yet: it would be lost", "leave it out"
    else:
        return
    raise OrchError(f"recover.min_nodes {least} {text}", code="E246", where=where, hint=hint)
