"""What a worker of a run does when it is called: prepare, observe, load stacks, train blocks, evaluate.

Every function takes the gang's worker first and keeps what must survive calls in `worker.cache`. Each stack has its own
model, optimiser and place in the data, all from the same seed; its training goes on across its blocks.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from orch.errors import RunError
from orch.models.batches import Batch, Batches, fetched
from orch.models.catalogue import ChosenModel, PythonModel
from orch.models.datasets import ChosenData
from orch.models.load import Load, added
from orch.models.splits import Part
from orch.models.zoo.mixture import mixture_layers
from orch.models.zoo.objective import Objective
from orch.models.zoo.own import refuse_misfit
from orch.plan import Plan
from orch.runtime.base import Engine, Setup
from orch.runtime.block import Block
from orch.runtime.clock import clock_name
from orch.runtime.engine import PlanEngine
from orch.runtime.held import keep_own, own_parameters, reader, threads_of
from orch.runtime.memory import Rise
from orch.runtime.optimizers import Schedule, optimizer_factory
from orch.runtime.pipeline import PipelineEngine
from orch.runtime.training import Training
from orch.workload.layout import STAGES, shared_out

if TYPE_CHECKING:
    from orch.models.splits import Loaded

REPORT_EVERY_S = 0.2
# The last steps of a block are stamped exactly, for its timeline: the fewest that show a steady state.
EXACT_PERIODS = 2
BROADCAST_BYTES = 1 << 28
# Held-out samples a rank judges where that sends rows over the network: four ranks' 512 tell losses 1 % apart.
JUDGED = 128
_SESSION = "session"
_SETTLED = "settled"
_NO_DEATHS: Mapping[int, Sequence[int]] = {}


class Place(Protocol):
    """The part of a gang's worker that a session needs."""

    rank: int
    world_size: int
    threads: int
    device: str
    cache: dict[Any, Any]
    progress: Any

    def process_group(self, name: str, ranks: Any = None, threads: int = 1) -> Any: ...

    def emit(self, event: Any) -> None: ...


@dataclass(frozen=True)
class Subject:
    """What is trained on what. `optimizer` is one entry `{sgd: {lr: 0.1}}`; `precision` the dtype of the arithmetic."""

    model: ChosenModel
    data: ChosenData
    batch: int
    optimizer: Mapping[str, Any]
    precision: str = "fp32"
    learning_rate: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True)
class StackJob:
    """One stack to train: its plan, and `engine` as `module:Class` with its `config` where a technique brings one."""

    name: str
    subject: Subject
    plan: Plan
    seed: int = 0
    engine: str | None = None
    config: Any = None
    stop_on_nan: bool = True


@dataclass(frozen=True)
class Progressed:
    """An event for the driver: a stack has made `step` steps of this call."""

    stack: str
    step: int
    steps: int
    loss: float
    samples_per_s: float


@dataclass
class _Session:
    trainings: dict[tuple[str, int], Training] = field(default_factory=dict)


