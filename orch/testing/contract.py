"""The contract that every technique keeps, ours or a stranger's: as checks to call, and as a pytest class to inherit.

    class TestMine(TechniqueContract):
        technique = mine.technique
        knobs = {"density": 0.1}

`prove` runs the same checks without pytest (`orch test NAME`). Plans are run by lockstep ranks in this process, in
worlds of odd sizes, over tensors of odd shapes; `processes` adds worlds of real processes, run by the runtime.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from inspect import getmodule
from typing import TYPE_CHECKING, Any, ClassVar

from orch import registry
from orch.cluster import Cluster, Device
from orch.models.profile import Profile
from orch.plan import Backward, Collective, Forward, Plan, from_json, to_json
from orch.simulate import simulate
from orch.stack import Lookup, Member, apply, arrange, is_lossless
from orch.technique import Form, Slot, Technique
from orch.testing import small
from orch.workload import data_parallel

if TYPE_CHECKING:
    from orch.testing.lockstep import Lockstep

WORLDS = (1, 2, 3, 5, 8)
STEPS = 5
HEAVY = ("torch", "ray", "mlflow", "optuna")

# A matrix, a scalar, a prime, a tensor of four dims, an empty one, and a wide matrix with its bias.
ODD_SHAPES: tuple[Any, ...] = (((5, 3), (5,)), ((1,),), ((7,), (0,)), ((2, 3, 5, 1),), ((4, 13), (4,)))
# Slow enough that every operation's cost shows, so that a cost left out or infinite is seen.
DEVICE = Device("cpu", "contract", {"fp32": 1e9, "fp16": 1e9, "bf16": 1e9}, memory_bytes_per_s=1e9)


class ContractError(AssertionError):
    """A technique breaks its contract; the message says which part, and in which world."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: `message` is empty when it holds."""

    check: str
    world_size: int | None
    message: str = ""

    @property
    def holds(self) -> bool:
        """Whether the technique kept this part of the contract."""
        return not self.message


@dataclass(frozen=True)
class Subject:
    """What is being proved: a technique with knobs, the techniques stacked with it, and where defaults are found."""

    technique: Technique
    knobs: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[Member, ...] = ()
    lookup: Lookup = registry.technique
    _runs: dict[tuple[int, int], Lockstep] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """The stack in the order of its passes."""
        beside = self.beside or _companions(self.technique)
        return arrange([small.member(self.technique, **self.knobs), *beside], self.lookup)

    def plan(self, world_size: int) -> Plan:
        """Return the finished plan over the odd shapes; checked after every pass."""
        plain = data_parallel(model(), world_size, 1, update_s=0.0)
        return apply(plain, self.members, small.context(model(), where(world_size)))[0]

    def run(self, world_size: int, steps: int = STEPS) -> Lockstep:
        """Return lockstep ranks after `steps` steps of the plan; run once, so only to be read."""
        from orch.testing.lockstep import Lockstep

        if (world_size, steps) not in self._runs:
            self._runs[world_size, steps] = Lockstep(self.plan(world_size), model()).run(steps)
        return self._runs[world_size, steps]


def model() -> Profile:
    """Return the model that contracts run: layers of odd shapes."""
    layers = len(ODD_SHAPES)
    return small.profile(ODD_SHAPES, [1e-3 * (layer + 1) for layer in range(layers)], [1e-3] * layers)


def where(world_size: int) -> Cluster:
    """Return the cluster that contracts plan for: communication about as long as backward."""
    return small.cluster(world_size, alpha_s=1e-3, beta_s_per_byte=1e-5, device=DEVICE)


# --- checks of the value itself
# -----------------------------------------------------------------------------------------


def check_facts(subject: Subject) -> None:
    """Name, source and knobs are such that pages, schemas and messages can be made of them."""
    technique = subject.technique
    _hold(
        re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", technique.name),
        f"name {technique.name!r} is not lower-case-with-dashes",
    )
    _hold(technique.source.strip(), "no source: name the paper or project it comes from")
    _hold(isinstance(technique.slot, Slot), f"slot {technique.slot!r} is no Slot")
    module = getmodule(technique.rewrite)
    _hold(module is not None and (module.__doc__ or "").strip(), "its module has no docstring to make a page of")
    for name, knob in technique.config.model_fields.items():
        _hold((knob.description or "").strip(), f"knob {name!r} has no description")
        _hold(not knob.is_required(), f"knob {name!r} has no default")
    _hold(
        technique.config.model_config.get("extra") == "forbid", "its Config accepts unknown knobs; derive it from Knobs"
    )
    _hold(technique.config.model_config.get("frozen"), "its Config can be changed; derive it from Knobs")


def check_imports(subject: Subject) -> None:
    """Importing its module loads none of torch, ray, mlflow, optuna: plans are made where these are not installed."""
    module = getmodule(subject.technique.rewrite)
    name, file = getattr(module, "__name__", "?"), getattr(module, "__file__", None)
    loaded, error = _loaded_by(name, file)
    _hold(not error, f"importing {name} fails: {error}")
    _hold(not loaded, f"importing {name} loads {', '.join(loaded)}; import it inside `run`, in a _kernels module")


