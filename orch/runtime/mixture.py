"""A mixture whose experts are spread over ranks, as one rank runs it: what the tasks of a crossing read and leave.

Gate and loss are autograd's. Between them stands one autograd function whose forward and backward hand over to the
engine, which walks the tasks of the crossing in plan order; each calls one method here. Gradients of rows, weights and
experts are made by hand, so that backward may be cut other than forward.

Shapes: T tokens of this rank, M their width, R rows of this rank, P ranks that share the experts out, L experts of each,
K cells (positions cut wherever a chunk of forward or backward begins), Q rows that this rank gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from orch.errors import RunError
from orch.models.load import Load
from orch.models.zoo.gates import Routing
from orch.models.zoo.mixture import MixtureLayer, Rows, mixture_layers
from orch.plan import COUNTS, RELAYED, AllToAll, Chunk, GatherRows, PackRows, RowSizes, UnpackRows
from orch.plan import Rows as Move
from orch.runtime.legs import OUT, Gathered, Legs, Parcel, Tallies
from orch.runtime.packed import Sizes
from orch.runtime.pieces import backward, forward
from orch.runtime.shares import Shares
from orch.runtime.table import Cell, Table

# What forward saved, joined.
_ALL = Chunk(0, -1)


class Driver(Protocol):
    """Who walks the tasks of a crossing."""

    def cross(self, name: str, *, backward: bool) -> None: ...


class LayerRun:
    """One mixture in one step. Made when the layer is called, gone when its backward has ended.

    `ranks` and `place`: how many share the experts out, and which this is; so many neighbours hold `slices` of the same
    experts. `cells` from the plan. `sharing`: how many ranks share the tokens or rows of this layer, each crossing with
    its own, and which this is; `split`: they share rows, as all of them routed all tokens.
    """

    def __init__(
        self,
        layer: MixtureLayer,
        name: str,
        ranks: int,
        place: int,
        cells: Sequence[Cell] | None = None,
        slices: int = 1,
        sharing: tuple[int, int] = (1, 0),
        split: bool = False,
    ) -> None:
        self._sharing, self._split = sharing, split
        self._shares: Shares | None = None
        self.layer = layer
        self.name = name
        self.ranks = ranks
        self.place = place
        self.slices = slices
        self._cells = cells
        self.tokens: Tensor
        self.routing: Routing
        self.output: Tensor
        self.gradient: Tensor
        self.token_gradient: Tensor
        self.weight_gradient: Tensor
        self._legs = Legs(place, ranks)
        self._sizes = Sizes()
        self._relayed: Tensor | None = None
        self._saved: list[tuple[Chunk, Tensor, tuple[Tensor, ...]]] = []
        # Of the experts' parameters; the chunks of one layer that is walked in a chain share it.
        self.found: dict[str, Tensor] = {}
        self.load: Load | None = None

    # -- forward -----------------------------------------------------------------------------------------------------------

    def order(self, begin: int, end: int) -> None:
        """Lay the tokens out as rows; know how many go to whom from every cell. All at once, whatever the range."""
        del begin, end
        mixture, number = self.layer.mixture, self.tokens.shape[0]
        positions = -(-mixture.positions(number) // (self._sharing[0] if self._split else 1))
        cells = [(0, positions)] if self._cells is None else list(self._cells)
        if positions != (planned := cells[-1][1] - cells[0][0]):
            raise RunError(
                f"mixture {self.name} has {positions} positions, and its plan was made for {planned}", code="E624",
                hint="every step brings equally many tokens",
            )  # fmt: skip
        self.cells = cells
        self.rows: Rows = self.layer.rows(self.routing, number)
        self.load = self.layer.load
        crossing = self.rows
        if self._split:
            slots = mixture.capacity_factor is not None
            self._shares = Shares(self.rows, *self._sharing, positions, mixture.experts, slots=slots)
            crossing = self._shares.rows
        self._own = Table.of(crossing, cells, self._sent_to)
        self._local = mixture.experts // (self.ranks // self.slices)
        self._got: Table | None = None
        rows = crossing.gather(self.tokens)
        self._sent_rows = self.layer.call("before_dispatch", {"rows": rows})["rows"]
        self._outputs = torch.empty_like(self._sent_rows)

    def expert(self, chunk: Chunk, pieces: int = 1) -> None:
        """Compute the experts of this rank over the rows of one chunk, a piece of each expert's after another."""
        rows = self._arrived("dispatch", chunk)
        rows = self.layer.call("after_dispatch", {"rows": rows})["rows"]
        places = self._table.places(chunk)
        sort = torch.argsort(places).to(rows.device)
        outputs, saved = forward(self.layer.experts, rows[sort], self._table.per_expert(chunk), pieces)
        self._saved.append((chunk, places[sort.cpu()], saved))
        back = torch.empty_like(outputs)
        back[sort] = outputs
        self._legs.leave(("combine", chunk), self.layer.call("before_combine", {"rows": back})["rows"])

    def restore(self, begin: int, end: int) -> None:
        """Add up each token's rows, weighted."""
        del begin, end
        self._outputs = self._land("combine", self._outputs)
        self._outputs = self.layer.call("after_combine", {"rows": self._outputs})["rows"]
        self._weights = self.rows.weights(self.routing.weight).unsqueeze(1).to(self._outputs.dtype)
        self.output = self.rows.scatter(self._outputs * self._weights, self.tokens.shape[0])

    # -- backward ----------------------------------------------------------------------------------------------------------

    def restore_backward(self, begin: int, end: int) -> None:
        """Gradients of the rows that came back, and of the weights of routes."""
        del begin, end
        gradient = self.rows.gather(self.gradient.to(self._outputs.dtype))
        of_weight = (gradient * self._outputs).sum(1).to(self.routing.weight.dtype)
        taken = self.rows.route >= 0
        self.weight_gradient = torch.zeros_like(self.routing.weight)
        self.weight_gradient[self.rows.route[taken]] = of_weight[taken]
        gradient = gradient * self._weights
        self._sent_gradients = gradient if self._shares is None else self._shares.own(gradient)
        self._row_gradients = torch.empty_like(self._sent_gradients)

    def expert_backward(self, chunk: Chunk, pieces: int = 1, *, last: bool) -> None:
        """Gradients of one chunk's rows; after the `last` chunk those of the experts themselves, of the mean loss."""
        gradient = self._arrived("combine_backward", chunk)
        places = self._table.places(chunk)
        sort = torch.argsort(places)
        saved = self._saved_at(chunk, places[sort])
        sort = sort.to(gradient.device)
        counts = self._table.per_expert(chunk)
        of_rows, found = backward(self.layer.experts, gradient[sort], saved, counts, pieces)
        for name, value in found.items():
            self.found[name] = value if name not in self.found else self.found[name].add_(value)
        back = torch.empty_like(of_rows)
        back[sort] = of_rows
        self._legs.leave(("dispatch_backward", chunk), back)
        if last:
            for name, parameter in self.layer.experts.named_parameters():
                # Rows of all ranks came here, each with its own rank's loss: the loss of all is their mean. Of what ranks
                # share, each row came once, and stands for the loss of all who share it.
                parameter.grad = self.found[name].div_(self.ranks / self._sharing[0])

    def order_backward(self, begin: int, end: int) -> None:
        """Add up the gradients of each token's rows."""
        del begin, end
        self._row_gradients = self._land("dispatch_backward", self._row_gradients)
        self.token_gradient = self.rows.scatter(self._row_gradients, self.tokens.shape[0])

    def _saved_at(self, chunk: Chunk, places: Tensor) -> tuple[Tensor, ...]:
        """Return what forward saved of the rows at `places`, however forward was cut."""
        for other, _, saved in self._saved:
            if other == chunk:
                return saved
        if self._saved[0][0] != _ALL:
            where = torch.cat([where for _, where, _ in self._saved])
            whole = tuple(torch.cat(parts) for parts in zip(*(saved for _, _, saved in self._saved), strict=True))
            self._saved = [(_ALL, torch.argsort(where), whole)]
        _, at, whole = self._saved[0]
        chosen = at[places].to(whole[0].device)
        return tuple(part[chosen] for part in whole)

    # -- what travels ------------------------------------------------------------------------------------------------------

    def pack(self, op: PackRows) -> None:
        """Write the rows of one chunk as they will travel."""
        key = (op.part, op.chunk)
        packed, sizes = op.packed(self._rows_of(*key), partial(self._leaving, *key))
        self._sizes.packed(key, sizes)
        self._legs.leave(key, packed)

    def unpack(self, op: UnpackRows) -> None:
        """Read the rows of one chunk, which have come."""
        key = (op.part, op.chunk)
        rows = op.unpacked(self._legs.arrived(key), partial(self._coming, *key), self._sizes.came(key))
        self._legs.arrive(key, rows.to(self.tokens.dtype))

    def _leaving(self, part: str, chunk: Chunk) -> list[int]:
        """Return how many rows of a chunk leave for each rank in an exchange."""
        return self._there(chunk) if part in OUT else self._table.per_source(chunk)

    def _coming(self, part: str, chunk: Chunk) -> list[int]:
        """Return how many come from each."""
        return self._table.per_source(chunk) if part in OUT else self._there(chunk)

    def _there(self, chunk: Chunk) -> list[int]:
        return [number for number in self._by_part(chunk) for _ in range(self.slices)]

    def parcel(self, op: Move) -> Parcel:
        """Return what the collective of `op` hands over and fills."""
        if isinstance(op, GatherRows):
            return self._shared(op)
        if isinstance(op, RowSizes):
            return self._sizes.parcel(op)
        op = cast(AllToAll, op)
        if op.part == COUNTS:
            by_part = self._travelling().view(-1, self._local, len(self.cells))
            sent = by_part.repeat_interleave(self.slices, 0).reshape(-1).clone()
            self._told = torch.empty_like(sent)
            return Parcel(sent, self._told, [], [])
        if op.part == RELAYED:
            # Those for the ranks of equal place on all nodes go through one neighbour.
            sent = self._by_neighbour(op.neighbours).reshape(-1).clone()
            self._relayed = torch.empty_like(sent)
            return Parcel(sent, self._relayed, [], [])
        chunk = op.chunk
        tallies = Tallies(
            self._there(chunk), self._table.per_source(chunk), partial(self._through_here, op.neighbours, chunk)
        )
        rows = partial(self._rows_of, op.part, chunk)
        if (op.part, chunk) not in self._sizes:
            return self._legs.parcel(op, rows, tallies)
        row_bytes = op.width * self.tokens.dtype.itemsize
        return self._sizes.sized(op, self._legs, rows, tallies, row_bytes)

    def _travelling(self) -> Tensor:
        """Return how many rows of this rank go to each expert's rank, in every cell [1, E, K]."""
        return self._own.tally

    def _sent_to(self, chunk: Chunk) -> Tensor | None:
        """Mark the experts that this rank's rows of a chunk are meant for, [1, E]; None: all of them."""
        if chunk.turns == 1:
            return None
        ranks = torch.zeros(self.ranks, dtype=torch.int64)
        ranks[list(chunk.meant_for(self.place, self.ranks))] = 1
        return ranks.repeat_interleave(self._local).unsqueeze(0)

    def _got_from(self, chunk: Chunk) -> Tensor | None:
        """Mark the ranks whose rows of a chunk come here, [P, 1]; None: all of them."""
        if chunk.turns == 1:
            return None
        ranks = torch.zeros(self.ranks, 1, dtype=torch.int64)
        ranks[list(chunk.sent_by(self.place, self.ranks))] = 1
        return ranks

    def _by_part(self, chunk: Chunk) -> list[int]:
        """Return how many of this rank's rows of a chunk are meant for each part of the experts."""
        mine = self._own.per_expert(chunk)
        return [sum(mine[first : first + self._local]) for first in range(0, len(mine), self._local)]

    def _by_neighbour(self, neighbours: int) -> Tensor:
        """Return this rank's rows [m, N, L, K] by the place on its node, and the node, of the rank they are meant for."""
        return self._own.tally.view(-1, neighbours, self._local, len(self.cells)).transpose(0, 1)

    def _through_here(self, neighbours: int, chunk: Chunk) -> list[list[int]]:
        """Return how many rows of a chunk each neighbour sends through this rank to each node."""
        if self._relayed is None:
            # Everybody has as many slots as this rank.
            mine = self._by_neighbour(neighbours)[self.place % neighbours]
            tally = mine.expand(neighbours, *mine.shape)
        else:
            tally = self._relayed.view(neighbours, -1, self._local, len(self.cells))
        first, last = self._own.cells_of(chunk)
        counts: list[list[int]] = tally[..., first:last].sum((2, 3)).tolist()
        return counts

    @property
    def _table(self) -> Table:
        """How many rows of each expert here come from whom, in every cell."""
        if self._got is None:
            mixture, cells = self.layer.mixture, len(self.cells)
            if self.ranks == 1:
                tally = self._own.tally
            elif mixture.capacity_factor is None:
                tally = self._told.view(self.ranks, self._local, cells)
            else:
                # Everybody has as many slots as this rank.
                first = self.place // self.slices * self._local
                mine = self._own.tally[:, first : first + self._local]
                tally = mine.expand(self.ranks, self._local, cells)
            self._got = Table(tally, self.cells, self._got_from)
        return self._got

    def _rows_of(self, part: str, chunk: Chunk) -> Tensor:
        """Return the rows of a chunk as this rank has them now, in the order in which they travel."""
        left = self._legs.leaving((part, chunk))
        if left is not None:
            return left
        larger = self._legs.around((part, chunk))
        if larger is not None:
            ((_, around), rows), wanted = larger, self._table.places(chunk)
            places = self._table.places(around)
            at = torch.empty(int(self._table.tally.sum()), dtype=torch.int64)
            at[places] = torch.arange(len(places))
            return rows[at[wanted].to(rows.device)]
        rows = self._sent_rows if part == "dispatch" else self._sent_gradients
        rows = rows[self._own.places(chunk).to(rows.device)]
        if self.slices == 1:
            return rows
        return torch.cat([one for one in torch.split(rows, self._by_part(chunk)) for _ in range(self.slices)])

    def _arrived(self, part: str, chunk: Chunk) -> Tensor:
        """Return the rows of a chunk that came, rank after rank; of one that goes nowhere, this rank's own."""
        key = (part, chunk)
        stays = chunk.turn == 0 and chunk.turns == self.ranks and not self._legs.has(key)
        return self._rows_of(part, chunk) if stays else self._legs.arrived(key)

    def _land(self, part: str, rows: Tensor) -> Tensor:
        """Return `rows` with what came back, chunk by chunk, where it left from; of shared ones all."""
        if self._shares is not None:
            tables = [Table.of(one, self.cells, self._sent_to) for one in self._shares.all_rows()]
            return self._shares.whole(rows, [table.places for table in tables])
        for _, chunk in self._legs.waiting(part):
            rows[self._own.places(chunk).to(rows.device)] = self._back(part, chunk)
        return rows

    def _back(self, part: str, chunk: Chunk) -> Tensor:
        """Return the rows of a chunk that came back, what slices of an expert made of each added up."""
        came = self._legs.arrived((part, chunk))
        if self.slices == 1:
            return came
        parts = torch.split(came, [number * self.slices for number in self._by_part(chunk)])
        return torch.cat([one.view(self.slices, -1, one.shape[1]).sum(0) if len(one) else one for one in parts])

    def _shared(self, op: GatherRows) -> Parcel:
        """Return what hands this rank's rows of a chunk that came back to all who share them."""
        assert self._shares is not None
        chunk = Chunk(op.begin, op.end)
        part = "dispatch_backward" if op.part.endswith("_backward") else "combine"
        parcel = Gathered.of(self._back(part, chunk), self._sharing[0])
        self._shares.came(chunk, parcel.received)
        return parcel


