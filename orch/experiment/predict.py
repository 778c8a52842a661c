"""Predict one step of every stack of a recipe: plan it, simulate it, and say what the figure rests on. Starts
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orch.cluster import Cluster
from orch.errors import OrchError
from orch.experiment.memory import peak_memory_bytes
from orch.models.profile import Profile
from orch.plan import Collective, Decode, Encode, Plan, Step
from orch.plan.operations import own_work
from orch.plan.timeline import Timeline
from orch.recipe import Recipe, load
from orch.recipe.schema import Train
from orch.simulate import makespan_s, ready_times, simulate
from orch.stack import PassReport, apply
from orch.technique import Context
from orch.workload import data_parallel, forward_reads, mixture_training, pipeline_training, retimed
from orch.workload.pipeline import stage_of

# What a library may take for large or small groups instead of what was measured.
ALTERNATIVES = ("ring", "halving-doubling", "double-binary-tree")
# Kinds of what a codec of rows computes.
PACKING = ("pack_rows", "unpack_rows")


@dataclass(frozen=True, slots=True)
class Band:
    """A predicted time with the range its inputs leave open, in seconds, and what those inputs are."""

    median: float
    lo: float
    hi: float
    basis: str


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one worker; payload and wire bytes are those of a step, averaged over the period."""

    payload: float
    wire: float
    peak_memory: int


@dataclass(frozen=True)
class Bucket:
    """One collective of a plan."""

    tensors: tuple[str, ...]
    nbytes: int
    collective: str
    step: int


@dataclass(frozen=True)
class StackForecast:
    """What a stack is predicted to do in one step, in steady state."""

    name: str
    plan: Plan
    timeline: Timeline
    step_time_s: Band
    ceiling_s: float
    footprint: Footprint
    lossless: bool
    passes: tuple[str, ...]

    @property
    def compute_s(self) -> float:
        """Seconds of a step that the device computes."""
        return self.timeline.busy_s()

    @property
    def basis(self) -> str:
        """What the prediction rests on."""
        return self.step_time_s.basis

    @property
    def exposed_communication_s(self) -> float:
        """Step time beyond the same plan with communication free."""
        return max(0.0, self.step_time_s.median - self.ceiling_s)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The collectives of gradients, in launch order."""
        return tuple(
            Bucket(task.op.tensors, task.op.nbytes, task.op.kind, index)
            for index, step in enumerate(self.plan.steps)
            for task in step
            if isinstance(task.op, Collective) and task.op.tensors
        )


@dataclass(frozen=True)
class Forecast:
    """The predictions of a recipe's stacks on one cluster. The ceiling is the plain plan with communication free."""

    recipe: str
    cluster: Cluster
    baseline: str
    ceiling_s: float
    stacks: dict[str, StackForecast]

    def speedup(self, stack: str) -> float:
        """Baseline's step time over that of `stack`."""
        return self.stacks[self.baseline].step_time_s.median / self.stacks[stack].step_time_s.median

    @property
    def ceiling_speedup(self) -> float:
        """Baseline's step time over the ceiling: no lossless technique for communication gains more here."""
        return self.stacks[self.baseline].step_time_s.median / self.ceiling_s


@dataclass(frozen=True)
class Inputs:
    """What a prediction computes with: links, and per stack layer times and the optimiser's seconds (None: by the
    device).
    """

    cluster: Cluster
    profiles: Mapping[str, Profile]
    update_s: Mapping[str, float | None]


def described(recipe: Recipe) -> Inputs:
    """Return the inputs that the recipe itself describes: its cluster file and its model's profile."""
    profile, compute = recipe.model.profile(recipe.data), recipe.spec.compute
    if compute is None:
        return Inputs(recipe.cluster, dict.fromkeys(recipe.stacks, profile), dict.fromkeys(recipe.stacks))
    steps = {name: compute.step_s(recipe.batch_per_worker(name)) for name in recipe.stacks}
    # Most stacks have one batch: what is scaled for it serves them all.
    scaled = {
        step: profile.scaled_to(step * compute.forward, step * (1 - compute.forward)) for step in set(steps.values())
    }
    profiles = {name: scaled[step] for name, step in steps.items()}
    # The update is a part of what was measured, and nobody said which.
    return Inputs(recipe.cluster, profiles, dict.fromkeys(recipe.stacks, 0.0))


