"""Copies of experts that a rank has for one step: its own rows through them, and their gradients on the way back.

Shapes: Q rows of this rank for the copies, M their width; N numbers make an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import accumulate

import torch
from torch import Tensor, nn

from orch.models.zoo.mixture import Experts
from orch.plan import Chunk, ReturnGradients, ShareExpert
from orch.plan import Rows as Move
from orch.runtime.legs import Parcel
from orch.runtime.mixture import LayerRun


class ShadowRun(LayerRun):
    """A mixture some of whose experts have copies on every rank in this step: `shadows`, set before it is crossed."""

    shadows: Shadows

    def shadow(self) -> None:
        """Compute the copies over the rows that stay here."""
        where, counts = self._staying()
        rows = self.layer.call("after_dispatch", {"rows": self._sent_rows[where]})["rows"]
        outputs = self.shadows.run(rows, counts)
        self._outputs[where] = self.layer.call("before_combine", {"rows": outputs})["rows"]

    def shadow_backward(self) -> None:
        """Gradients of the rows that stayed here, and of the copies."""
        where, _ = self._staying()
        self._row_gradients[where] = self.shadows.backward(self._sent_gradients[where])

    def add_shadows(self) -> None:
        """Add the gradients of all ranks' copies to those of the experts here."""
        self.shadows.add(self.ranks)

    def parcel(self, op: Move) -> Parcel:
        """Return what the collective of `op` hands over and fills."""
        return self.shadows.parcel(op, self.place) if isinstance(op, ShareExpert) else super().parcel(op)

    def _staying(self) -> tuple[Tensor, list[int]]:
        """Return where the rows for copies stand among this rank's, copy after copy, and how many each has."""
        counts = self.rows.counts.tolist()
        starts = [0, *accumulate(counts)]
        where = [torch.arange(starts[expert], starts[expert + 1]) for expert in self.shadows.experts]
        return torch.cat(where).to(self._sent_rows.device), [counts[expert] for expert in self.shadows.experts]

    def _travelling(self) -> Tensor:
        tally = super()._travelling()
        return tally * self._kept(tally.shape[1]).unsqueeze(2)

    def _sent_to(self, chunk: Chunk) -> Tensor | None:
        marks, kept = super()._sent_to(chunk), self._kept(self.layer.mixture.experts)
        return kept if marks is None else marks * kept

    def _kept(self, number: int) -> Tensor:
        """Mark which of `number` experts get rows of other ranks, [1, E]."""
        marks = torch.ones(1, number, dtype=torch.int64)
        marks[0, self.shadows.experts] = 0
        return marks


class Shadows:
    """The copies of one mixture in one step. `experts` are their numbers, in the order in which they are shared; `held` are
    the experts of this rank, of which `first` is the first.
    """

    def __init__(self, experts: Sequence[int], held: Experts, first: int) -> None:
        self.experts = list(experts)
        self._held, self._first = held, first
        self._flat: dict[int, Tensor] = {}
        self._copies: Experts | None = None
        self._saved: tuple[Tensor, ...] = ()
        self._counts: list[int] = []

    def parcel(self, op: ShareExpert, place: int) -> Parcel:
        """Return what a broadcast of weights hands over and fills, or a reduction of gradients."""
        returns = isinstance(op, ReturnGradients)
        if not returns:
            parts = (
                [parameter[op.expert - self._first] for parameter in self._held.parameters()]
                if place == op.root
                else []
            )
            sizes = sum(parameter[0].numel() for parameter in self._held.parameters())
            example = next(self._held.parameters())
            self._flat[op.expert] = (
                torch.cat([part.detach().reshape(-1) for part in parts])
                if parts
                else torch.empty(sizes, dtype=example.dtype, device=example.device)
            )
        flat = self._flat[op.expert]
        return Parcel(flat, flat, [], [], root=op.root, adds=returns)

    def run(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the outputs of `rows` [Q, M], of which each copy has `counts` in turn."""
        copies = copy(self._held)
        names = [name for name, _ in self._held.named_parameters()]
        whole = [self._parts(self._flat[expert]) for expert in self.experts]
        # Each a leaf of its own: nothing of the model knows of them.
        stacked = {
            name: nn.Parameter(torch.stack(parts)) for name, parts in zip(names, zip(*whole, strict=True), strict=True)
        }
        copies._parameters = stacked  # type: ignore[assignment]
        copies.experts = len(self.experts)
        outputs, self._saved = copies.run(rows, counts)
        self._copies, self._counts = copies, list(counts)
        return outputs

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradients of rows from those of outputs [Q, M]; those of the copies are ready to be returned."""
        assert self._copies is not None
        of_rows, found = self._copies.backward_rows(gradient, self._saved, self._counts)
        for number, expert in enumerate(self.experts):
            parts = [found[name][number].reshape(-1) for name, _ in self._held.named_parameters()]
            self._flat[expert] = torch.cat(parts)
        self._copies, self._saved = None, ()
        return of_rows

    def add(self, ranks: int) -> None:
        """Add the copies' gradients, of all `ranks` with a loss of its own each, to those of the experts held here."""
        for expert in self.experts:
            local = expert - self._first
            if 0 <= local < self._held.experts:
                for parameter, part in zip(self._held.parameters(), self._parts(self._flat[expert]), strict=True):
                    assert parameter.grad is not None
                    parameter.grad[local] += part / ranks
        self._flat.clear()

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """Return the parameters of one expert from its numbers [N]."""
        shapes = [parameter.shape[1:] for parameter in self._held.parameters()]
        return [
            part.view(shape)
            for part, shape in zip(torch.split(flat, [shape.numel() for shape in shapes]), shapes, strict=True)
        ]