class Crossed(torch.autograd.Function):
    """Between gate and output: forward and backward are what the plan says."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, run: LayerRun, driver: Driver, dtype: torch.dtype) -> Tensor:
        """Walk the forward crossing; `dtype` is that of the rows."""
        run.tokens = tokens.detach().to(dtype)
        run.routing = Routing(run.routing.token, run.routing.expert, weight.detach(), run.routing.choice)
        driver.cross(run.name, backward=False)
        ctx.run, ctx.driver, ctx.dtype = run, driver, tokens.dtype
        return run.output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Walk the backward crossing."""
        run: LayerRun = ctx.run
        run.gradient = gradient
        ctx.driver.cross(run.name, backward=True)
        return run.token_gradient.to(ctx.dtype), run.weight_gradient, None, None, None


def spread(model: torch.nn.Module, part: tuple[int, int], piece: tuple[int, int] = (0, 1)) -> None:
    """Keep one of some equal parts of every mixture's experts, and of these one of some slices: (which, of how many)."""
    if part[1] * piece[1] > 1:
        for layer in mixture_layers(model).values():
            layer.experts.keep(part, piece)


def expert_parameters(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the parameters that a spread model does not have on every rank."""
    layers = mixture_layers(model)
    return frozenset(
        f"{name}.experts.{inner}" for name in layers for inner, _ in layers[name].experts.named_parameters()
    )
