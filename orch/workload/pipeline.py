"""Training of a model in stages: neighbouring ranks hold one each, and micro-batches follow one another through them.

The plain plan is GPipe's: every micro-batch forward, stage after stage, then every one back. Where several pipelines stand side by
side (replicas), the ranks that hold the same stage send its gradients once its last micro-batch has gone back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from orch.errors import OrchError
from orch.models.profile import Module, Profile
from orch.plan import COMPUTE, NET, Plan, Step, Task, Update
from orch.plan.stages import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    PIPELINE,
    Enter,
    HandOver,
    StageBackward,
    StageForward,
    TakeLoss,
)
from orch.workload.data_parallel import BACKWARD_BYTES_PER_ELEMENT, FORWARD_BYTES_PER_ELEMENT, gradient_send
from orch.workload.layout import PEERS, STAGES, Cut, Layout, link_of

# A backward pass is two products for each of forward.
PASSES = 3


def cuts_of(profile: Profile, parts: Sequence[Sequence[str]], stages: int) -> tuple[Cut, ...]:
    """Return the stages of a model: runs of its `parts` (each the modules it begins with), the longest as short as can be.

    Raises OrchError (E412) where there are fewer parts than stages, or two stages would share a parameter.
    """
    if stages > len(parts):
        raise OrchError(
            f"model {profile.name} has {len(parts)} parts, which make no {stages} stages", code="E412",
            hint=f"parallel.pipeline={len(parts)} at most",
        )  # fmt: skip
    modules = [[module for module in profile.modules if _in(module.name, names)] for names in parts]
    work = [PASSES * sum(module.flops for module in part) for part in modules]
    ends = _balanced(work, stages)
    cuts = []
    for first, last in zip((0, *ends), ends, strict=False):
        own = [module for part in modules[first:last] for module in part]
        names = frozenset(module.name for module in own)
        shared = next((t.name for t in profile.tensors if names & set(t.modules) and not names >= set(t.modules)), None)
        if shared is not None:
            raise OrchError(f"two stages would share parameter {shared} of model {profile.name}", code="E412",
                            hint="parallel.pipeline=1")  # fmt: skip
        cuts.append(Cut(first, last, tuple(module.name for module in own), round(own[-1].activation_elements)))
    return tuple(cuts)


def stage_of(profile: Profile, cut: Cut) -> Profile:
    """Return what the holder of one stage has of the model."""
    names = set(cut.modules)
    tensors = tuple(tensor for tensor in profile.tensors if tensor.modules[0] in names)
    held = {tensor.name for tensor in tensors}
    return replace(
        profile,
        modules=tuple(module for module in profile.modules if module.name in names),
        tensors=tensors,
        ready_order=tuple(name for name in profile.ready_order if name in held),
    )


def _in(module: str, names: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _balanced(work: Sequence[float], runs: int) -> list[int]:
    """Return the ends of `runs` runs of which the longest is as short as can be; the earlier ones no longer than they must."""
    sums = [0.0, *accumulate(work)]
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for number in range(1, runs + 1):
        found: dict[int, tuple[float, list[int]]] = {}
        for end in range(number, len(work) - (runs - number) + 1):
            found[end] = min(
                (max(longest, sums[end] - sums[begin]), [*ends, end])
                for begin, (longest, ends) in best.items()
                if begin < end
            )
        best = found
    return best[len(work)][1]


@dataclass(frozen=True)
class _Drawing:
    """What the tasks of one plan have in common."""

    profile: Profile
    layout: Layout
    batch: int
    precision: str

    def modules(self, stage: int) -> list[Module]:
        names = set(self.layout.cuts[stage].modules)
        return [module for module in self.profile.modules if module.name in names]

    def tensors(self, stage: int) -> tuple[str, ...]:
        """Return the parameters of a stage, in the order in which their gradients come."""
        names = set(self.layout.cuts[stage].modules)
        return tuple(name for name in self.profile.ready_order if self.profile.tensor(name).modules[0] in names)

    def forward(self, stage: int, number: int) -> Task:
        cut, modules, micro = self.layout.cuts[stage], self.modules(stage), self.layout.micro_batches
        measured = [module.forward_s for module in modules if module.forward_s is not None]
        op = StageForward(
            PIPELINE,
            sum(module.flops for module in modules) * self.batch,
            FORWARD_BYTES_PER_ELEMENT * sum(module.activation_elements for module in modules) * self.batch,
            self.precision,
            sum(measured) if len(measured) == len(modules) else None,
            cut.first, cut.last, number, micro, len(modules),
        )  # fmt: skip
        after = (f"{ACTIVATIONS}.{stage - 1}.m{number}",) if stage else ()
        return Task(f"forward.{stage}.m{number}", op, COMPUTE, after, role=role_of(stage))

    def backward(self, stage: int, number: int) -> Task:
        modules, micro = self.modules(stage), self.layout.micro_batches
        measured = [module.backward_s for module in modules if module.backward_s is not None]
        op = StageBackward(
            PIPELINE,
            sum(module.backward_flops for module in modules) * self.batch,
            BACKWARD_BYTES_PER_ELEMENT * sum(module.activation_elements for module in modules) * self.batch,
            self.precision,
            sum(measured) if len(measured) == len(modules) else None,
            self.tensors(stage) if number == micro - 1 else (),
            number, micro, 2 * len(modules),
        )  # fmt: skip
        last = stage == len(self.layout.cuts) - 1
        after = (f"forward.{stage}.m{micro - 1}",) if last else (f"{GRADIENTS}.{stage}.m{number}",)
        return Task(f"backward.{stage}.m{number}", op, COMPUTE, after, role=role_of(stage))

    def hand_over(self, part: str, link: int, number: int) -> Task:
        """Return what goes over the link behind stage `link`, one way or the other."""
        out = part == ACTIVATIONS
        numel = self.layout.cuts[link].elements * self.batch // self.layout.micro_batches
        name = f"{part}.{link}.m{number}"
        after = (f"forward.{link}.m{number}", f"enter.{link + 1}") if out else (f"backward.{link + 1}.m{number}",)
        op = HandOver(HandOver.buffer_of(name, numel, self.precision), part, number, link, 0 if out else 1)
        # A rank has two links, one on each side, and each goes its own way.
        return Task(name, op, f"net.link{link % 2}", after, role=link_of(link), group=link_of(link))


def role_of(stage: int) -> str:
    """Return the role of the ranks that hold a stage."""
    return f"stage{stage}"


def pipeline_training(
    profile: Profile,
    layout: Layout,
    batch: int,
    *,
    precision: str = "fp32",
    gradient_dtype: str = "fp32",
    update_s: float | None = None,
) -> Plan:
    """Return the plain plan of one step of `profile` in the layout's stages with `batch` samples a pipeline, in its
    micro-batches; see `data_parallel` for the rest.
    """
    drawing = _Drawing(profile, layout, batch, precision)
    stages, micro = len(layout.cuts), range(layout.micro_batches)
    tasks = [Task(f"enter.{k}", Enter(PIPELINE, 0.0, 0.0), COMPUTE, role=role_of(k)) for k in range(1, stages)]
    for number in micro:
        for stage in range(stages):
            tasks.append(drawing.forward(stage, number))
            if stage < stages - 1:
                tasks.append(drawing.hand_over(ACTIVATIONS, stage, number))
    for number in micro:
        for stage in reversed(range(stages)):
            tasks.append(drawing.backward(stage, number))
            if stage:
                tasks.append(drawing.hand_over(GRADIENTS, stage - 1, number))
    tasks += _ends(drawing, gradient_dtype, update_s)
    names = [*map(role_of, range(stages)), *map(link_of, range(stages - 1))]
    roles = dict(zip(names, _roles(layout), strict=True))
    return Plan(
        profile.name,
        layout.world_size,
        (Step(tuple(tasks)),),
        {"all": range(layout.world_size), **roles},
        layout.groups(),
    )


def _ends(drawing: _Drawing, gradient_dtype: str, update_s: float | None) -> Iterator[Task]:
    """Yield what follows backward: gradients of replicas, the loss told to all, and the updates, stage by stage."""
    layout, profile = drawing.layout, drawing.profile
    stages, last = len(layout.cuts), layout.micro_batches - 1
    whole = Update(
        profile.ready_order, sum(profile.tensor(name).numel for name in profile.ready_order), seconds=update_s
    )
    loss = HandOver(HandOver.buffer_of(LOSS, 1, "fp32"), LOSS, 0, 0, stages - 1)
    yield Task(LOSS, loss, NET, (f"backward.{stages - 1}.m{last}",), group=STAGES)
    for stage in reversed(range(stages)):
        names = drawing.tensors(stage)
        sends: list[Task] = []
        if layout.readers > 1:
            for name in names:
                send = gradient_send(name, profile.tensor(name).numel, f"backward.{stage}.m{last}", gradient_dtype)
                sends.append(Task(send.name, send.op, NET, send.after, role=role_of(stage), group=PEERS))
        yield from sends
        if names:
            own = whole.of(names, sum(profile.tensor(name).numel for name in names))
            after = tuple(send.name for send in sends)
            yield Task(f"update.{stage}", own, COMPUTE, after, role=role_of(stage))
    yield Task("take_loss", TakeLoss(PIPELINE, 0.0, 0.0), COMPUTE, (LOSS,))


def _roles(layout: Layout) -> list[tuple[int, ...]]:
    """Return the ranks of each stage, and of both sides of each link."""
    stages = len(layout.cuts)
    of_stage = [tuple(range(stage, layout.world_size, stages)) for stage in range(stages)]
    return [*of_stage, *(tuple(sorted((*a, *b))) for a, b in pairwise(of_stage))]
