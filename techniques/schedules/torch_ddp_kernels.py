"""torch's DistributedDataParallel behind the runtime's engine interface: the baseline is torch's code, not ours.

No hook of ours runs inside its step, so nothing of ours slows it; what it did is read from its own log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from orch.errors import RunError
from orch.plan import AllReduce, Backward, Forward, Operation, Plan, Update
from orch.runtime.base import Engine, Groups, Setup
from orch.runtime.record import StepRecord
from techniques.schedules.torch_ddp import MIN_COMPRESSION_RATE, START_STEP

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
        self._low_rank: PowerSgd | None = None
        if config.hook == "power-sgd":
            self._low_rank = PowerSgd(groups["world"], config.rank, self.parameters)
            self._ddp.register_comm_hook(self._low_rank, lambda own, bucket: own.reduce(bucket))
        elif config.hook != "none":
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

    def extra_state(self) -> dict[str, Any]:
        """Return what hook power-sgd keeps between steps."""
        return {} if self._low_rank is None else self._low_rank.state_dict()

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `extra_state` returned."""
        if self._low_rank is not None:
            self._low_rank.load_state_dict(state)

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
        if self._low_rank is not None:
            return float(self._low_rank.sent_bytes() or sum(op.nbytes for op in planned))
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
        if self._low_rank is not None:
            return self._low_rank.differences(planned, own)
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


class PowerSgd:
    """torch's powerSGD_hook with what a checkpoint needs: its state by parameter, not by place in a bucket.

    The hook keeps the error, P and Q of a bucket as flat tensors in the order of its parameters, and DDP rebuilds its
    buckets after a training's first step: also one that goes on from a checkpoint. `parameters`: the model's, by name.
    """

    def __init__(self, group: Any, rank: int, parameters: Mapping[str, Tensor]) -> None:
        self.state = PowerSGDState(
            group,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=START_STEP,
            min_compression_rate=MIN_COMPRESSION_RATE,
        )
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._counts_from = START_STEP
        self._laid: dict[int, tuple[str, ...]] = {}
        self._source: dict[str, dict[str, Tensor]] = {}
        self._restored: dict[str, dict[str, Tensor]] = {}

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Do what DDP asks of a hook: start the reduction of a bucket."""
        index, names = bucket.index(), tuple(self._names[parameter] for parameter in bucket.parameters())
        if index == 0:  # a step's first
            self._source, self._restored = self._restored, {}
        if self._laid.get(index, names) != names:
            self._source = self._kept()
            self._laid.clear()
            for memory in self._memories().values():
                memory.clear()
        self._laid[index] = names
        if self._source:
            self._lay(index, list(zip(names, bucket.parameters(), strict=True)))
        return powerSGD_hook(self.state, bucket)

    def sent_bytes(self) -> float:
        """Return the bytes of a step, as the hook itself counts them; 0 while it sends gradients whole."""
        steps = self.state.iter - self._counts_from
        return 4.0 * self.state.total_numel_after_compression / steps if steps > 0 else 0.0

    def differences(self, planned: Sequence[Operation], own: Sequence[tuple[tuple[str, ...], int]]) -> list[str]:
        """Return in what the hook's bytes and DDP's buckets `own` differ from the planned all-reduces."""
        found = []
        tensors = {tensor for op in planned for tensor in op.tensors}
        if odd := sorted(tensors ^ {tensor for bucket, _ in own for tensor in bucket}):
            found.append(f"DDP's buckets and the plan's differ in {odd[0]!r}")
        sent, told = self.sent_bytes(), sum(op.nbytes for op in planned)
        if sent and round(sent) != told:
            found.append(f"torch's powerSGD_hook sends {round(sent)} bytes a step; the plan says {told}")
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return error, P and Q by parameter, and the step."""
        return {"iter": self.state.iter, **self._kept()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, once a bucket is there to hold it."""
        self.state.iter = state["iter"]
        self._counts_from = max(START_STEP, self.state.iter)
        self._restored = {key: state[key] for key in self._memories()}

    def _memories(self) -> dict[str, dict[int, Tensor]]:
        return {"error": self.state.error_dict, "p": self.state.p_memory_dict, "q": self.state.q_memory_dict}

    def _kept(self) -> dict[str, dict[str, Tensor]]:
        parameters = {name: parameter for parameter, name in self._names.items()}
        found: dict[str, dict[str, Tensor]] = {}
        for key, memory in self._memories().items():
            found[key] = {}
            for index, flat in memory.items():
                members = [(name, parameters[name]) for name in self._laid[index]]
                order = self._order(key, members)
                sizes = [self._numel(key, parameters[name]) for name in order]
                found[key].update(zip(order, torch.split(flat, sizes), strict=True))
        return found

    def _lay(self, index: int, members: Sequence[tuple[str, Tensor]]) -> None:
        """Fill the flat tensors of a bucket from what is kept by parameter, if anything is."""
        for key, memory in self._memories().items():
            order, by_name = self._order(key, members), self._source[key]
            if by_name:
                memory[index] = torch.cat([by_name[name] for name in order]) if order else torch.empty(0)

    def _order(self, key: str, members: Sequence[tuple[str, Tensor]]) -> list[str]:
        return [name for name, _ in members] if key == "error" else self._matrices(members)

    def _matrices(self, members: Sequence[tuple[str, Tensor]]) -> list[str]:
        """Return the parameters that are compressed, in the order of the hook's memory: equal shapes together."""
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name, parameter in members:
            n, m, r = self._shape(parameter)
            if (n + m) * r * MIN_COMPRESSION_RATE < n * m:
                by_shape.setdefault((n, m), []).append(name)
        return [name for names in by_shape.values() for name in names]

    def _numel(self, key: str, parameter: Tensor) -> int:
        n, m, r = self._shape(parameter)
        return parameter.numel() if key == "error" else n * r if key == "p" else m * r

    def _shape(self, parameter: Tensor) -> tuple[int, int, int]:
        n = parameter.shape[0] if parameter.dim() else 1
        m = parameter.numel() // max(1, n)
        return n, m, min(n, m, self.state.matrix_approximation_rank)


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
