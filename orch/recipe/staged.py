"""What a recipe says of a pipeline's stages: whether its model, cluster, batch and stacks can have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from orch import registry
from orch.errors import OrchError
from orch.models import catalogue
from orch.workload.layout import Layout

if TYPE_CHECKING:
    from orch.cluster.spec import ClusterSpec
    from orch.models.catalogue import ChosenModel
    from orch.recipe.schema import Parallel
    from orch.recipe.stacks import Stack
    from orch.recipe.tree import Node


def staged(node: Node, asked: Parallel | None, model: ChosenModel) -> bool:
    """Whether `parallel` asks for stages. Raises OrchError where it asks for what does not go together with them."""
    if asked is None or not {"pipeline", "micro_batches"} & asked.model_fields_set:
        return False
    if asked.pipeline == 1:
        if asked.micro_batches is not None:
            where = (node.get("micro_batches") or node).place
            raise OrchError("parallel.micro_batches without stages for them to go through", code="E236", where=where,
                            hint="parallel.pipeline=2, or remove it")  # fmt: skip
        return False
    where = (node.get("pipeline") or node).place
    if model.mixtures:
        raise OrchError(f"stages of a pipeline and experts do not go together yet, and model {model.name} has experts",
                        code="E236", where=where, hint="parallel.pipeline=1")  # fmt: skip
    if asked.beside_stages:
        other = asked.beside_stages[0]
        raise OrchError(f"parallel.{other} does not go together with stages of a pipeline", code="E236",
                        where=(node.get(other) or node).place, hint=f"remove {other}")  # fmt: skip
    return True


def staged_layout(node: Node, asked: Parallel, cluster: ClusterSpec, model: ChosenModel) -> Layout:
    """Return where the stages of a model live. Raises OrchError where it cannot be cut so, or the workers are too few."""
    from orch.workload.pipeline import cuts_of

    where = (node.get("pipeline") or node).place
    if not model.parts:
        able = ", ".join(one.name for one in catalogue.models() if one.parts is not None)
        raise OrchError(
            f"model {model.name} is not parts one after another that could be stages", code="E236", where=where,
            hint=f"models that are: {able}; or parallel.pipeline=1",
        )  # fmt: skip
    try:
        cuts = cuts_of(model.profile(), model.parts, asked.pipeline)
        return replace(Layout(cluster.world_size), cuts=cuts, micro_batches=asked.micro_batches or asked.pipeline)
    except OrchError as error:
        raise error.at(where) from None


def check_stages(tree: Node, stacks: Mapping[str, Stack], layout: Layout) -> None:
    """Refuse batches that make no equal micro-batches, and techniques that are not for stages."""
    if not layout.cuts:
        return
    written = tree.get("stacks") or tree
    for stack in stacks.values():
        node = written.get(stack.name) or written
        for member in sorted(stack.members, key=lambda member: not member.given):
            if not member.technique.for_stages:
                known = [name for name in registry.techniques() if registry.technique(name).for_stages]
                raise OrchError(
                    f"{member.name!r} is not for the stages of a pipeline", code="E235",
                    where=(node.get(member.name) or node).place, hint=f"those that are: {', '.join(known)}",
                )  # fmt: skip
        train = stack.train
        batch = train.batch_per_worker or (train.global_batch or 0) // layout.readers
        if batch % layout.micro_batches:
            key = "batch_per_worker" if train.batch_per_worker else "global_batch"
            found = tree.find(("when", stack.name, "train", key)) or tree.find(("train", key)) or tree
            near = max(round(batch / layout.micro_batches), 1) * layout.micro_batches
            raise OrchError(
                f"a batch of {batch} makes no {layout.micro_batches} micro-batches of one size", code="E229",
                where=found.where, hint=f"the nearest that does is {near}; or parallel.micro_batches",
            )  # fmt: skip