def predict(recipe: Recipe, inputs: Inputs | None = None, *, timed: bool = True) -> Forecast:
    """Return the forecast of every stack of `recipe`. Raises OrchError E301 where a link was never described.

    `inputs` take the place of what the recipe describes when links and layer times were measured. `timed` false leaves
    out what each pass does to the step time.
    """
    inputs = described(recipe) if inputs is None else inputs
    return _compared(recipe, inputs, {name: _forecast(recipe, name, inputs, timed) for name in recipe.stacks})


def _compared(recipe: Recipe, inputs: Inputs, stacks: dict[str, StackForecast]) -> Forecast:
    baseline = recipe.baseline.name
    plain = plain_plan(recipe, baseline, inputs)
    ceiling = simulate(plain, inputs.cluster.communication_free()).step_time_s
    return Forecast(recipe.name, inputs.cluster, baseline, ceiling, stacks)


def repredict(forecast: Forecast, recipe: Recipe, inputs: Inputs) -> Forecast:
    """Return the forecast of the same plans with other inputs: layer times and links as they were measured since."""
    stacks = {
        name: _judged(recipe, name, inputs, retimed(stack.plan, plain_plan(recipe, name, inputs)), tuple(stack.passes))
        for name, stack in forecast.stacks.items()
    }
    return _compared(recipe, inputs, stacks)


def predict_scales(recipe: str | Path, overrides: Sequence[str], scale: str) -> dict[int, Forecast]:
    """Return forecasts by world size for `scale` (`32,64` workers), each as if `cluster.nodes` had been overridden.

    Raises OrchError for a number of workers that does not fill whole nodes.
    """
    per_node = load(recipe, overrides).cluster.devices_per_node
    result: dict[int, Forecast] = {}
    for part in scale.split(","):
        workers = int(part) if part.strip().isdecimal() else 0
        if workers < 1 or workers % per_node:
            message = f"--scale {scale}: {part.strip()!r} is no number of workers that fills nodes of {per_node}"
            raise OrchError(message, code="E603", hint=f"write multiples of {per_node}, such as {8 * per_node}")
        result[workers] = predict(load(recipe, [*overrides, f"cluster.nodes={workers // per_node}"]))
    return result


def plain_plan(recipe: Recipe, stack: str, inputs: Inputs) -> Plan:
    """Return the plan of one stack before any pass."""
    train, profile = recipe.stacks[stack].train, inputs.profiles[stack]
    batch, update_s = recipe.batch_per_worker(stack), inputs.update_s[stack]
    dtypes = {"precision": train.precision, "gradient_dtype": train.gradient_dtype}
    if recipe.layout.cuts:
        return pipeline_training(profile, recipe.layout, batch, **dtypes, update_s=update_s)
    if profile.mixtures:
        return mixture_training(profile, recipe.layout, batch, **dtypes, update_s=update_s)
    return data_parallel(profile, inputs.cluster.world_size, batch, **dtypes, update_s=update_s)


def plan_stack(recipe: Recipe, stack: str, inputs: Inputs, *, timed: bool = True) -> tuple[Plan, list[PassReport]]:
    """Return the plan of one stack and what each pass did to it; with `timed` false, without the step times.

    Raises OrchError, at the stack's place, where a technique cannot do what it is asked for with this model or cluster.
    """
    cluster, profile = inputs.cluster, _local(recipe, inputs.profiles[stack])
    context = Context(
        cluster,
        cluster.world_size,
        ready=lambda plan, step: ready_times(plan, step, cluster),
        makespan=lambda plan: makespan_s(plan, cluster),
        parameters={tensor.name: tensor.shape for tensor in profile.tensors},
        forward_reads=forward_reads(profile),
        gradient_dtype=recipe.stacks[stack].train.gradient_dtype,
        mixtures=profile.mixtures,
        stages=profile.stages,
        batch=recipe.batch_per_worker(stack),
    )
    members = recipe.stacks[stack].members
    step_time_s = (lambda plan: simulate(plan, cluster).step_time_s) if timed else None
    try:
        return apply(plain_plan(recipe, stack, inputs), members, context, step_time_s)
    except OrchError as error:  # a technique knows its knobs, not where they were written
        error.at((recipe.tree.find(("stacks", stack)) or recipe.tree).place)
        raise


def _local(recipe: Recipe, profile: Profile) -> Profile:
    """Return what one worker holds of the model."""
    return recipe.layout.local(profile)


