"""Every field of a recipe: type, default and one line of meaning, once. Pages and the JSON schema derive from here.

Short forms (a bare name, a list of techniques) are written out before this schema sees them, so it has no unions and
every fault has one place.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from orch.errors import did_you_mean
from orch.recipe.failures import FaultEntry
from orch.recipe.section import Count, Name, NearNameError, Section
from orch.recipe.sweep import Sweep
from orch.recipe.unknown import Unknown
from orch.units import Fraction, Seconds

WAYS = ("inline", "processes", "local", "emulate", "torchrun")
"""The ways to reach workers that have a name: those of `orch.gang`, which this layer does not know; a test compares."""

Dtype = Literal["fp32", "bf16", "fp16"]
Metric = Literal["loss", "accuracy", "val_loss", "val_accuracy"]

LATER = {
    "grid": "a full factorial of cells",
    "scaling": "a series over worker counts",
    "tune": "an equal tuning budget for every stack",
}
"""Sections that a recipe may not use yet, and what they will hold: refused by name, never ignored."""


def _import_path(value: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", value):
        raise ValueError("must be package.module:function")
    return value


def _version(value: int) -> int:
    if value != 1:
        raise ValueError("must be 1, the only version this orch reads")
    return value


def _reach(value: str) -> str:
    address = re.fullmatch(r"(?:ray://)?(?:\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})|ray://[\w.-]+", value)
    if value not in WAYS and address is None:
        raise NearNameError(f"must be {', '.join(WAYS)}, HOST:PORT or ray://HOST:PORT", did_you_mean(value, WAYS))
    if address is not None and address[1] is not None and not 1 <= int(address[1]) <= 65_535:
        raise ValueError("must have a port of 1 to 65535")
    return value


ImportPath = Annotated[str, AfterValidator(_import_path)]
Reach = Annotated[str, AfterValidator(_reach)]
Version = Annotated[int, AfterValidator(_version), WithJsonSchema({"const": 1})]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Model(Section):
    """What is trained: a known model, your own function, or a profile. Other keys are the model's arguments."""

    model_config = ConfigDict(extra="allow")

    use: Name | None = Field(default=None, description="a model by name (orch list models)")
    python: ImportPath | None = Field(
        default=None, description="your own: package.module:function returning a torch module"
    )
    profile: str | None = Field(
        default=None, description="a profile file, for planning without the model; relative to its recipe"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(choice is not None for choice in (self.use, self.python, self.profile)) != 1:
            raise ValueError("must hold exactly one of use, python, profile")
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys beside `use`, `python` and `profile`, for the model's builder."""
        return dict(self.__pydantic_extra__ or {})


class Data(Section):
    """What it is trained on. Other keys are the data set's arguments."""

    model_config = ConfigDict(extra="allow")

    use: Name = Field(description="a data set by name (orch list data)")

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys beside `use`, for the data set's loader."""
        return dict(self.__pydantic_extra__ or {})


class Sgd(Section):
    """Stochastic gradient descent."""

    lr: float = Field(gt=0, description="learning rate")
    momentum: Momentum = Field(default=0.0, description="share of the last update that is kept")
    dampening: Momentum = Field(default=0.0, description="share of the new gradient that momentum leaves out")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty")
    nesterov: bool = Field(default=False, description="look ahead along the momentum")

    @model_validator(mode="after")
    def _nesterov(self) -> Self:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        return self


class Adam(Section):
    """Adam."""

    lr: float = Field(gt=0, description="learning rate")
    betas: Annotated[list[Momentum], Field(min_length=2, max_length=2)] = Field(
        default=[0.9, 0.999], description="decay of the two moments"
    )
    eps: float = Field(default=1e-8, gt=0, description="added to the denominator")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty")


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    weight_decay: float = Field(default=0.01, ge=0, description="decay of the weights, apart from the gradient")


class Optimizer(Section):
    """Exactly one optimizer with its settings: {sgd: {lr: 0.1}}."""

    sgd: Sgd | None = Field(default=None, description="stochastic gradient descent")
    adam: Adam | None = Field(default=None, description="Adam")
    adamw: AdamW | None = Field(default=None, description="Adam with decoupled weight decay")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("must hold exactly one of sgd, adam, adamw")
        return self

    @property
    def name(self) -> str:
        """Name of the optimizer."""
        return next(iter(self.model_fields_set))

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings by name, as torch takes them."""
        chosen: Section = getattr(self, self.name)
        return chosen.model_dump()


class LearningRate(Section):
    """The learning rate over a training, as a factor of the optimizer's own."""

    shape: Literal["constant", "cosine"] = Field(
        default="constant", description="after the warm-up: constant, or a cosine that ends at 0 with the training"
    )
    warmup: int = Field(default=0, ge=0, description="steps over which it rises linearly from 0")


class Checkpoint(Section):
    """States to go on from. Without this section they are kept only while the run lasts, one every minute."""

    every: Count | None = Field(
        default=None, description="steps between two, each taken at the end of a block; default: about a minute"
    )
    keep: Count = Field(default=1, description="how many stay of each training, the newest")
    path: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="a folder, or a URL that fsspec knows, for all ranks; default: in the run's directory"
    )


