"""The net streams of one rank: buffers, process groups, and the collectives in flight.

Collectives are launched in plan order, the same on every rank, each when its predecessors have ended. The process
group's own worker is the stream: it takes them in this order. On CPU it has `GLOO_THREADS` threads, as torch's own
engine has, so that the start-up of a small collective hides behind the one before it. Neighbours on a stream that use
different groups follow each other strictly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from orch.errors import RunError
from orch.plan import AllGather, AllGatherShards, AllReduce, Collective, Plan, ReduceScatter
from orch.runtime import collectives
from orch.runtime.base import Groups, Setup, backend_of
from orch.runtime.buffers import FlatBuffer
from orch.runtime.clock import Clock
from orch.runtime.legs import Parcel
from orch.runtime.program import Program, Send
from orch.runtime.record import NAN, StepRecord

if TYPE_CHECKING:
    from orch.plan import Executor

NEVER = 1 << 60
HANDS_BACK = (AllReduce, AllGatherShards)


class _Stream:
    """One net stream of the running step: what was launched, how much was seen to end, and how much was waited for."""

    __slots__ = ("ended", "ends", "seen", "sends", "works")

    def __init__(self, sends: list[Send], ends: list[float]) -> None:
        self.sends = sends
        self.ends = ends
        self.works: list[Any] = []
        self.seen = self.ended = 0


class Network:
    """Buffers, groups and works in flight. `next_need` is the number of ended compute tasks that makes something
    launchable.
    """

    def __init__(
        self, plan: Plan, parameters: Mapping[str, nn.Parameter], setup: Setup, groups: Groups, clock: Clock
    ) -> None:
        self._setup = setup
        self._now = clock.now
        device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
        self._backends: dict[str, Any] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._buffers: dict[str, FlatBuffer] = {}
        self._owners: list[dict[str, FlatBuffer]] = []
        for step in plan.steps:
            owners: dict[str, FlatBuffer] = {}
            for task in step:
                if isinstance(task.op, Collective) and setup.rank in plan.roles[task.role]:
                    self._join(plan, task.group, groups, device)
                    if task.op.in_layer:
                        continue  # rows are the layer's own
                    buffer = self._buffer(task.op, self._ranks[task.group], parameters, device)
                    owners.update((segment.name, buffer) for segment in task.op.buffer.segments)
            self._owners.append(owners)
        self.next_need = NEVER
        self._executor: Executor
        self._streams: list[_Stream] = []
        # Of the step before, where its last collectives are still under way.
        self._older: list[_Stream] = []
        self._marks: dict[str, tuple[str, Any]] = {}
        self._unread: list[list[Send]] = []
        self._tails: dict[str, tuple[str, Any]] = {}
        # NCCL runs what one group is given on one stream, so what was launched there before needs no waiting for.
        self._ordered = device.type == "cuda"
        self._run: StepRecord
        self._carried = False
        self._sending: Send
        self._target: list[Any] = []

    def _join(self, plan: Plan, name: str, groups: Groups, device: torch.device) -> None:
        if name in self._backends:
            return
        if name not in groups:
            raise RunError(f"the plan sends in group {name!r}, for which there is no process group", code="E615")
        self._ranks[name] = tuple(plan.groups[name].block_of(self._setup.rank))
        size = groups[name].size()
        if size != len(self._ranks[name]):
            raise RunError(
                f"group {name!r} has {len(self._ranks[name])} ranks in the plan and {size} in its process group",
                code="E615",
            )
        self._backends[name] = backend_of(groups[name], device)

    def _buffer(
        self, op: Collective, ranks: tuple[int, ...], parameters: Mapping[str, Tensor], device: torch.device
    ) -> FlatBuffer:
        name = op.buffer.name
        if name not in self._buffers:
            self._buffers[name] = FlatBuffer(op.buffer, parameters, ranks.index(self._setup.rank), len(ranks), device)
        buffer = self._buffers[name]
        if buffer.layout != op.buffer:
            raise RunError(f"buffer {name!r} has two layouts in one plan", code="E623")
        return buffer

    def open(self, executor: Executor, program: Program, run: StepRecord, carried: bool) -> None:
        """Begin a step, or a flush."""
        self._marks = {
            send.task.name: (send.task.group, work)
            for stream in self._streams
            for send, work in zip(stream.sends, stream.works, strict=False)
            if work is not None
        } if program.looks_back else {}  # fmt: skip
        # What nobody waited for in its own step still has gradients to hand back.
        found = self._streams if self._marks else ()
        self._unread = [
            [send for send in stream.sends[stream.ended :] if send.task.name in self._marks] for stream in found
        ]
        self._executor, self._run, self._carried = executor, run, carried
        self._older = [stream for stream in self._streams if stream.seen < len(stream.works)]
        self._streams = [_Stream(sends, run.ends) for sends in program.nets]
        self.next_need = NEVER

    def close(self) -> None:
        """Let go of buffers and works."""
        self._buffers.clear()
        self._owners.clear()
        self._streams.clear()
        self._marks.clear()
        self._unread.clear()
        self._tails.clear()

    # -- launching ---------------------------------------------------------------------------------------------------------

    def launch(self, passed: int) -> None:
        """Launch, in plan order, what is ready when `passed` compute tasks have ended."""
        next_need = NEVER
        for stream in self._older:
            self._look(stream)
        for stream in self._streams:
            sends, works = stream.sends, stream.works
            if stream.seen < len(works):
                self._look(stream)
            while len(works) < len(sends):
                send = sends[len(works)]
                if send.task.lag and not self._carried:
                    works.append(None)
                    continue
                if send.need > passed:
                    next_need = min(next_need, send.need)
                    break
                if not self._may_start(send):
                    next_need = 0
                    break
                self._send(stream, send)
        self.next_need = next_need

    def launch_rest(self, passed: int) -> None:
        """Launch what is left at the end of a step, waiting for collectives of other groups where it must."""
        for number, stream in enumerate(self._streams):
            if stream.sends:
                self._push(number, len(stream.sends) - 1, passed)

    def launch_one(self, send: Send) -> None:
        """Launch a task that finishes the previous step, whatever stands before it in its own step."""
        stream = self._streams[send.stream]
        stream.works.extend([None] * (send.place - len(stream.works)))
        self._wait_for_start(send)
        self._send(stream, send)

    def _push(self, number: int, place: int, passed: int) -> None:
        """Make sure that everything up to `place` of a stream is launched."""
        stream = self._streams[number]
        while len(stream.works) <= place:
            send = stream.sends[len(stream.works)]
            if send.need > passed:
                raise RunError(
                    f"task {send.task.name!r} is waited for before what it sends has been computed", code="E616"
                )
            for other, earlier in send.waits:
                self._push(other, earlier, passed)
            self._wait_for_start(send)
            self.launch(passed)

    def _may_start(self, send: Send) -> bool:
        tail = self._tails.get(send.task.stream)
        if tail is not None and tail[0] != send.task.group and not tail[1].is_completed():
            return False
        if any(place >= len(self._streams[number].works) for number, place in send.waits):
            return False
        return all(self._behind(work, group, send) for group, work in self._before(send))

    def _behind(self, work: Any, group: str, send: Send) -> bool:
        """Whether `send` may be launched now and still run after `work`."""
        return (self._ordered and group == send.task.group) or bool(work.is_completed())

    def _before(self, send: Send) -> Iterator[tuple[str, Any]]:
        """Yield group and work of each collective that `send` waits for and that has not been waited for yet."""
        for number, place in send.waits:
            stream = self._streams[number]
            for index in range(stream.ended, place + 1):
                if stream.works[index] is not None:
                    yield stream.sends[index].task.group, stream.works[index]
        for name in send.waits_previous:
            if name in self._marks:
                yield self._marks[name]

    def _wait_for_start(self, send: Send) -> None:
        tail = self._tails.get(send.task.stream)
        if tail is not None and tail[0] != send.task.group:
            self._wait_work(tail[1], send.task.name)
        for group, work in list(self._before(send)):
            if not self._behind(work, group, send):
                self._wait_work(work, send.task.name)

    def _send(self, stream: _Stream, send: Send) -> None:
        self._sending = send
        self._run.order.append(send.index)
        before = len(stream.works)
        self._target = stream.works
        send.op.run(self._executor)
        if len(stream.works) == before:
            stream.works.append(None)

    def collective(self, op: Collective) -> None:
        """Hand the buffer of `op` to its process group, and stamp the moment and the bytes."""
        send, run = self._sending, self._run
        index, task = send.index, send.task
        buffer = self._buffers[op.buffer.name]
        backend = self._backends[task.group]
        if not isinstance(op, AllGatherShards):
            buffer.pack(mean=not isinstance(op, AllGather))
        run.starts[index] = self._now()
        try:
            work, nbytes = self._hand_over(op, backend, buffer)
        except RuntimeError as error:
            raise self._failed(task.name, error) from error
        self._launched(work, nbytes)

    def exchange(self, parcel: Parcel) -> None:
        """Hand the rows of `parcel` to the process group of the task that is being sent, and stamp the moment and the
        bytes.
        """
        index, task = self._sending.index, self._sending.task
        self._run.starts[index] = self._now()
        try:
            work = collectives.hand_over(
                self._backends[task.group], parcel, self._ranks[task.group].index(self._setup.rank)
            )
        except RuntimeError as error:
            raise self._failed(task.name, error) from error
        self._run.received[index] = parcel.received.nbytes
        if parcel.rows is not None:
            self._run.rows[index] = parcel.rows
        self._launched(work, parcel.sent.nbytes)

    def _launched(self, work: Any, nbytes: int) -> None:
        run, index, task = self._run, self._sending.index, self._sending.task
        run.sent[index] = nbytes
        run.ranks[index] = self._ranks[task.group]
        if run.exact:
            work.get_future().add_done_callback(partial(self._stamp, run.ends, index))
        self._target.append(work)
        self._tails[task.stream] = (task.group, work)

    def _hand_over(self, op: Collective, backend: Any, buffer: FlatBuffer) -> tuple[Any, int]:
        """Launch `op`; return its work, and the bytes that this rank handed over."""
        flat = buffer.flat
        if isinstance(op, AllReduce):
            return collectives.all_reduce(backend, flat), flat.nbytes
        if isinstance(op, AllGather):
            return collectives.all_gather(backend, buffer.receive().view(-1), buffer.bytes), buffer.bytes.nbytes
        shard = buffer.shard
        if shard is None or not isinstance(op, ReduceScatter | AllGatherShards):
            raise RunError(f"this engine does not run {type(op).__name__} over {flat.numel()} items", code="E615")
        if isinstance(op, ReduceScatter):
            return collectives.reduce_scatter(backend, flat, shard, buffer.exchange()), flat.nbytes
        return collectives.all_gather(backend, flat, shard), shard.nbytes

    # -- waiting -----------------------------------------------------------------------------------------------------------

    def wait(self, number: int, place: int, passed: int) -> None:
        """Wait until everything up to `place` of a stream has ended, and hand reduced gradients back."""
        stream = self._streams[number]
        if place < stream.ended:
            return
        if place >= len(stream.works):
            self._push(number, place, passed)
        works, sends = stream.works, stream.sends
        self._wait_work(works[place], sends[place].task.name)
        for index in range(stream.ended, place + 1):
            work, send = works[index], sends[index]
            if work is None:
                continue
            self._wait_work(work, send.task.name)
            if isinstance(send.op, HANDS_BACK):
                self._buffers[send.op.buffer.name].hand_back()
        stream.ended = place + 1
        self._look(stream)

    def _stamp(self, ends: list[float], index: int, _: Any) -> None:
        """Note the end of a collective; the process group's thread calls it, on CUDA a stream that waited for its
        kernel.
        """
        time = self._now()
        if ends[index] is NAN:
            ends[index] = time

    def _look(self, stream: _Stream) -> None:
        """Stamp the collectives that have ended since somebody looked."""
        works, ends = stream.works, stream.ends
        time = self._now()
        while stream.seen < len(works):
            work = works[stream.seen]
            if work is not None:
                if stream.seen >= stream.ended and not work.is_completed():
                    return
                index = stream.sends[stream.seen].index
                if ends[index] is NAN:
                    ends[index] = time
            stream.seen += 1

    def settle(self) -> None:
        """Wait until everything that was launched has ended."""
        for stream in (*self._older, *self._streams):
            for send, work in zip(stream.sends, stream.works, strict=False):
                self._wait_work(work, send.task.name)
            self._look(stream)
        self._older = []

    def wait_previous(self, name: str) -> None:
        """Wait for collective `name` of the step before, if it is one, and for those before it on its stream; hand back
        what these brought and their own step left unread.
        """
        if name not in self._marks:
            return
        for unread in self._unread:
            place = next((place for place, send in enumerate(unread) if send.task.name == name), -1)
            for send in unread[: place + 1]:
                self._wait_work(self._marks[send.task.name][1], send.task.name)
                if isinstance(send.op, HANDS_BACK):
                    self._buffers[send.op.buffer.name].hand_back()
            del unread[: place + 1]
        self._wait_work(self._marks[name][1], name)
        for stream in self._older:
            self._look(stream)

    def _wait_work(self, work: Any, name: str) -> None:
        if work is None or work.is_completed():
            return
        progress, step = self._setup.progress, self._run.number
        progress.set(step, name, True)
        try:
            work.wait()
        except RuntimeError as error:
            raise self._failed(name, error) from error
        progress.set(step, name, False)

    def _failed(self, name: str, error: RuntimeError) -> RunError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return RunError(f"rank {self._setup.rank}, step {self._run.number}, task {name}: {reason}", code="E617")

    # -- what operations read ----------------------------------------------------------------------------------------------

    def segment(self, name: str, place: int) -> Tensor:
        """Return segment `name` of step `place` of the period, a flat view [numel]."""
        return self._owners[place][name].views[name]

    def gathered(self, name: str, place: int) -> list[Tensor]:
        """Return segment `name` as each rank sent it."""
        return self._owners[place][name].parts(name)
