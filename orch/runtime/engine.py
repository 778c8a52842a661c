"""Run a plan in one worker: the model's own hooks drive the compute stream and launch the collectives, in plan order.

The compute stream is the thread that trains. A hook on every parameter sees its gradient, a hook before every module
that owns parameters sees its forward. Whichever hook makes the next collective of a net stream ready launches it there,
asynchronously: the process group's own worker is the stream. The engine waits only where a compute task needs a
collective's result.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from orch.errors import RunError
from orch.plan import Attend, Collective, Plan, Rows
from orch.runtime.base import Engine, Groups, Setup
from orch.runtime.chains import Chains
from orch.runtime.conformance import differences
from orch.runtime.meetings import Meetings
from orch.runtime.mixtures import Mixtures
from orch.runtime.network import Network
from orch.runtime.program import LAYER, OPERATION, Program, Send, Stage, compile_step
from orch.runtime.record import NAN, StepRecord


class PlanEngine(Engine):
    """Runs a plan on this rank: the `Executor` of its operations, and the `Engine` of the training loop.

    `groups` maps the plan's group names to process groups; a plan without collectives needs none. One backward a step.
    A gradient that never comes, one that the plan does not know, or one that comes twice is a RunError naming the
    parameter.
    """

    def __init__(self, plan: Plan, model: nn.Module, setup: Setup, groups: Groups) -> None:
        super().__init__(plan, model, setup)
        self._now = self.clock.now
        self._programs = [compile_step(plan, index, self.rank) for index in range(plan.period)]
        self._network = Network(plan, self.parameters, setup, groups, self.clock)
        self._state: dict[tuple[str, str], Any] = {}
        self._generators: dict[str, torch.Generator] = {}
        self._program: Program = self._programs[0]
        self._stages: list[Stage] = self._program.stages
        self._run = StepRecord(0, 0, 0.0, [], [], False)
        self._remaining: list[int] = []
        # How many compute tasks of the step have ended; the one at this place is running.
        self._passed = 0
        self._last = 0.0
        self._lag = 0
        self._forward_open: int | None = None
        self._active = self._carried = self._pending = False
        self._handles: list[Any] = []
        self._mixtures = Mixtures(plan, model, self.rank, groups, self)
        self._chains: Chains | None = None
        if plan.steps[0].of(Attend):
            self._chains = Chains(plan, model, self, self._mixtures.crossing, self._mixtures.dtypes)
        # Whether tasks inside layers are being walked: what modules run then, the plan knows as those tasks.
        self._crossing = False
        self._meetings = Meetings(plan, model, self.rank, groups, self)
        self._install_hooks()

    # -- the training loop -------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Start a step: launch the collectives that finish the previous one."""
        if self._active:
            raise RunError(f"step {self.step} was begun twice", code="E613", hint="finish_step() ends a step")
        self._open(flush=False)
        self._active = True
        self._network.launch(0)

    def backward(self, loss: Tensor) -> None:
        """Run the backward of `loss`; collectives start while it runs."""
        self._last = self._now()
        self._close_forward(self._last)
        loss.backward()  # type: ignore[no-untyped-call]

    def finish_step(self) -> None:
        """Run what the plan has after the last gradient; wait for collectives only where a compute task needs them."""
        if not self._active:
            raise RunError(f"step {self.step} was finished before it began", code="E613")
        with torch.no_grad():
            self._walk(len(self._stages))
        if self._passed < len(self._stages):
            raise self._missing()
        self._network.launch_rest(self._passed)
        self._run.end = self._now()
        self._active = False
        self.step += 1
        self._pending = bool(self._programs[self.step % self.plan.period].lagging)

    def flush(self) -> None:
        """Run now what the plan would do in the next step to finish this one; the next step then leaves it out."""
        if self._active:
            raise RunError(f"flush within step {self.step}", code="E613", hint="call it after finish_step()")
        if not self._pending:
            return
        self._open(flush=True)
        with torch.no_grad():
            for entry in self._program.lagging:
                if isinstance(entry, Send):
                    self._network.launch_one(entry)
                else:
                    self._operate(entry)
        self._run.end = self._now()
        self._pending = False

    def settle(self) -> None:
        """Wait until no collective is in flight, without doing any later work."""
        self._network.settle()

    def differences(self) -> list[str]:
        """Return in what the recorded steps differ from the plan; empty when they conform."""
        return differences(self.record, self.rank, modules=self.modules)

    def close(self) -> None:
        """Take the hooks off the model and let go of buffers."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._mixtures.close()
        if self._chains is not None:
            self._chains.close()
        self._meetings.close()
        self._network.close()

    def _open(self, *, flush: bool) -> None:
        place = self.step % self.plan.period
        self._program = self._programs[place]
        self._stages = self._program.stages
        self._remaining = [stage.count for stage in self._stages]
        self._passed = 0
        self._carried = self._pending
        self._forward_open = None
        self._last = self._now()
        self._run = self.record.open(self.step, self._last, carried=self._carried, flush=flush)
        self._run.exact = self.exact
        self._network.open(self, self._program, self._run, self._carried)

    # -- the compute stream ------------------------------------------------------------------------------------------------

    def _install_hooks(self) -> None:
        planned = {module for program in self._programs for module in program.forward}
        for name, module in self.model.named_modules():
            if name in planned or next(module.parameters(recurse=False), None) is not None:
                self._handles.append(module.register_forward_pre_hook(partial(self._before_forward, name)))
        for name, parameter in self.parameters.items():
            if parameter.requires_grad:
                hook = self._gradient_hook(name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def _before_forward(self, name: str, module: nn.Module, args: Any) -> None:
        if self._crossing:
            return
        if not self._active:
            if not torch.is_grad_enabled():
                self._refuse_stale()
                return
            self.begin_step()
        place = self._program.forward.get(name)
        if place is None:
            # The plan has never seen this module run: be safe and finish all that the previous step left.
            self._walk_in_forward(self._program.last_lagging)
            return
        index = self._stages[place].index
        if self._run.starts[index] is not NAN:
            return
        self._close_forward(self._now())
        # In another order than planned: everything that stands before this module is run, which is never too late.
        self._walk_in_forward(place)
        self._run.starts[index] = self._now()
        self._run.order.append(index)
        self._forward_open = index

    def _walk_in_forward(self, until: int) -> None:
        if self._program.last_lagging:
            # Autograd is recording here; what the engine does is no part of the model.
            with torch.no_grad():
                self._walk(until)
        else:
            self._walk(until)

    def _refuse_stale(self) -> None:
        if self._pending:
            raise RunError("the model is used while its last update is still to be finished", code="E614",
                           hint="call flush() on every rank before evaluating")  # fmt: skip

    def _close_forward(self, time: float) -> None:
        if self._forward_open is not None:
            self._run.ends[self._forward_open] = time
            self._forward_open = None

    def _gradient_hook(self, name: str) -> Callable[[Tensor], None]:
        places = [program.backward.get(name, -1) for program in self._programs]
        period = len(places)

        def hook(_: Tensor) -> None:
            place = places[self.step % period]
            if place < 0 or not self._active:
                raise self._unexpected(name)
            left = self._remaining[place] - 1
            self._remaining[place] = left
            if left <= 0:
                self._after_backward(place, left, name)

        return hook

    def _after_backward(self, place: int, left: int, name: str) -> None:
        """All gradients of a backward task have arrived: run and launch what this makes ready."""
        if left < 0:
            raise RunError(f"step {self.step}: the gradient of {name!r} arrived twice", code="E612",
                           hint="one backward a step; losses are summed first")  # fmt: skip
        time = self._now()
        self._close_forward(time)
        index = self._stages[place].index
        self._run.starts[index] = self._last
        self._run.ends[index] = self._last = time
        self._run.order.append(index)
        if self._walk(self._program.last_backward):
            self._last = self._now()

    def _walk(self, until: int) -> bool:
        """Move the compute stream on to place `until`, or to a backward that has not ended; return whether it did any
        work.
        """
        stages, remaining, network = self._stages, self._remaining, self._network
        passed, worked = self._passed, False
        while passed < until:
            stage = stages[passed]
            if stage.kind == OPERATION:
                self._operate(stage)
                worked = True
            elif remaining[passed] > 0:
                break
            passed += 1
            self._passed = passed
            if passed >= network.next_need:
                network.launch(passed)
                worked = True
        return worked

    @property
    def active(self) -> bool:
        """Whether a step is running."""
        return self._active

    def cross(self, name: str, *, backward: bool) -> None:
        """Walk the tasks of a mixture's crossing, of a chain of layers, or of a meeting, which hands over to this."""
        place = self._program.crossings.get((name, backward)) if self._active else None
        time = self._now()
        self._close_forward(time)
        if place is not None:
            self._walk_in_forward(place[0]) if not backward else self._walk(place[0])
        if place is None or self._passed != place[0]:
            way = "backward" if backward else "forward"
            raise RunError(
                f"rank {self.rank}, step {self.step}: mixture {name!r} was crossed {way} where the plan has no such task",
                code="E612", hint="every mixture is crossed once a step, in the order of the plan",
            )  # fmt: skip
        self._crossing = True
        try:
            self._walk_layer(place[1])
        finally:
            self._crossing = False
        if backward:
            self._walk(self._program.last_backward)
        self._last = self._now()

    def _walk_layer(self, until: int) -> None:
        stages, network = self._stages, self._network
        while self._passed < until:
            self._operate(stages[self._passed])
            self._remaining[self._passed] = 0
            self._passed += 1
            if self._passed >= network.next_need:
                network.launch(self._passed)

    def _operate(self, stage: Stage) -> None:
        task = stage.task
        if task.lag and not self._carried:
            return
        for stream, place in stage.waits:
            self._network.wait(stream, place, self._passed)
        for name in stage.waits_previous:
            self._network.wait_previous(name)
        index, run = stage.index, self._run
        run.order.append(index)
        run.starts[index] = self._now()
        self._lag = task.lag
        task.op.run(self)
        run.ends[index] = self._now()

    # -- what operations may ask (orch.plan.Executor) ----------------------------------------------------------------------

    def gradient(self, tensor: str) -> Tensor:
        """Return the gradient of parameter `tensor`, in its shape. Raises RunError before it exists."""
        gradient = self.parameters[tensor].grad
        if gradient is None:
            raise RunError(f"step {self.step}: the gradient of {tensor!r} is asked for before it exists", code="E612")
        return gradient

    def set_gradient(self, tensor: str, value: Tensor) -> None:
        """Make `value`, in any shape of the right size, the gradient that the update will use."""
        parameter = self.parameters[tensor]
        parameter.grad = value.view(parameter.shape).to(parameter.dtype)

    def segment(self, name: str) -> Tensor:
        """Return segment `name` as a flat view [numel]; KeyError names a segment that no buffer of the plan holds."""
        return self._network.segment(name, self.step % self.plan.period)

    def gathered(self, name: str) -> list[Tensor]:
        """Return segment `name` as every rank sent it, flat views [numel] in rank order."""
        return self._network.gathered(name, self.step % self.plan.period)

    def state(self, owner: str, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return the tensor kept under (owner, name); `make` creates it the first time."""
        key = (owner, name)
        kept = self._state.get(key)
        if kept is None:
            kept = self._state[key] = make()
        return kept

    def generator(self, owner: str) -> torch.Generator:
        """Return the generator of `owner`, seeded alike on every rank."""
        if owner not in self._generators:
            seed = (self.setup.seed << 32) ^ zlib.crc32(owner.encode())
            self._generators[owner] = torch.Generator(self.device).manual_seed(seed)
        return self._generators[owner]

    def collective(self, op: Collective) -> None:
        """Launch `op` on its buffer; return at once."""
        self._network.collective(op)

    def exchange(self, op: Rows) -> None:
        """Launch `op` on the rows of its layer; return at once."""
        self._network.exchange(self.layer(op.module).parcel(op))

    def layer(self, name: str) -> Any:
        """Return mixture `name` as it runs in this step, in a chain or by itself, or what ranks that share samples do there."""
        if name in self._meetings.running:
            return self._meetings.running[name]
        return self._mixtures.running(name) if self._chains is None else self._chains.at(name)

    def cells(self, name: str) -> tuple[tuple[int, int], ...] | None:
        """Return how this step cuts mixture `name`; None outside a step."""
        return self._program.cells.get(name) if self._active else None

    def update(self, tensors: tuple[str, ...]) -> None:
        """Apply the optimiser to these parameters, then drop their gradients: autograd's next ones need no zeroing."""
        self.optimizers.step(tensors, self.step - self._lag)
        for name in tensors:
            self.parameters[name].grad = None

    # -- checkpoints and errors --------------------------------------------------------------------------------------------

    def extra_state(self) -> dict[str, Any]:
        """Return what operations keep between steps, and the generators' states."""
        return {"state": dict(self._state), "generators": {name: g.get_state() for name, g in self._generators.items()}}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `extra_state` returned."""
        self._state = {key: value.clone() for key, value in state["state"].items()}
        for name, value in state["generators"].items():
            self.generator(name).set_state(value)

    def _missing(self) -> RunError:
        stage = self._stages[self._passed]
        if stage.kind == LAYER:
            return RunError(
                f"rank {self.rank}, step {self.step}: task {stage.task.name} never ran: its mixture was not used", code="E612",
                hint="the plan was made for a model in which every step uses every mixture",
            )  # fmt: skip
        missing = [name for name in stage.task.op.tensors if self.parameters[name].grad is None]
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return RunError(
            f"rank {self.rank}, step {self.step}, task {stage.task.name}: the gradient of {names} never came", code="E612",
            hint="the plan was made for a model in which every step uses these parameters",
        )  # fmt: skip

    def _unexpected(self, name: str) -> RunError:
        if not self._active:
            return RunError(
                f"the gradient of {name!r} arrived outside a step", code="E612", hint="begin_step() starts one"
            )
        return RunError(
            f"rank {self.rank}, step {self.step}: a gradient arrived for {name!r}, which the plan does not know", code="E612",
            hint="it had none when the model was observed; freeze it or use it in every step",
        )  # fmt: skip