class Recover(Section):
    """What happens when a worker or its node is lost: the gang is made anew and goes on from the last checkpoint."""

    retries: int = Field(
        default=2, ge=0, description="losses in a row, without a block finished between them, that a run survives"
    )
    min_nodes: Count | None = Field(
        default=None, description="fewest nodes to train on with, untimed, when no more can be had; default: all"
    )


class Train(Section):
    """How it is trained, the same for every stack."""

    precision: Dtype = Field(default="fp32", description="number format of the computation")
    gradient_dtype: Dtype = Field(default="fp32", description="number format of gradients on the wire")
    batch_per_worker: Count | None = Field(
        default=None, description="samples each worker takes in a step; or give global_batch"
    )
    global_batch: Count | None = Field(
        default=None, description="samples all workers take together in a step; the world size divides it"
    )
    optimizer: Optimizer = Field(description="one optimizer with its settings: sgd, adam or adamw")
    learning_rate: LearningRate = Field(
        default=LearningRate.model_construct(), description="how the optimizer's learning rate changes over a training"
    )
    steps: Count | None = Field(
        default=None,
        description="updates of a whole training; what `measure` takes is timed, the rest only trained; default: that",
    )
    on_nan: Literal["stop", "go-on"] = Field(
        default="stop", description="what a loss that is no number does: end the run, naming rank and step, or nothing"
    )
    checkpoint: Checkpoint | None = Field(default=None, description="states to go on from, and to keep")

    @model_validator(mode="after")
    def _one_batch(self) -> Self:
        if (self.batch_per_worker is None) == (self.global_batch is None):
            raise ValueError("must hold exactly one of batch_per_worker, global_batch")
        return self


class Parallel(Section):
    """Where the experts of mixtures live, which workers share a sample, and which hold a stage of the model each; all else of a
    model is on every worker.
    """

    experts: Count | None = Field(
        default=None,
        description="workers that share the experts out; default: the most that divides both workers and experts",
    )
    slices: Count = Field(
        default=1, description="neighbouring workers that share each expert, a slice of its width each"
    )
    tensor: Count = Field(
        default=1,
        description="neighbouring workers that share each sample: all read it, and attention's heads are split over them",
    )
    tokens: Literal["whole", "shares"] = Field(
        default="whole",
        description="what workers that share a sample hold outside attention: the whole of its tokens, or a share each "
        "(sequence parallelism; planned and simulated only)",
    )
    pipeline: Count = Field(
        default=1,
        description="neighbouring workers that hold a stage of the model each; micro-batches go through all of them",
    )
    micro_batches: Count | None = Field(
        default=None,
        description="equal parts of a batch that follow one another through the stages; default: as many as stages",
    )

    @property
    def beside_stages(self) -> list[str]:
        """What is asked for beside stages: keys that are not at their defaults."""
        fields = type(self).model_fields
        return [
            key
            for key in fields
            if key not in ("pipeline", "micro_batches") and getattr(self, key) != fields[key].default
        ]


