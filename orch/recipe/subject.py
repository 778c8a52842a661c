"""What a recipe trains, and on what: the `model` and `data` sections become a chosen model and data set, checked
against each other. Loads no torch.
"""

from __future__ import annotations

from pathlib import Path

from orch import registry
from orch.errors import OrchError
from orch.models import catalogue, datasets
from orch.models.catalogue import ChosenModel, NamedModel
from orch.models.datasets import ChosenData
from orch.models.model import ModelKnobs
from orch.recipe.faults import checked
from orch.recipe.schema import Data, Model
from orch.recipe.tree import Node, mapping

ABSENT = "E441"
_CHOICES = ("use", "python", "profile")


def chosen_model(tree: Node, spec: Model) -> ChosenModel:
    """Return the model of a recipe. Raises OrchError at the name or knob that is at fault."""
    node = tree.get("model") or tree
    if spec.use is not None:
        model = catalogue.model(spec.use, (node.get("use") or node).where)
        return NamedModel(model, _knobs(node, "model", model.knobs))
    given = node.get("python") or node.get("profile") or node
    source = Path(given.where.source)
    project = registry.project()
    return catalogue.resolve(
        spec,
        where=given.where,
        beside=source.parent if source.is_file() else Path.cwd(),
        listed=project.techniques,
        root=project.root,
    )


def chosen_data(tree: Node, spec: Data | None, model: ChosenModel) -> ChosenData | None:
    """Return the data set of a recipe, or None when it names none. Raises OrchError where model and data do not fit."""
    node = tree.get("data")
    if spec is None or node is None:
        return None
    where = (node.get("use") or node).where
    dataset = datasets.dataset(spec.use, where)
    chosen = ChosenData(dataset, _knobs(node, "data", dataset.knobs), where)
    try:
        catalogue.check_pair(model, chosen, where)
    except OrchError as error:
        # A plan needs no data, and may be made where there is none; a run says at this place that the data is absent.
        if error.code != ABSENT:
            raise error.at(where) from None
    return chosen


def subject_knobs(model: ChosenModel, data: ChosenData | None) -> dict[str, tuple[str, ModelKnobs]]:
    """Return the knobs of a named model and of the data: section -> (name, knobs)."""
    found = {"model": (model.name, model.knobs)} if isinstance(model, NamedModel) else {}
    return found if data is None else {**found, "data": (data.name, data.knobs)}


def _knobs(node: Node, section: str, knobs: type[ModelKnobs]) -> ModelKnobs:
    given = mapping(
        {key: child for key, child in node.items() if key not in _CHOICES}, node.where, node.key_where, over=node.over
    )
    found: ModelKnobs = checked(knobs.model_validate, given, (section,), knobs)
    return found
