"""A gang of one that runs in this process: for a debugger, and where a second process is not worth it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from orch.errors import RunError
from orch.gang.gang import HANG_AFTER_S, OnEvent
from orch.gang.progress import Progress
from orch.gang.shaping import Shaping
from orch.gang.worker import Spec, Worker


class InlineGang:
    """World size 1, no process, no log file: output and exceptions come as they are, and breakpoints work."""

    kind = "inline"
    size = 1
    notes: tuple[str, ...] = ()
    shaping: Shaping | None = None

    def __init__(self, threads: int = 1, device: str = "cpu") -> None:
        self._on_event: OnEvent | None = None
        self._unheard: list[Any] = []
        self._worker: Worker | None = Worker(Spec(0, 1, threads, device), Progress(), self._emit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        per_rank: Sequence[Sequence[Any]] | None = None,
        on_event: OnEvent | None = None,
        hang_after_s: float = HANG_AFTER_S,
    ) -> list[Any]:
        """Run `function` here. Its exceptions are not wrapped: a debugger wants the original."""
        if self._worker is None:
            raise RunError("the gang is closed", code="E706", hint="make a new one")
        if per_rank is not None and len(per_rank) != 1:
            raise RunError(f"per_rank has {len(per_rank)} entries for 1 rank", code="E707")
        import torch

        threads, self._on_event = torch.get_num_threads(), on_event
        if on_event is not None:
            unheard, self._unheard = self._unheard, []
            for event in unheard:
                on_event(0, event)
        torch.set_num_threads(self._worker.threads)
        self._worker.progress.clear()
        try:
            return [function(self._worker, *args, *(per_rank[0] if per_rank else ()))]
        finally:
            torch.set_num_threads(threads)
            self._on_event = None

    def close(self) -> None:
        """Forget the worker and what it cached."""
        self._worker = None

    def _emit(self, event: Any) -> None:
        if self._on_event is None:
            self._unheard.append(event)
        else:
            self._on_event(0, event)
