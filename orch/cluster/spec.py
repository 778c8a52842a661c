"""The schema of a cluster file: WHAT a cluster is, every number with its unit and its source. `build` makes a value of it.

How to reach the workers is never said here (that is `--on`). Whatever a file leaves out is not guessed: a cost that
needs it says what is missing.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from orch.cluster.spec_nodes import Delay, Labels, Loss, UnequalSpec
from orch.units import BYTES, Bytes, BytesPerSecond, FlopsPerSecond, Fraction, Seconds, SecondsPerByte

Count = Annotated[int, Field(strict=True, ge=1)]


MOST_RANKS = 2**40
"""Beyond any cluster; more would leave the whole numbers that all costs can count."""

MOST_UNEQUAL_RANKS = 2**20
"""Ranks that are alike cost nothing; those that differ are held one by one, in arrays for every iteration."""


def _rank(value: object) -> object:
    text = str(value)
    # One spelling a rank: 01 and other scripts' digits would be further names of rank 1, and the last would win.
    if isinstance(value, bool) or not text.isdecimal():
        raise ValueError("is not a rank; ranks are numbers from 0")
    if str(int(text)) != text:
        raise ValueError(f"is another way to write rank {int(text)}; write {int(text)}")
    return int(text)


def _some_text(value: str) -> str:
    if not value.strip():
        raise ValueError("must be text, not blank")
    return value


def _distinct_sizes(value: object) -> object:
    """Refuse two keys that are one size: the last would win silently."""
    read: dict[float, str] = {}
    for key in value if isinstance(value, dict) else ():
        try:
            size = BYTES.parse(key)
        except ValueError:
            continue  # said at its own place
        if size in read:
            raise ValueError(f"has {read[size]} and {key}, which are the same size; keep one")
        read[size] = key
    return value


RankNumber = Annotated[int, BeforeValidator(_rank)]
Factor = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Slowdown = Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]
StartUp = Annotated[Seconds, Field(ge=0)]
PerByte = Annotated[SecondsPerByte, Field(ge=0)]
Bandwidth = Annotated[BytesPerSecond, Field(gt=0)]
Size = Annotated[Bytes, Field(gt=0)]
Rate = Annotated[FlopsPerSecond, Field(gt=0)]
Table = Annotated[dict[Size, StartUp], Field(min_length=2), BeforeValidator(_distinct_sizes)]
Source = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_some_text)]
Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
CollectiveName = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce"]
AlgorithmName = Literal[
    "ring",
    "tree",
    "double-binary-tree",
    "nccl-tree",
    "recursive-doubling",
    "halving-doubling",
    "two-level",
    "leader",
    "auto",
]
GivenKind = Literal["measured", "fitted", "nameplate"]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class DeviceSpec(_Spec):
    """One device: what it is and how fast a training step runs on it."""

    kind: Literal["gpu", "cpu"] = Field(description="which kind of device a rank is")
    name: str = Field(description="what people call it")
    rate: dict[Dtype, Rate] = Field(default_factory=dict, description="compute rate a dtype, 2 FLOP a multiply-add")
    memory_bandwidth: Bandwidth | None = Field(None, description="rate of the device's memory")
    memory: Size | None = Field(None, description="size of the device's memory")
    launch: StartUp | None = Field(
        None, description="start-up of a matrix product, which cutting work into chunks pays again; default 0"
    )
    basis: GivenKind = Field("nameplate", description="what the rates are: measured, fitted or from a data sheet")
    band: Fraction | None = Field(None, description="relative half width of compute times; default by basis")
    source: Source | None = Field(None, description="where the numbers come from")

    @model_validator(mode="after")
    def _sourced(self) -> Self:
        if self.source is None and (self.rate or self.memory_bandwidth or self.memory or self.launch):
            raise ValueError("has numbers without a source; add source: where they come from")
        return self


class MeasuredSpec(_Spec):
    """A whole collective as measured on one group: a line (alpha + beta n) or a table (size: seconds)."""

    collective: CollectiveName = Field("all-reduce", description="which collective")
    ranks: Annotated[int, Field(strict=True, ge=2)] = Field(description="size of the measured group")
    alpha: StartUp | None = Field(None, description="start-up of the whole collective")
    beta: PerByte | None = Field(None, description="seconds a byte of payload of the whole collective")
    sizes: tuple[Size, Size] | None = Field(None, description="smallest and largest size the line was fitted on")
    table: Table | None = Field(None, description="size -> seconds, at least two sizes")
    single: Table | None = Field(None, description="the same, one collective at a time; table is a queue")
    beside: Table | None = Field(None, description="the table while every rank computes")
    beside_single: Table | None = Field(None, description="single while every rank computes")
    stolen: Table | None = Field(None, description="seconds of compute that one collective takes away")
    shaped: Bandwidth | None = Field(
        None, description="rate a node was held to meanwhile; where the link's own differs, times are carried to that"
    )
    algorithm: AlgorithmName | None = Field(
        None, description="whose counts carry it to other groups; default: the link's"
    )
    basis: GivenKind | None = Field(None, description="default: fitted for a line, measured for a table")
    source: Source | None = Field(None, description="where it comes from; default: the link's source")
    evidence: tuple[str, ...] = Field((), description="ids of published rows it was fitted on")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        line = self.alpha is not None and self.beta is not None
        if (self.alpha is None) != (self.beta is None) or line == (self.table is not None):
            raise ValueError("needs either a line (alpha and beta) or a table")
        if self.sizes is not None and self.table is not None:
            raise ValueError("has a table, which brings its own sizes; drop sizes")
        if self.sizes is not None and self.sizes[0] >= self.sizes[1]:
            raise ValueError("has sizes that do not rise; write [smallest, largest]")
        return self


class LinkSpec(_Spec):
    """One level of the network: point-to-point numbers, measurements of whole collectives, or both."""

    alpha: StartUp | None = Field(None, description="start-up of one message")
    beta: PerByte | None = Field(None, description="seconds a byte and direction (or give bandwidth)")
    bandwidth: Bandwidth | None = Field(None, description="rate a direction (or give beta)")
    gamma: PerByte | None = Field(None, description="seconds to add up one byte; default 0")
    delay: Delay | None = Field(None, description="one way, on top of alpha; an emulated link waits so long")
    loss: Loss | None = Field(None, description="share of packets lost, which at the least are sent again; default 0")
    shaped: Bandwidth | None = Field(
        None, description="rate an emulated link is held to; default: by beta or bandwidth"
    )
    per: Literal["node", "device"] | None = Field(
        None, description="who owns the link; default: device inside a node, node between nodes"
    )
    algorithm: AlgorithmName = Field("ring", description="algorithm of the all-reduce")
    measured: tuple[MeasuredSpec, ...] | None = Field(
        None, description="whole collectives as measured; they win over alpha and beta"
    )
    basis: GivenKind = Field("nameplate", description="what alpha and beta are: measured, fitted or from a data sheet")
    alpha_band: Fraction | None = Field(None, description="relative half width of start-ups; default by basis")
    beta_band: Fraction | None = Field(None, description="relative half width of times a byte; default by basis")
    source: Source | None = Field(None, description="where the numbers come from")
    evidence: tuple[str, ...] = Field((), description="ids of published rows the numbers were fitted on")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = (self.alpha, self.beta, self.bandwidth, self.gamma)
        if self.beta is not None and self.bandwidth is not None:
            raise ValueError("gives beta and bandwidth, which say the same thing; keep one")
        if any(value is not None for value in given):
            if self.alpha is None or (self.beta is None and self.bandwidth is None):
                raise ValueError("needs alpha, and beta or bandwidth")
            if self.source is None:
                raise ValueError("has numbers without a source; add source: where they come from")
        elif self.delay is not None or self.loss is not None:
            raise ValueError("gives delay or loss without alpha and bandwidth, on which they act")
        elif not self.measured:
            raise ValueError(
                "describes nothing: give alpha and beta (or bandwidth), or measured collectives; leave an unknown link out"
            )
        seen = set()
        for entry in self.measured or ():
            what = (entry.collective, entry.ranks, entry.shaped)
            if what in seen:
                raise ValueError(f"measures the {entry.collective} of {entry.ranks} ranks twice; keep one")
            seen.add(what)
            if entry.source is None and self.source is None:
                raise ValueError(f"needs a source for the measured {entry.collective} of {entry.ranks} ranks")
            if entry.collective == "all-reduce" and self.alpha is not None:
                raise ValueError(
                    "gives alpha, which its measured all-reduce would leave unused; drop one (measured: null)"
                )
        return self


class LinksSpec(_Spec):
    """Links inside a node and between nodes; leave out what nobody measured or looked up."""

    intra: LinkSpec | None = Field(None, description="between the devices of a node")
    inter: LinkSpec | None = Field(None, description="between nodes")


class SharingSpec(_Spec):
    """Measured slowdowns while computing and communicating at once."""

    compute_slowdown: Slowdown = Field(
        1.0, description="compute takes this many times as long while the network is busy"
    )
    communication_slowdown: Slowdown = Field(
        1.0, description="communication takes this many times as long while the device computes"
    )
    lanes: Count = Field(1, description="collectives of one group that are worked off at once")
    units: Count | None = Field(None, description="multiprocessors of a device, where kernels compete for them")
    held: Count | None = Field(None, description="of these, what a collective's kernel holds while it runs")
    source: Source = Field(description="where the numbers come from")

    @model_validator(mode="after")
    def _held_are_some(self) -> Self:
        if (self.units is None) != (self.held is None):
            raise ValueError("units and held go together")
        if self.units is not None and self.held is not None and self.held >= self.units:
            raise ValueError(f"held {self.held} leaves nothing of units {self.units}")
        return self


class OverheadSpec(_Spec):
    """Measured seconds of compute that the runtime itself takes."""

    step: StartUp = Field(0.0, description="in each step")
    collective: StartUp = Field(0.0, description="for each collective that is launched")
    source: Source = Field(description="where the numbers come from")


class OperationSpec(_Spec):
    """What an operation of a technique was measured to take: `least`, and `factor` times what its own formula says."""

    least: StartUp = Field(description="seconds it takes however small it is")
    factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(description="times the formula's seconds")
    source: Source = Field(description="where the numbers come from")


class ClusterSpec(_Spec):
    """A cluster file."""

    about: str = Field("", description="one line on what it is")
    nodes: Count = Field(description="number of nodes")
    devices_per_node: Count = Field(description="devices of a node; one rank each")
    device: DeviceSpec = Field(description="the device, the same on all nodes")
    links: LinksSpec = Field(
        # A factory: a value would build the validators of all links at import, and again inside this model.
        default_factory=lambda: LinksSpec(intra=None, inter=None),
        description="the network, as far as it is known",
    )
    speed: dict[RankNumber, Factor] = Field(
        default_factory=dict, description="speed factor of single ranks; 0.5 is half as fast"
    )
    unequal: dict[RankNumber, UnequalSpec] = Field(
        default_factory=dict, description="single nodes that differ: {3: {bandwidth: 20Mbit, speed: 0.5}}"
    )
    labels: Labels = Field(
        default_factory=dict, description="what Ray nodes that are taken for its nodes must carry: {gpu: h100}"
    )
    jitter: Fraction = Field(
        0.0, description="relative standard deviation of compute times, drawn per rank and iteration"
    )
    sharing: SharingSpec | None = Field(None, description="slowdown of compute and communication by each other")
    overhead: OverheadSpec | None = Field(None, description="what the runtime itself takes")
    operations: dict[str, OperationSpec] = Field(
        default_factory=dict, description="what techniques' own operations take: `acp-sgd encode`"
    )

    @property
    def world_size(self) -> int:
        """Number of ranks: one a device."""
        return self.nodes * self.devices_per_node

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if self.world_size > MOST_RANKS:
            raise ValueError(f"has {self.world_size:.3g} ranks; at most {MOST_RANKS} can be planned")
        if self.world_size > MOST_UNEQUAL_RANKS and (self.jitter > 0 or self.speed or self.unequal):
            text = f"has {self.world_size} ranks that differ (jitter, speed, unequal)"
            raise ValueError(f"{text}; at most {MOST_UNEQUAL_RANKS} that differ can be held in memory")
        return self

    @model_validator(mode="after")
    def _ranks_exist(self) -> Self:
        wrong = next((rank for rank in self.speed if not 0 <= rank < self.world_size), None)
        if wrong is not None:
            raise ValueError(f"names rank {wrong} in speed, but has ranks 0 to {self.world_size - 1}")
        return self

    @model_validator(mode="after")
    def _nodes_exist(self) -> Self:
        for number, node in self.unequal.items():
            if number >= self.nodes:
                raise ValueError(f"names node {number} in unequal, but has nodes 0 to {self.nodes - 1}")
            if node.of_the_link and (self.links.inter is None or self.nodes == 1):
                raise ValueError(f"gives node {number} a link of its own, but there is no links.inter between nodes")
            if node.speed is not None and (rank := self._own_speed(number)) is not None:
                raise ValueError(f"gives the speed of rank {rank} in speed and in unequal.{number}; keep one")
        return self

    def _own_speed(self, number: int) -> int | None:
        first = number * self.devices_per_node
        return next((rank for rank in range(first, first + self.devices_per_node) if rank in self.speed), None)
