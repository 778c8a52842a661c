"""torch's DistributedDataParallel behind the runtime's engine interface: the baseline is torch's code, not ours.

No hook of ours runs inside its step, so nothing of ours slows it; what it did is read from its own log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from orch.errors import RunError
from orch.plan import AllReduce, Backward, Forward, Plan, Update
from orch.runtime.base import Engine, Groups, Setup
from orch.runtime.record import StepRecord

HOOKS = {
    "fp16": default_hooks.fp16_compress_hook,
    # torch's own as well: by its own name DDP refuses it on gloo, which reduces bf16 all the same, and a function of ours
    # would have to be annotated with torch's types, which postponed annotations are not.
    "bf16": lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket),  # noqa: PLW0108
}

# DDP rebuilds its buckets, in the order in which gradients became ready, when its second step begins; its log, written
# just before that, tells of it when the third begins.
REBUILT_AFTER = 3


class DdpEngine(Engine):
    """Trains with DDP. `setup.config` is the technique's Config; `groups["world"]` the process group.

    A step's record holds the update and the ends of forward and backward; its buckets are compared with the plan's by
    `differences`. Buffers (batch norm's) are not broadcast in every step, because no other engine does it: they are
    those of rank 0 where it matters, in evaluation.
    """

    def __init__(self, plan: Plan, model: nn.Module, setup: Setup, groups: Groups) -> None:
        super().__init__(plan, model, setup)
        if "world" not in groups:
            raise RunError("torch's DDP needs a process group also for one worker", code="E615")
        config = setup.config
        planned = {tensor for task in plan.steps[0].of(Backward) for tensor in task.op.tensors}
        # A parameter that no step uses would make DDP look for unused ones in every step, and keep its first buckets.
        unused = [name for name in self.parameters if name not in planned]
        _Wrapped._set_params_and_buffers_to_ignore_for_model(model, unused)  # type: ignore[no-untyped-call]
        self.module = self._ddp = _Wrapped(
            model,
            caps=(int(config.first_bucket), int(config.bucket_cap)),
            process_group=groups["world"],
            forward_sync_buffers=False,
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            static_graph=config.static_graph,
        )
        if config.hook != "none":
            self._ddp.register_comm_hook(groups["world"], HOOKS[config.hook])
        self._names = [
            name for name, parameter in self.parameters.items() if parameter.requires_grad and name in planned
        ]
        self._updates = [
            (index, task.op.tensors) for index, task in enumerate(plan.steps[0]) if isinstance(task.op, Update)
        ]
        self._forward, self._backward = _outer(plan, Forward), _outer(plan, Backward)
        self._run = StepRecord(0, 0, 0.0, [], [], False)

    def begin_step(self) -> None:
        """Start the record of a step."""
        begin = self.clock.now()
        self._run = self.record.open(self.step, begin, carried=False)
        if self._forward:
            self._run.starts[self._forward[0]] = begin

    def backward(self, loss: Tensor) -> None:
        """Run the backward of `loss`; DDP reduces in it."""
        run = self._run
        begin = self.clock.now()
        self.setup.progress.set(self.step, "backward", True)
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"rank {self.rank}, step {self.step}, DDP's backward: {reason}", code="E617") from error
        self.setup.progress.set(self.step, "backward", False)
        if self._forward:
            run.ends[self._forward[-1]] = begin
        if self._backward:
            run.starts[self._backward[0]] = begin
            run.ends[self._backward[-1]] = self.clock.now()

    def finish_step(self) -> None:
        """Apply the optimiser, and drop the gradients as a training loop of torch's tutorials does."""
        run = self._run
        for index, tensors in self._updates:
            run.starts[index] = self.clock.now()
            self.optimizers.step(tensors, self.step)
            run.ends[index] = self.clock.now()
            run.order.append(index)
        for parameter in self.parameters.values():
            parameter.grad = None
        run.end = self.clock.now()
        self.step += 1

    def flush(self) -> None:
        """Do nothing: DDP leaves no work to a later step."""

    def settle(self) -> None:
        """Do nothing: DDP has waited for its collectives."""

    def close(self) -> None:
        """Let go of DDP's buckets."""
        self.module = self.model
        del self._ddp

    def buckets(self) -> list[tuple[tuple[str, ...], int]]:
        """Return DDP's own buckets, in its order: their parameters, and bytes. Empty before it has rebuilt them."""
        log = self._ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        sizes = [int(size) for size in str(log.get("rebuilt_bucket_sizes", "")).split(",") if size.strip()]
        members = [part for part in str(log.get("rebuilt_per_bucket_param_indices", "")).split(",") if part.strip()]
        return [
            (tuple(self._names[int(index)] for index in part.split()), size)
            for part, size in zip(members, sizes, strict=True)
        ]

    def payload_bytes(self) -> float:
        """Return the bytes of DDP's own buckets, in the dtype that its hook sends; the plan's before they are final."""
        planned = [task.op for task in self.plan.steps[0].of(AllReduce)]
        own = sum(nbytes for _, nbytes in self.buckets())
        full = sum(self.parameters[name].nbytes for op in planned for name in op.tensors)
        sent = sum(op.nbytes for op in planned)
        return float(sent if not own else own * sent / max(1, full))

    def differences(self) -> list[str]:
        """Return in what DDP's own buckets differ from the plan's; empty where they agree, and before they are final."""
        if self.step < REBUILT_AFTER or self.plan.world_size == 1:
            return []
        planned = [task.op for task in self.plan.steps[0].of(AllReduce)]
        own = self.buckets()
        if len(own) != len(planned):
            return [f"DDP made {len(own)} buckets; the plan says {len(planned)}"]
        found = []
        for number, (op, (tensors, nbytes)) in enumerate(zip(planned, own, strict=True)):
            if sorted(tensors) != sorted(op.tensors):
                odd = sorted(set(tensors) ^ set(op.tensors))[0]
                found.append(f"DDP's bucket {number} and the plan's differ in {odd!r}")
            numel = sum(self.parameters[name].numel() * self.parameters[name].element_size() for name in tensors)
            if numel != nbytes:
                found.append(f"DDP's bucket {number} has {nbytes} bytes; its parameters have {numel}")
        return found


class _Wrapped(DistributedDataParallel):
    """DDP with caps in bytes: its constructor takes whole MiB only, and a first bucket of its own only by default."""

    def __init__(self, model: nn.Module, *, caps: tuple[int, int], **arguments: Any) -> None:
        self._caps = caps
        super().__init__(model, **arguments)

    def _ddp_init_helper(self, *arguments: Any, **named: Any) -> None:
        first, cap = self._caps
        config = replace(self._bucket_config, first_bucket_bytes_cap=first, bucket_bytes_cap=cap)
        self._bucket_config, self.bucket_bytes_cap = config, cap
        super()._ddp_init_helper(*arguments, **named)  # type: ignore[no-untyped-call]


def _outer(plan: Plan, kind: type[Forward | Backward]) -> list[int]:
    numbers = [index for index, task in enumerate(plan.steps[0]) if isinstance(task.op, kind)]
    return [numbers[0], numbers[-1]] if numbers else []