@lru_cache
def _loaded_by(name: str, file: str | None) -> tuple[tuple[str, ...], str]:
    """Return which heavy packages a fresh interpreter has loaded after importing a module, or its last line of
    error.
    """
    # A module outside the path (a test's own) is loaded from its file.
    code = (
        "import importlib, importlib.util as u, sys\n"
        f"sys.path[:] = {sys.path!r}\n"
        f"try: importlib.import_module({name!r})\n"
        f"except ImportError:\n"
        f"    s = u.spec_from_file_location('alone', {file!r}); s.loader.exec_module(u.module_from_spec(s))\n"
        f"print(*[n for n in {HEAVY!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    error = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]
    return tuple(done.stdout.split()), error


# --- checks of its plans
# ------------------------------------------------------------------------------------------------


def check_plan(subject: Subject, world_size: int) -> None:
    """The plan keeps the specification, the model's own work and every gradient; making it twice gives the same
    plan.
    """
    plan = subject.plan(world_size)
    _hold(
        plan == subject.plan(world_size), "two rewrites of one plan differ; planning must not depend on chance or time"
    )
    plain = data_parallel(model(), world_size, 1, update_s=0.0)
    for index, step in enumerate(plan.steps):
        for kind in (Forward, Backward):
            kept, own = ([task.op for task in s.of(kind)] for s in (step, plain.steps[0]))
            _hold(kept == own, f"step {index}: the model's {kind.kind} tasks were changed, dropped or reordered")
        sent = {tensor for task in step.of(Collective) for tensor in task.op.tensors}
        wanted = {t.name for t in model().tensors if t.numel} if world_size > 1 else set()
        _hold(wanted <= sent, f"step {index}: nothing sends {', '.join(sorted(wanted - sent)[:3])}")
        _hold(world_size > 1 or not sent, f"step {index}: one worker sends something")


def check_json(subject: Subject, world_size: int) -> None:
    """The plan survives JSON: operations are frozen data of plain values, importable by name."""
    plan = subject.plan(world_size)
    again = from_json(json.loads(json.dumps(to_json(plan), allow_nan=False)))
    _hold(again == plan, "the plan read back from its own JSON is another one; hold only plain values and tuples")


def check_costs(subject: Subject, world_size: int) -> None:
    """Every operation says what it costs; no plan is faster than itself with communication free."""
    plan, cluster = subject.plan(world_size), where(world_size)
    for step in plan.steps:
        for task in step:
            seconds = float(task.op.cost_s(cluster, cluster.world))
            _hold(math.isfinite(seconds) and seconds >= 0, f"task {task.name} costs {seconds} s")
            _hold(task.op.nbytes >= 0 and task.op.state_bytes >= 0, f"task {task.name} has negative bytes")
    time, free = (simulate(plan, some).step_time_s for some in (cluster, cluster.communication_free()))
    _hold(time >= free * (1 - 1e-9), f"a step takes {time} s, and {free} s with communication free")


# --- checks of what it computes
# -----------------------------------------------------------------------------------------


def check_ranks_agree(subject: Subject, world_size: int) -> None:
    """After some steps all ranks hold equal bits, and none of them is NaN (padding and unsent shards are NaN here)."""
    ranks = subject.run(world_size).ranks
    for name, value in ranks[0].parameters.items():
        _hold(bool(value.isfinite().all()), f"parameter {name} is not finite")
        for rank in ranks[1:]:
            _hold(
                bool((rank.parameters[name] == value).all()),
                f"parameter {name} differs between ranks 0 and {rank.rank}",
            )


def check_exactness(subject: Subject, world_size: int) -> None:
    """A lossless stack ends where plain S-SGD ends; a lossy one with feedback has lost nothing, only delayed it."""
    ranks = subject.run(world_size)
    if is_lossless(subject.members):
        for name, value in _plain_run(world_size).ranks[0].parameters.items():
            gap = _largest(ranks.ranks[0].parameters[name] - value)
            _hold(
                gap <= 1e-5, f"parameter {name} is {gap:.3g} away from plain S-SGD, and the stack claims to be lossless"
            )
        return
    if not _feeds_back(subject):
        return
    for name, produced in ranks.gradients.items():
        accounted = ranks.ranks[0].applied[name] * world_size
        for residual in ranks.residuals(name):
            accounted = accounted + residual
        gap = _largest(accounted - produced) / max(1.0, _largest(produced))
        _hold(
            gap <= 1e-4, f"gradient of {name}: applied times ranks plus residuals is {gap:.3g} away from all gradients"
        )


def check_resume(subject: Subject, world_size: int) -> None:
    """Stopping after a step and going on from a checkpoint gives the bits of a run that never stopped."""
    from orch.testing.lockstep import Lockstep

    whole = subject.run(world_size, STEPS)
    first = subject.run(world_size, 2)
    second = Lockstep(subject.plan(world_size), model()).resume(first.snapshot()).run(STEPS - 2)
    for name, value in whole.ranks[0].parameters.items():
        same = bool((second.ranks[0].parameters[name] == value).all())
        _hold(same, f"parameter {name} differs after a resume; keep what lasts in executor.state or executor.generator")


def check_processes(subject: Subject, world_size: int) -> None:
    """In real processes every rank follows the plan, and ends where the plan's own arithmetic ends; resumes as well."""
    from orch.testing import real

    job = real.job_of(subject.plan(world_size), model(), subject.members, STEPS)
    with real.make_gang("processes", world_size) as gang:
        real.check_real(gang, job, is_lossless(subject.members))


ONCE: tuple[Callable[[Subject], None], ...] = (check_facts, check_imports)
EACH_WORLD: tuple[Callable[[Subject, int], None], ...] = (
    check_plan,
    check_json,
    check_costs,
    check_ranks_agree,
    check_exactness,
    check_resume,
)


def prove(
    technique: Technique,
    knobs: Mapping[str, Any] | None = None,
    worlds: Sequence[int] = WORLDS,
    beside: Iterable[Member] = (),
    processes: Sequence[int] = (),
) -> list[Finding]:
    """Return the finding of every check of `technique`, alone or `beside` others; never raises for a broken technique.

    `worlds` are those of lockstep ranks, `processes` those of real ones, which take seconds to start.
    """
    subject = Subject(technique, knobs or {}, tuple(beside))
    findings = [_found(check.__name__, None, partial(check, subject)) for check in ONCE]
    for check in EACH_WORLD:
        findings += [_found(check.__name__, world, partial(check, subject, world)) for world in worlds]
    return findings + [
        _found("check_processes", world, partial(check_processes, subject, world)) for world in processes
    ]


class TechniqueContract:
    """Inherit in a class called Test..., set `technique` (and `knobs`, `beside`, `worlds`), and pytest runs every
    check.
    """

    technique: ClassVar[Technique]
    knobs: ClassVar[Mapping[str, Any]] = {}
    beside: ClassVar[tuple[Member, ...]] = ()
    worlds: ClassVar[Sequence[int]] = WORLDS
    processes: ClassVar[Sequence[int]] = ()

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Let pytest run each check once, or once a world."""
        cls = type(self)
        if "contract_check" in metafunc.fixturenames:
            metafunc.parametrize("contract_check", ONCE, ids=lambda check: check.__name__)
        if "contract_world" in metafunc.fixturenames:
            cases = [(check, world) for check in EACH_WORLD for world in cls.worlds]
            cases += [(check_processes, world) for world in cls.processes]
            ids = [f"{check.__name__}-{world}" for check, world in cases]
            metafunc.parametrize(("contract_each", "contract_world"), cases, ids=ids)

    def test_value(self, contract_check: Callable[[Subject], None]) -> None:
        """Check the value itself; raises ContractError."""
        contract_check(self._subject())

    def test_world(self, contract_each: Callable[[Subject, int], None], contract_world: int) -> None:
        """Check plans and results in one world; raises ContractError."""
        contract_each(self._subject(), contract_world)

    def _subject(self) -> Subject:
        cls = type(self)
        key = f"_subject of {cls.__qualname__}"
        if key not in cls.__dict__:
            setattr(cls, key, Subject(cls.technique, cls.knobs, cls.beside))
        subject: Subject = getattr(cls, key)
        return subject


@lru_cache
def _plain_run(world_size: int) -> Lockstep:
    """Return the run of plain S-SGD: the workload's own plan, which no technique has touched."""
    from orch.testing.lockstep import Lockstep

    return Lockstep(data_parallel(model(), world_size, 1, update_s=0.0), model()).run(STEPS)


def _hold(truth: object, message: str) -> None:
    if not truth:
        raise ContractError(message)


def _found(name: str, world_size: int | None, check: Callable[[], None]) -> Finding:
    label = name.removeprefix("check_").replace("_", " ")
    try:
        check()
    except Exception as error:  # noqa: BLE001 - a broken technique may raise anything, and that is the finding
        return Finding(label, world_size, str(error) or type(error).__name__)
    return Finding(label, world_size)


def _feeds_back(subject: Subject) -> bool:
    """Whether some pass of the feedback slot does anything."""
    plain = data_parallel(model(), 2, 1, update_s=0.0)
    _, reports = apply(plain, subject.members, small.context(model(), where(2)))
    feedback = {member.name for member in subject.members if member.technique.slot is Slot.FEEDBACK}
    return any(report.changed for report in reports if report.technique in feedback)


def _companions(technique: Technique) -> tuple[Member, ...]:
    """Return a compressor for a technique that works on no dense gradient; nothing for others."""
    if Form.DENSE in technique.needs:
        return ()
    for name in sorted(registry.techniques()):
        other = registry.technique(name)
        if other.slot is Slot.COMPRESSOR and other.gives in technique.needs:
            return (small.member(other),)
    return ()


def _largest(value: Any) -> float:
    return float(value.abs().max()) if value.numel() else 0.0
