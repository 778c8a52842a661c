"""A recipe that has been checked: every value valid, every name found, every combination possible.

`load` is the one way from a file and overrides to a `Recipe`. What it returns is frozen and complete; what it cannot
accept it refuses with one OrchError that says where, what was found, what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.cluster.spec import ClusterSpec
from orch.errors import OrchError, Position, did_you_mean, quoted
from orch.models.catalogue import ChosenModel
from orch.models.datasets import ChosenData
from orch.plan.fault import Fault
from orch.recipe.compose import Composed, compose, merge
from orch.recipe.faults import checked, first
from orch.recipe.origin import Origin, complete, leaves, origin_of
from orch.recipe.possible import check_faults, check_fewer
from orch.recipe.schema import LATER, Measure, Parallel, RecipeFile, Target, Train
from orch.recipe.space import Parameter, space_of
from orch.recipe.stacks import Stack, build_members
from orch.recipe.staged import check_stages, staged, staged_layout
from orch.recipe.subject import chosen_data, chosen_model, subject_knobs
from orch.recipe.sweep import LEARNED, Sweep, unreadable
from orch.recipe.tree import Node, dotted, kind, mapping
from orch.workload.layout import Layout

if TYPE_CHECKING:
    from orch.cluster import Cluster


@dataclass(frozen=True)
class Recipe:
    """A checked recipe. `files` are the YAML files it was made from, itself first; `space` is what its sweep varies;
    `described` is its cluster as the file says it.
    """

    spec: RecipeFile
    described: ClusterSpec
    model: ChosenModel
    data: ChosenData | None
    stacks: Mapping[str, Stack]
    layout: Layout
    path: Path
    files: tuple[Path, ...]
    tree: Node = field(repr=False)
    space: tuple[Parameter, ...] = ()

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.spec.name

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster, with what it costs: made when a plan or a run asks, for a recipe is checked without."""
        from orch.cluster.build import build

        name = self.tree.find(("cluster", "name"))
        return build(self.described, name.value if name is not None and isinstance(name.value, str) else "cluster")

    @property
    def train(self) -> Train:
        """How it is trained; a stack's own `train` has the changes of `when` in it."""
        return self.spec.train

    @property
    def baseline(self) -> Stack:
        """The stack that the others are compared with."""
        return self.stacks[self.spec.baseline]

    @property
    def measure(self) -> Measure:
        """How step times are measured."""
        return self.spec.measure

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the trainings whose quality is compared."""
        return tuple(self.spec.seeds)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is to go wrong."""
        return tuple(entry.fault for entry in self.spec.faults)

    @property
    def target(self) -> Target | None:
        """The quality at which a training counts as done."""
        return self.spec.target

    @property
    def on(self) -> str | None:
        """How workers are reached, or None when the recipe does not say."""
        return self.spec.on

    @property
    def sweep(self) -> Sweep | None:
        """The search over settings, or None when the recipe has none."""
        return self.spec.sweep

    def batch_per_worker(self, stack: str | None = None) -> int:
        """Return the samples each worker takes in a step [samples]; workers that share samples take the same."""
        train = self.stacks[stack].train if stack is not None else self.train
        return train.batch_per_worker or (train.global_batch or 0) // self.layout.readers

    def training_steps(self, stack: str) -> int:
        """Return the updates of a whole training of one stack."""
        return self.stacks[stack].train.steps or self.measure.total

    def on_nodes(self, nodes: int) -> Recipe:
        """Return this recipe on a cluster of fewer nodes, all alike. OrchError: the global batch cannot be shared so."""
        smaller = self.described.model_copy(update={"nodes": nodes})
        _check_batches(self.tree, self.stacks, smaller.world_size)
        return replace(self, described=smaller, layout=Layout.of(smaller.world_size, ()))

    def resolved(self) -> dict[str, Any]:
        """Return the recipe as plain data, names, references and defaults written out; loading it gives it again."""
        plain: dict[str, Any] = self.tree.plain()
        return plain

    def fault_place(self, fault: Fault) -> Position:
        """Return where a fault of this recipe was written."""
        node = self.tree.find(("faults", str(self.faults.index(fault)))) or self.tree
        return node.where

    def origin(self, path: str) -> Origin:
        """Return the value at a dotted path and where it comes from. Raises OrchError for a path that leads nowhere."""
        return origin_of(self.tree, path)

    def origins(self) -> dict[str, str]:
        """Return where every value of the resolved recipe was written, by dotted path."""
        return {path: str(where) for path, where in leaves(self.tree)}


