"""Where ranks that share samples meet: in front of attention whose heads are split over them, and behind it.

With whole tokens on every rank, what attention's parts give is added up behind it, and the gradients of what went in are
added up in backward (Megatron-LM's all-reduce). With shares of the tokens, they are gathered in front and given back in
shares behind, and the other way round in backward (its sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Iterator

from orch.models.profile import Profile
from orch.plan import NET, GatherRows, Rows, ScatterRows, SumRows, Task, meeting
from orch.workload.layout import SHARES, TENSOR, Layout

INTRA = "net.intra"


class Meetings:
    """The meetings of one plan, and which of its backward tasks end at one. Nothing where no samples are shared."""

    def __init__(self, profile: Profile, layout: Layout, batch: int, precision: str) -> None:
        attentions = profile.attentions if layout.tensor > 1 else ()
        self._enter = {one.enter: one for one in attentions}
        self._leave = {one.leave: one for one in attentions}
        # A gate's work may be divided as well, so its backward is a task of its own.
        self._gates = {one.gate_module for one in profile.mixtures} if layout.tensor > 1 else set()
        self._shares = layout.tokens == SHARES
        self._ranks = layout.tensor
        self._batch, self._precision = batch, precision
        self._stream = INTRA if layout.world_size > layout.tensor else NET

    def forward(self, module: str, drawn: list[Task]) -> list[Task]:
        """Return the forward tasks of a module with the meetings in front of it and behind it."""
        if module in self._enter and self._shares:
            drawn = [*self._met(GatherRows, "gather", module, ()), *drawn]
        if module in self._leave:
            kind, part = (ScatterRows, "scatter") if self._shares else (SumRows, "sum")
            drawn = [*drawn, *self._met(kind, part, module, (drawn[-1].name,))]
        return drawn

    def begins(self, module: str) -> bool:
        """Whether backward meets before it comes to `module`, or goes on in a task of its own."""
        return module in self._gates or (self._shares and module in self._leave)

    def before(self, module: str) -> Iterator[Task]:
        """Yield what is met before the backward of `module`."""
        if self._shares and module in self._leave:
            yield from self._met(GatherRows, "gather_backward", module, ())

    def ends(self, module: str) -> bool:
        """Whether the backward task of `module` ends with it."""
        return module in self._gates or module in self._enter

    def behind(self, module: str, task: str) -> Iterator[Task]:
        """Yield what is met after the backward of `module`, which `task` ends."""
        if module in self._enter:
            kind, part = (ScatterRows, "scatter_backward") if self._shares else (SumRows, "sum_backward")
            yield from self._met(kind, part, module, (task,))

    def _met(self, kind: type[Rows], part: str, module: str, after: tuple[str, ...]) -> list[Task]:
        """Return what ranks that share samples do together at `module`."""
        attention = self._enter.get(module) or self._leave[module]
        tokens = attention.tokens * self._batch
        handed = tokens // self._ranks if kind is GatherRows else tokens
        buffer = Rows.buffer_of(f"{part}.{module}", handed * attention.hidden, self._precision)
        op = kind(buffer, module, part, tokens, 0, tokens, width=attention.hidden)
        return meeting(op, self._stream, TENSOR, after)