def prepare(worker: Place, subject: Subject) -> dict[str, Any]:
    """Load the data and build the model once; return facts about this worker. Raises OrchError for data that is absent,
    and for a model of the user's that does not fit it.
    """
    worker.cache[_SESSION] = _Session()
    loaded = load_data(subject)
    key = ("parameters", str(subject.model), str(subject.data), subject.batch)
    if key not in worker.cache:  # a sweep prepares the same again and again
        model = subject.model.build(seed=0)
        if isinstance(subject.model, PythonModel) or subject.batch == 1:  # too few for some batch normalisations
            refuse_misfit(subject.model, model, loaded, subject.batch)
        worker.cache[key] = sum(parameter.numel() for parameter in model.parameters())
        del model
    _settle(worker)
    return {
        "rank": worker.rank,
        "host": platform.node(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "niceness": os.nice(0),
        "clock": clock_name(),
        "device": worker.device,
        "data": loaded.facts(),
        "parameters": worker.cache[key],
    }


def _settle(worker: Place) -> None:
    """Take what is loaded by now out of the collector's sight, once a worker: every block begins with a collection."""
    if _SETTLED not in worker.cache:
        worker.cache[_SETTLED] = True
        gc.collect()
        gc.freeze()


def load(worker: Place, job: StackJob) -> None:
    """Make the model, engine and data of one stack, from its seed. Every rank must be called: engines make groups."""
    subject = job.subject
    torch.manual_seed(job.seed)
    model = subject.model.build(job.seed).to(worker.device)
    setup = Setup(
        optimizer_factory(subject.optimizer),
        rank=worker.rank,
        seed=job.seed,
        schedule=subject.learning_rate,
        config=job.config,
        progress=worker.progress,
    )
    groups, blocks = groups_of(worker, job.plan)
    _start_equal(worker, model)
    keep_own(model, worker.rank, blocks)
    if job.engine is None:
        engine: Engine = engine_of(job.plan)(job.plan, model, setup, groups)
    else:
        module, _, kind = job.engine.partition(":")
        make = getattr(importlib.import_module(module), kind)
        engine = make(job.plan, model, setup, groups)
    loaded = load_data(subject)
    whose = reader(worker.rank, worker.world_size, blocks)
    batches, loss_of = batches_of(worker, subject, job.seed, loaded, whose), loss_function(worker, subject, loaded)
    _session(worker).trainings[job.name, job.seed] = Training(
        job.name, subject.batch, engine, batches, loss_of, loaded, job.stop_on_nan
    )


def blocks_of(plan: Plan, rank: int) -> dict[str, Sequence[int]]:
    """Return, of every group that holds a rank, the ranks of its block; not all ranks stand on both sides of a link."""
    return {name: block for name, group in plan.groups.items() for block in group.blocks if rank in block}


def engine_of(plan: Plan) -> type[PlanEngine]:
    """Return what runs a plan where no technique brings an engine."""
    return PipelineEngine if STAGES in plan.groups else PlanEngine


def groups_of(worker: Place, plan: Plan) -> tuple[dict[str, Any], Mapping[str, Sequence[int]]]:
    """Return the process group of this rank for every group of a plan that holds it, and the ranks in it. Every rank must be
    called.
    """
    blocks = blocks_of(plan, worker.rank)
    made = {name: worker.process_group(name, ranks, threads=threads_of(name)) for name, ranks in blocks.items()}
    return made, blocks


def run_block(
    worker: Place, stack: str, seed: int, steps: int, deaths: Mapping[int, Sequence[int]] = _NO_DEATHS
) -> Block:
    """Train `steps` steps of one stack and return what this rank saw; the record is compared with the plan.

    All ranks start together. Losses and step times are those of this rank. A step's time goes from the end of the one
    before it to its own; the last one's includes the work that the plan leaves for the next step. `deaths`: the ranks
    that are to die, by the step of the training.
    """
    training = training_of(worker, stack, seed)
    engine = training.engine
    losses: list[torch.Tensor] = []
    times: list[float] = []
    mixtures = mixture_layers(engine.model)
    loads: list[dict[str, Load]] = []
    engine.record.clear()
    ready = fetched(training.batches, steps)
    gc.collect()
    gc.disable()
    # The first steps are those that warm up, and make what the optimiser keeps.
    rise = Rise(engine.device) if engine.step == 0 else None
    meet(worker)
    begin = last = last_report = time.perf_counter()
    try:
        with training.drawing():
            for number, batch in enumerate(ready):
                engine.exact = number >= steps - EXACT_PERIODS * engine.plan.period
                if worker.rank in deaths.get(engine.step, ()):
                    worker.progress.set(step=engine.step, task=None)
                    os.kill(os.getpid(), signal.SIGKILL)
                losses.append(_step(training, batch))
                loads.append({name: layer.load for name, layer in mixtures.items() if layer.load is not None})
                if number == steps - 1:
                    # Work that a plan leaves for the next step is this block's work: without it the first step would be
                    # a gift.
                    engine.flush()
                synchronise(worker)
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if training.stop_on_nan:
                    _refuse_nan(worker, losses[-1], engine.step - 1)
                if worker.rank == 0 and now - last_report >= REPORT_EVERY_S:
                    last_report = now
                    _report(worker, training, steps, number + 1, float(losses[-1]), now - begin)
    finally:
        gc.enable()
    values = tuple(float(loss) for loss in losses)
    if worker.rank == 0 and values:
        _report(worker, training, steps, steps, values[-1], time.perf_counter() - begin)
    held = None if rise is None else rise.peak_bytes(engine.model)
    return Block(values, tuple(times), tuple(engine.differences()), engine.payload_bytes(), added(loads), held)


def _step(training: Training, batch: Batch) -> torch.Tensor:
    return training.engine.train_step(lambda forward: training.loss_of(forward, batch))


def _refuse_nan(worker: Place, loss: torch.Tensor, step: int) -> None:
    value = float(loss)
    if not math.isfinite(value):
        raise RunError(
            f"the loss of rank {worker.rank} became {value} in step {step}", code="E663",
            hint="a smaller learning rate, or look at that batch; train.on_nan=go-on trains on",
        )  # fmt: skip


def evaluate(worker: Place, stack: str, seed: int) -> dict[str, float]:
    """Return loss and accuracy on held-out data: rank 0's, and nothing on the others. Finishes pending work first.

    Where experts are spread every rank must run the model, and rows travel: each judges `JUDGED` samples of its own.
    """
    training = training_of(worker, stack, seed)
    training.engine.flush()
    plan, test = training.engine.plan, training.loaded.test
    spread_out, own = shared_out(plan.groups), blocks_of(plan, worker.rank)
    if worker.rank != 0 and not spread_out:
        return {}
    if spread_out:
        test = Part(test, *reader(worker.rank, worker.world_size, own))
    objective = Objective(training.loaded.interface.answers)
    limit = JUDGED if spread_out else None
    found = objective.evaluate(training.engine.model, test, limit=limit, device=worker.device)
    if spread_out:
        values = torch.tensor(list(found.values()), dtype=torch.float64)
        worker.process_group("meet").allreduce([values]).wait()
        found = dict(zip(found, (values / worker.world_size).tolist(), strict=True))
    return found if worker.rank == 0 else {}


def timeline(worker: Place, stack: str, seed: int) -> Any:
    """Return the recorded timeline of the stack's last block on this rank, or None when no whole period is kept."""
    found = training_of(worker, stack, seed).engine.record.timeline()
    return found if len(found) else None


def fingerprint(worker: Place, stack: str, seed: int) -> str:
    """Return the SHA-256 of the stack's parameters on this rank that all ranks hold; equal on all ranks when nothing
    went wrong.
    """
    import hashlib

    training = training_of(worker, stack, seed)
    training.engine.flush()
    digest = hashlib.sha256()
    own = own_parameters(training.engine.model, training.engine.plan.groups)
    for name, parameter in sorted(training.engine.model.named_parameters()):
        if name in own:
            continue
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def forget(worker: Place, stack: str, seed: int) -> None:
    """Free a stack."""
    training = _session(worker).trainings.pop((stack, seed), None)
    if training is not None:
        training.engine.close()


def training_of(worker: Place, stack: str, seed: int) -> Training:
    """Return the training of a loaded stack; KeyError when it is not loaded."""
    return _session(worker).trainings[stack, seed]


def _session(worker: Place) -> _Session:
    session: _Session = worker.cache[_SESSION]
    return session


def load_data(subject: Subject) -> Loaded:
    """Return the subject's data, loaded once a process."""
    return subject.data.load(subject.model.interface)


def batches_of(
    worker: Place, subject: Subject, seed: int, loaded: Loaded, whose: tuple[int, int] | None = None
) -> Batches:
    """Return this rank's batches, in the order that `seed` decides; `whose`: those of which reader of how many."""
    rank, size = whose or (worker.rank, worker.world_size)
    return Batches(loaded.train, rank=rank, world_size=size, batch_per_worker=subject.batch, seed=seed)


def loss_function(worker: Place, subject: Subject, loaded: Loaded) -> Callable[[Any, Batch], torch.Tensor]:
    """Return the loss of a model on a batch, in the subject's precision."""
    objective = Objective(loaded.interface.answers)
    device = torch.device(worker.device)

    def loss_of(model: Any, batch: Batch) -> torch.Tensor:
        with _precision(subject.precision, device):
            return objective.loss(model, batch, device)

    return loss_of


def _precision(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return torch.autocast(device.type, dtype=dtype)


def meet(worker: Place) -> None:
    """Return when all ranks are here."""
    if worker.world_size > 1:
        worker.progress.set(task="meeting", waiting=True)
        worker.process_group("meet").barrier().wait()
        worker.progress.set(task=None, waiting=False)


def synchronise(worker: Place) -> None:
    """Wait for the device, where it runs behind the host."""
    if worker.device.startswith("cuda"):
        torch.cuda.synchronize(worker.device)


def _start_equal(worker: Place, model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers: a model of the user's may draw them from more than the seed."""
    if worker.world_size > 1:
        tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
        torch._C._distributed_c10d._broadcast_coalesced(worker.process_group("meet"), tensors, BROADCAST_BYTES, 0)


def _report(worker: Place, training: Training, steps: int, step: int, loss: float, seconds: float) -> None:
    samples = training.batch * training.batches.world_size * step
    speed = samples / seconds if seconds > 0 else math.nan
    worker.emit(Progressed(training.stack, step, steps, loss, speed))