def footprint(recipe: Recipe, name: str, inputs: Inputs, plan: Plan) -> Footprint:
    """Return the bytes of one worker of a stack that runs `plan`."""
    if recipe.layout.cuts:
        return _largest_stage(recipe, name, inputs, plan)
    return _footprint(recipe, name, inputs, plan, _local(recipe, inputs.profiles[name]))


def _largest_stage(recipe: Recipe, name: str, inputs: Inputs, plan: Plan) -> Footprint:
    """Return the most of each that a worker of a pipeline has: it holds its own stage, and runs that stage's tasks."""
    found = []
    for rank, cut in enumerate(recipe.layout.cuts):
        own = plan.each_step(lambda step, rank=rank: Step(tuple(t for t in step if rank in plan.roles[t.role])))  # type: ignore[misc]
        found.append(_footprint(recipe, name, inputs, own, stage_of(inputs.profiles[name], cut)))
    return Footprint(
        max(one.payload for one in found), max(one.wire for one in found), max(one.peak_memory for one in found)
    )


def _footprint(recipe: Recipe, name: str, inputs: Inputs, plan: Plan, profile: Profile) -> Footprint:
    train = recipe.stacks[name].train
    sends = [task for step in plan.steps for task in step if isinstance(task.op, Collective)]
    spans = {group: inputs.cluster.span(plan.groups[group].blocks[0]) for group in plan.groups}
    batch = recipe.batch_per_worker(name)
    return Footprint(
        payload=sum(task.op.nbytes for task in sends) / plan.period,
        wire=sum(task.op.wire_bytes(spans[task.group]) for task in sends) / plan.period,
        peak_memory=peak_memory_bytes(plan, profile, batch, train.precision, optimizer_kind(train)),
    )


def _forecast(recipe: Recipe, name: str, inputs: Inputs, timed: bool) -> StackForecast:
    plan, passes = plan_stack(recipe, name, inputs, timed=timed)
    return _judged(recipe, name, inputs, plan, tuple(str(report) for report in passes))


def _judged(recipe: Recipe, name: str, inputs: Inputs, plan: Plan, passes: tuple[str, ...]) -> StackForecast:
    cluster, profile = inputs.cluster, inputs.profiles[name]
    timeline = simulate(plan, cluster)
    largest = max(
        (task.op.nbytes for step in plan.steps for task in step if isinstance(task.op, Collective)), default=0
    )
    return StackForecast(
        name=name,
        plan=plan,
        timeline=timeline,
        step_time_s=_band(plan, cluster, timeline.step_time_s, largest, _basis(plan, cluster, profile, largest)),
        ceiling_s=simulate(plan, cluster.communication_free()).step_time_s,
        footprint=footprint(recipe, name, inputs, plan),
        lossless=recipe.stacks[name].lossless,
        passes=passes,
    )


def _band(plan: Plan, cluster: Cluster, median: float, nbytes: int, basis: str) -> Band:
    """Simulate the same plan with every cost at the low and at the high end of what its basis leaves open."""
    bands = cluster.bands(nbytes=nbytes)
    # Carried beyond what was measured, nobody knows whether the library still takes the same algorithm.
    carried = cluster.basis(nbytes=nbytes).times > 1.0
    variants = [cluster, *(cluster.with_algorithm(name) for name in ALTERNATIVES if carried)]
    times = [
        simulate(
            plan, variant.scaled(*((1.0 + band) ** sign for band in (bands.start_up, bands.per_byte, bands.compute)))
        ).step_time_s
        for variant in variants
        for sign in (-1, 1)
    ]
    return Band(median, min(*times, median), max(*times, median), basis)


def _basis(plan: Plan, cluster: Cluster, profile: Profile, nbytes: int) -> str:
    compute = "measured layer times" if profile.measured else f"{cluster.device.basis} compute"
    ops = [task.op for step in plan.steps for task in step]
    works = {own_work(op) for op in ops if isinstance(op, Encode | Decode) or op.kind in PACKING}
    unknown = "" if works <= cluster.operations.keys() else ", encode cost unknown (estimated)"
    packed = {op.rests_on for op in ops if isinstance(op, Collective) and op.rests_on}
    return ", ".join([compute, f"{cluster.basis(nbytes=nbytes)} links{unknown}", *sorted(packed)])


def optimizer_kind(train: Train) -> str:
    """Return the optimizer's name, told apart where its settings change what it keeps."""
    settings = train.optimizer.settings
    return "sgd-momentum" if train.optimizer.name == "sgd" and settings.get("momentum") else train.optimizer.name
