"""One stack's training on one rank: engine, place in the data, and its own random numbers, so that it can be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from orch.models.batches import Batch, Batches
from orch.runtime.base import Engine

if TYPE_CHECKING:
    from orch.models.splits import Loaded


@dataclass
class Training:
    """What a stack trains with. `batch` counts a rank's samples of a step; `random` is where torch's generators stand.

    Stacks take turns in one process, so each keeps the state of the generators that dropout draws from: its training
    does not hang on what others drew meanwhile.
    """

    stack: str
    batch: int
    engine: Engine
    batches: Batches
    loss_of: Callable[[Any, Batch], torch.Tensor]
    loaded: Loaded
    stop_on_nan: bool = True
    random: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = self._random_state()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw from this training's random numbers within a block."""
        others = self._random_state()
        self._set_random_state(self.random)
        try:
            yield
        finally:
            self.random = self._random_state()
            self._set_random_state(others)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the next steps. Flushes first, so every rank must call it."""
        return {**self.engine.state_dict(), "position": self.batches.position, "random": self.random}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned: the next steps equal those of the training that was saved."""
        self.engine.load_state_dict(state)
        self.batches.position = state["position"]
        self.random = dict(state["random"])

    def _random_state(self) -> dict[str, torch.Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self.engine.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.engine.device)
        return states

    def _set_random_state(self, states: Mapping[str, torch.Tensor]) -> None:
        torch.set_rng_state(states["cpu"])
        if "cuda" in states and self.engine.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.engine.device)