def load(recipe: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the checked recipe of a name or a path, with overrides `path=value` applied. Raises OrchError."""
    return check(compose(recipe, overrides))


def check(composed: Composed) -> Recipe:
    """Return the recipe a composed tree describes. Raises the OrchError of the fault that comes first in the file."""
    tree = _named(composed)
    if early := first([*_reserved(tree), *_nothing(tree)]):
        raise early
    spec: RecipeFile = checked(RecipeFile.model_validate, tree, (), RecipeFile)
    cluster = _cluster(tree.get("cluster") or tree)
    stacks = _stacks(tree, spec)
    _check_techniques(tree, stacks)
    _check_baseline(tree, spec, stacks)
    asked = spec.parallel or Parallel()
    _check_batches(tree, stacks, max(1, cluster.world_size // asked.tensor // asked.pipeline))
    check_faults(tree, spec, stacks, cluster)
    model = chosen_model(tree, spec.model)
    if any(mixture.capacity_factor is not None for mixture in model.mixtures):
        stacks = {name: replace(stack, capacity=True) for name, stack in stacks.items()}
    _check_quality(tree, spec, stacks)
    data = chosen_data(tree, spec.data, model)
    layout = _layout(tree, spec, cluster, model)
    check_stages(tree, stacks, layout)
    _check_mixtures(tree, stacks, model)
    check_fewer(tree, spec, stacks, cluster, model)
    space = () if spec.sweep is None else space_of(tree, spec.sweep, stacks, spec.baseline)
    _check_sought(tree, spec)
    full = complete(tree, spec, cluster, stacks, subject_knobs(model, data))
    _check_uncertain(tree, full)
    return Recipe(spec, cluster, model, data, stacks, layout, composed.path, composed.files, full, space)


def _cluster(node: Node) -> ClusterSpec:
    name = node.get("name")
    if name is not None and name.text is None and not (isinstance(name.value, str) and name.value.strip()):
        message = f"cluster.name must be text; it is {kind(name)}"
        raise OrchError(message, code="E212", where=name.where, hint="remove it, or write a word")
    described = mapping({key: child for key, child in node.items() if key != "name"}, node.where, node.key_where)
    spec: ClusterSpec = checked(ClusterSpec.model_validate, described, ("cluster",), ClusterSpec)
    return spec


def _named(composed: Composed) -> Node:
    """Return the tree with the defaults that depend on the rest of it: the recipe's name and the baseline."""
    entries = dict(composed.tree.items())
    if "name" not in entries:
        entries["name"] = Node(composed.path.stem, Position("default: the file's name"))
    stacks = entries.get("stacks")
    if "baseline" not in entries:
        names = [key for key, _ in stacks.items()] if stacks is not None else []
        entries["baseline"] = Node(names[0] if names else "", Position("default: the first stack"))
    return mapping(entries, composed.tree.where)


def _reserved(tree: Node) -> list[OrchError]:
    return [
        OrchError(f"{key} ({LATER[key]}) cannot be used yet", code="E217", where=node.place, hint="remove it")
        for key, node in tree.items()
        if key in LATER
    ]


def _nothing(tree: Node) -> list[OrchError]:
    """Refuse `steps:` with nothing behind it, where leaving the key out means the default."""
    sections = ((), ("train",), ("train", "optimizer"), ("measure",), ("target",), ("sweep",))
    return [
        OrchError(
            f"{dotted((*path, key))} has no value", code="E211", where=node.place, hint="write one, or remove the key"
        )
        for path in sections
        for key, node in (tree.find(path) or Node(None, tree.where)).items()
        if node.value is None
    ]


def _stacks(tree: Node, spec: RecipeFile) -> dict[str, Stack]:
    node = tree.get("stacks") or tree
    knobs = tree.get("techniques") or mapping({}, tree.where)
    trains = _trains(tree, spec)
    return {
        name: Stack(name, build_members(name, members, knobs), trains.get(name, spec.train))
        for name, members in node.items()
    }


def _trains(tree: Node, spec: RecipeFile) -> dict[str, Train]:
    """Return the training of every stack that `when` changes."""
    trains: dict[str, Train] = {}
    when, train = tree.get("when"), tree.get("train")
    for name, node in when.items() if when is not None else ():
        if name not in spec.stacks:
            hint = did_you_mean(name, spec.stacks) or f"stacks: {', '.join(spec.stacks)}"
            raise OrchError(f"when names {quoted(name)}, which is no stack", code="E232", where=node.place, hint=hint)
        change = node.get("train")
        if train is not None and change is not None:
            merged = merge(train, change, ("train",))
            trains[name] = checked(Train.model_validate, merged, ("when", name, "train"), Train)
    return trains


def _layout(tree: Node, spec: RecipeFile, cluster: ClusterSpec, model: ChosenModel) -> Layout:
    """Return where experts and stages live. Raises OrchError at `parallel` where they cannot live there, or there are none."""
    node = tree.get("parallel")
    mixtures = model.mixtures
    if node is not None and staged(node, spec.parallel, model):
        return staged_layout(node, spec.parallel or Parallel(), cluster, model)
    asked = spec.parallel or Parallel()
    one_stage = "pipeline" in asked.model_fields_set and not asked.beside_stages
    if node is not None and not mixtures and not one_stage:
        message = f"parallel says where experts live, and model {model.name} has none"
        raise OrchError(message, code="E236", where=node.place, hint="remove it, or choose a model with mixtures")
    if not mixtures:
        return Layout(cluster.world_size)
    try:
        layout = Layout.of(cluster.world_size, mixtures, **asked.model_dump(exclude={"pipeline", "micro_batches"}))
        if layout.tensor > 1:
            layout.local(model.profile())
        return layout
    except OrchError as error:
        raise error.at((node or tree.get("model") or tree).place) from None


def _check_mixtures(tree: Node, stacks: Mapping[str, Stack], model: ChosenModel) -> None:
    """Refuse what a model with mixtures cannot be trained by, and schedules of mixtures for a model without them."""
    written = tree.get("stacks") or tree
    for stack in stacks.values():
        node = written.get(stack.name) or written
        # Those that the user wrote come first: what fills an empty slot beside them is not to be blamed.
        for member in sorted(stack.members, key=lambda member: not member.given):
            where = (node.get(member.name) or node).place
            if member.technique.slot.of_mixtures and not model.mixtures:
                message = f"{member.name!r} is for mixtures of experts, and model {model.name} has none"
                raise OrchError(
                    message, code="E235", where=where, hint="choose a model with mixtures: orch list models"
                )
            if member.technique.engine is not None and model.mixtures:
                message = (
                    f"{member.name!r} brings a runtime of its own, which cannot spread the experts of {model.name}"
                )
                raise OrchError(message, code="E235", where=where, hint="use naive-moe for what everyone has")


def _check_techniques(tree: Node, stacks: Mapping[str, Stack]) -> None:
    """Refuse knobs of a technique that no stack uses: they would be ignored."""
    used = {name for stack in stacks.values() for name in stack.techniques}
    techniques = tree.get("techniques")
    for name, node in techniques.items() if techniques is not None else ():
        if name not in used:
            hint = did_you_mean(name, used) or "remove them, or name it in a stack"
            raise OrchError(
                f"knobs for technique {quoted(name)}, which no stack uses", code="E224", where=node.place, hint=hint
            )


def _check_baseline(tree: Node, spec: RecipeFile, stacks: Mapping[str, Stack]) -> None:
    if spec.baseline not in stacks:
        node = tree.get("baseline") or tree
        hint = did_you_mean(spec.baseline, stacks) or f"stacks: {', '.join(stacks)}"
        raise OrchError(
            f"baseline {quoted(spec.baseline)} is no stack of this recipe", code="E233", where=node.where, hint=hint
        )


def _check_batches(tree: Node, stacks: Mapping[str, Stack], workers: int) -> None:
    for stack in stacks.values():
        batch = stack.train.global_batch
        if batch is not None and batch % workers:
            node = (
                tree.find(("when", stack.name, "train", "global_batch")) or tree.find(("train", "global_batch")) or tree
            )
            near = max(round(batch / workers), 1) * workers
            message = f"train.global_batch {batch} cannot be divided among {workers} workers"
            raise OrchError(message, code="E229", where=node.where, hint=f"the nearest that can is {near}")


def _check_uncertain(tree: Node, full: Node) -> None:
    """Refuse an uncertain input that is no value of this recipe."""
    node = tree.get("uncertain")
    for path, entry in node.items() if node is not None else ():
        try:
            found = origin_of(full, path)
        except OrchError as error:
            message = f"uncertain names {quoted(path)}, which is no value of this recipe: {error.message}"
            raise OrchError(message, code="E234", where=entry.place, hint=error.hint) from None
        if path.split(".")[0] in ("uncertain", "name", "orch") or isinstance(found.value, dict):
            message = f"uncertain names {quoted(path)}, which is no single value"
            hint = "name a number or a word below model, train, cluster, techniques, stacks or compute"
            raise OrchError(message, code="E234", where=entry.place, hint=hint)


def _check_sought(tree: Node, spec: RecipeFile) -> None:
    """Refuse a sweep for what the recipe cannot tell, or for what a simulation cannot."""
    sweep, node = spec.sweep, tree.get("sweep") or tree
    if sweep is None:
        return
    named = [*(name for name, _ in sweep.objectives), *sweep.constraints]
    if "time_to_target" in named and spec.target is None:
        hint = "add target: {metric: val_loss, reach: VALUE}"
        raise OrchError(
            "the sweep seeks time_to_target, but there is no target", code="E243", where=node.place, hint=hint
        )
    learned = [name for name in named if name in LEARNED]
    if sweep.simulate_first is not None and learned:
        message = f"simulate_first cannot tell {learned[0]}: only training can"
        where = (node.get("simulate_first") or node).place
        raise OrchError(message, code="E243", where=where, hint="remove it, or seek what a plan can tell")
    for name, bound in sweep.constraints.items():
        value = bound.at_most if bound.at_most is not None else bound.at_least
        if (fault := unreadable(name, value)) is not None:
            where = (node.find(("constraints", name)) or node).place
            raise OrchError(f"the bound of {name}: {fault}", code="E243", where=where)


def _check_quality(tree: Node, spec: RecipeFile, stacks: Mapping[str, Stack]) -> None:
    node = tree.get("seeds") or tree
    if len(set(spec.seeds)) != len(spec.seeds):
        raise OrchError("seeds holds a seed twice", code="E230", where=node.where, hint="every seed counts once")
    lossy = [name for name, stack in stacks.items() if not stack.lossless]
    if lossy and len(spec.seeds) > 1 and spec.target is None:
        message = f"several seeds compare quality, and the stack {quoted(lossy[0])} is lossy, but there is no target"
        hint = "add target: {metric: val_loss, reach: VALUE}"
        raise OrchError(message, code="E230", where=node.place, hint=hint)