class Measure(Section):
    """How step times are measured: every stack in shuffled blocks of steps."""

    blocks: Count = Field(default=8, description="blocks per stack; the intervals come from their differences")
    steps: Count = Field(default=20, description="timed steps in a block")
    warmup: int = Field(default=10, ge=0, description="steps before a stack's first block, not timed")

    @property
    def total(self) -> int:
        """Steps that measuring takes, the warm-up included."""
        return self.warmup + self.blocks * self.steps


class Target(Section):
    """The quality at which a training counts as done."""

    metric: Metric = Field(description="what is watched: a loss is to fall to `reach`, an accuracy to rise to it")
    reach: float = Field(description="the value to reach; an accuracy lies between 0 and 1")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if "accuracy" in self.metric and not 0 <= self.reach <= 1:
            raise ValueError("reach must lie between 0 and 1: an accuracy is a share")
        return self


class When(Section):
    """Settings that hold for one stack only, over those of `train`."""

    train: dict[str, Any] = Field(description="keys of train, for this stack only")


class Compute(Section):
    """A step's compute as it was measured on one worker; modules share it by their weights."""

    step: Annotated[Seconds, Field(gt=0)] | None = Field(
        default=None, description="seconds of forward, backward and update of one worker's batch, without communication"
    )
    throughput: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="the same as samples a second of one worker by itself"
    )
    forward: Annotated[Fraction, Field(gt=0, lt=1)] = Field(
        default=1 / 3, description="share of it that is forward: a backward pass is two products for each of forward"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.step is None) == (self.throughput is None):
            raise ValueError("must hold exactly one of step, throughput")
        return self

    def step_s(self, batch: int) -> float:
        """Return seconds of a step of `batch` samples."""
        return self.step if self.step is not None else batch / (self.throughput or 1.0)


Stacks = dict[Name, dict[str, dict[str, Any]]]


class RecipeFile(Section):
    """A recipe: model, cluster and the stacks of techniques to compare."""

    orch: Version = Field(description="version of this format")
    name: Name = Field(description="name of the experiment; default: the file's name")
    extends: str | None = Field(
        default=None, description="exactly one parent recipe: mappings merge, lists and scalars replace"
    )
    model: Model = Field(
        description="what is trained: NAME | {use: NAME, changes} | {python: pkg.mod:fn} | {profile: FILE}"
    )
    data: Data | None = Field(
        default=None, description="what it is trained on: NAME | {use: NAME, changes}; a plan needs none"
    )
    train: Train = Field(description="how it is trained")
    cluster: dict[str, Any] = Field(
        description="what the cluster is: NAME | {use: NAME, changes} | a whole description"
    )
    techniques: dict[str, dict[str, Any]] = Field(
        default={}, description="knobs of techniques, for every stack that uses them"
    )
    stacks: Annotated[Stacks, Field(min_length=1)] = Field(
        description="what is compared: {NAME: [techniques]} or {NAME: {technique: {knob: value}}}"
    )
    baseline: str = Field(description="the stack that the others are compared with; default: the first")
    parallel: Parallel | None = Field(
        default=None,
        description="where experts live, who shares samples, stages of a pipeline; default: experts over all workers",
    )
    measure: Measure = Field(default=Measure.model_construct(), description="how step times are measured")
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1)] = Field(
        default=[0], description="seeds of the trainings whose quality is compared"
    )
    target: Target | None = Field(default=None, description="the quality at which a training counts as done")
    faults: list[FaultEntry] = Field(default=[], description="what is to go wrong: [{kill_rank: {rank: 2, step: 31}}]")
    recover: Recover = Field(
        default=Recover.model_construct(), description="what happens when a worker or its node is lost"
    )
    on: Reach | None = Field(
        default=None, description="how workers are reached: local, processes, inline, torchrun, HOST:PORT or ray://HOST"
    )
    when: dict[str, When] = Field(default={}, description="settings for some stacks: {STACK: {train: {...}}}")
    compute: Compute | None = Field(
        default=None,
        description="a step's compute as measured, in place of what the device's rates give: {step: 883ms}",
    )
    uncertain: dict[str, Unknown] = Field(
        default={}, description="inputs known as ranges only: {PATH: {range: [LOW, HIGH], source: WHY}}"
    )
    sweep: Sweep | None = Field(default=None, description="a search over settings: orch sweep RECIPE")
