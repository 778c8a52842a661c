"""Consecutive layers walked as one chain: what its tasks read and leave, on one rank.

One autograd function spans all blocks from the first to the last one with a mixture. Its forward and its backward hand over to
the engine, which walks the chain's tasks in plan order. Dense chunks run under autograd from leaves of their own and keep what
they took and gave; backward goes through each by itself, and gradients of parameters are added up by hand, so that they exist
when the plan says so. A chunk of a mixture is a crossing of its own (`orch.runtime.mixture`), of its own tokens.

Shapes: B samples, S tokens of a sample, M the model's width; h behind attention, y what a mixture adds, both [B, S, M] in pieces
along the dim that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from orch.errors import RunError
from orch.models.load import added
from orch.models.zoo.blocks import Block, Past
from orch.models.zoo.gates import Gate, Routing
from orch.models.zoo.mixture import MixtureLayer
from orch.plan import Chunk, PackRows, Rows, UnpackRows
from orch.runtime.legs import Parcel
from orch.runtime.mixture import LayerRun

Range = tuple[int, int]


class Strip:
    """A tensor in pieces along one dim, by the units they cover."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._pieces: dict[Range, Tensor] = {}

    def put(self, first: int, last: int, piece: Tensor) -> None:
        """Keep the piece of units `first` to `last`."""
        self._pieces[first, last] = piece

    def get(self, first: int, last: int) -> Tensor:
        """Return units `first` to `last`, out of as many pieces as it takes. Raises RunError where some were never made."""
        if (first, last) in self._pieces:
            return self._pieces[first, last]
        parts, at = [], first
        for (begin, end), piece in sorted(self._pieces.items()):
            if begin <= at < end and at < last:
                parts.append(piece.narrow(self._dim, at - begin, min(end, last) - at))
                at = min(end, last)
        if at < last:
            raise RunError(f"units {at} to {last} of a chain are asked for before they were computed", code="E616")
        return torch.cat(parts, self._dim)


class Kept:
    """Keys and values of each chunk of attention, which chunks behind look at, and their gradients from there."""

    def __init__(self) -> None:
        self._made: dict[Range, list[tuple[Tensor, Tensor]]] = {}
        self._of_made: dict[Range, list[Tensor]] = {}

    def put(self, first: int, last: int, made: list[tuple[Tensor, Tensor]]) -> None:
        """Keep what a chunk made, a pair of each attention."""
        self._made[first, last] = made

    def before(self, first: int) -> list[tuple[Tensor, ...]]:
        """Return those of all units before `first` as leaves, a pair of each attention; none where there are no such units."""
        behind = [made for (_, end), made in sorted(self._made.items()) if end <= first]
        return [
            tuple(leaf_of(torch.cat([chunk[place][part].detach() for chunk in behind], 2)) for part in (0, 1))
            for place in range(len(behind[0]) if behind else 0)
        ]

    def gradients(self, first: int, last: int, like: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of what a chunk made, which is `like`; no chunk asks for it any more."""
        found = self._of_made.pop((first, last), None)
        return [torch.zeros_like(part) for part in like] if found is None else found

    def add(self, first: int, last: int, found: Sequence[Tensor]) -> None:
        """Share the gradients that a chunk gives to earlier keys and values [B, H, P, D] out among those that made them."""
        for begin, end in sorted(key for key in self._made if key[1] <= first):
            parts = [gradient.narrow(2, begin, end - begin) for gradient in found]
            kept = self._of_made.get((begin, end))
            if kept is None:
                self._of_made[begin, end] = [part.clone() for part in parts]
            else:
                for whole, part in zip(kept, parts, strict=True):
                    whole.add_(part)
        self._made.pop((first, last), None)


@dataclass
class Dense:
    """A dense chunk that ran: the leaves it began from and what it gave, whose gradients are asked for in backward."""

    leaves: list[Tensor]
    gave: list[Tensor]


@dataclass(frozen=True)
class Facts:
    """What all layers of a chain share: the dim that is cut and its units, how a crossing is made, parameters by name, and the
    rows' dtype.
    """

    dim: int
    units: int
    crossing: Callable[[str, Range], LayerRun]
    parameters: Mapping[str, nn.Parameter]
    dtype: torch.dtype


class ChainedLayer:
    """One mixture and the blocks that lead to it, in one step: what the tasks of the plan call (`orch.plan.dense`)."""

    def __init__(self, name: str, blocks: Sequence[Block], params: Mapping[str, tuple[str, ...]], facts: Facts) -> None:
        self.name = name
        self.blocks = blocks
        self._params = params
        self._facts = facts
        layer = blocks[-1].mixture
        assert layer is not None
        self.mixture: MixtureLayer = layer
        self.h, self.y, self.of_h, self.of_y = (Strip(facts.dim) for _ in range(4))
        self.before: ChainedLayer | None = None
        self.entered: Tensor
        self.of_entered = Strip(facts.dim)
        self.rotary: tuple[Tensor, Tensor] | None = None
        self._dense: dict[Range, Dense] = {}
        self._kept = Kept()
        self._gates: dict[Range, Dense] = {}
        self._runs: dict[Range, LayerRun] = {}
        self._units: dict[Range, Range] = {}
        # First choices by expert of each chunk, and tokens of all: what the loss that evens out loads is made of.
        self._firsts: dict[Range, Tensor] = {}
        self._tokens = 0
        self._found: dict[str, Tensor] = {}
        self._of_h_behind = Strip(facts.dim)

    # -- dense work --------------------------------------------------------------------------------------------------------

    def attend(self, first: int, last: int, piece: int = 0) -> None:
        """Run the blocks up to behind attention over units `first` to `last`."""
        del piece
        leaves = self._entered(first, last)
        earlier = self._kept.before(first) if self._along_tokens else []
        past = Past(earlier, causal=self.blocks[-1].causal, rotary=self._rotary(first, last))  # type: ignore[arg-type]
        with torch.enable_grad():
            h = self._through(self._opened(leaves), past)
        self.h.put(first, last, h.detach())
        gave = [h]
        if self._along_tokens:
            self._kept.put(first, last, past.made)
            gave += [part for made in past.made for part in made]
        self._dense[first, last] = Dense([*leaves, *(part for pair in earlier for part in pair)], gave)

    def _entered(self, first: int, last: int) -> list[Tensor]:
        """Return what units `first` to `last` begin with, as leaves: the chain's input, or both parts of the layer before."""
        if self.before is None:
            return [leaf_of(self.entered.narrow(self._facts.dim, first, last - first))]
        return [leaf_of(self.before.h.get(first, last)), leaf_of(self.before.y.get(first, last))]

    def _opened(self, leaves: Sequence[Tensor]) -> Tensor:
        """Return the first block's input from these leaves."""
        return leaves[0] if self.before is None else self.before.closed(*leaves)

    @property
    def _along_tokens(self) -> bool:
        return self._facts.dim == 1

    def closed(self, h: Tensor, y: Tensor) -> Tensor:
        """Return what the next block begins with, from both parts of this layer."""
        y = self.mixture.call("after_layer", {"y": y})["y"].to(h.dtype)
        return self.blocks[-1].close(h, y)

    def _through(self, x: Tensor, past: Past) -> Tensor:
        for block in self.blocks[:-1]:
            h = block.attend(x, past)
            x = block.close(h, block.dense(block.feed(h)))
        return self.blocks[-1].attend(x, past)

    def _rotary(self, first: int, last: int) -> tuple[Tensor, Tensor] | None:
        if self.rotary is None:
            return None
        dim = self._facts.dim
        cut = [part if part.shape[dim] == 1 else part.narrow(dim, first, last - first) for part in self.rotary]
        return cut[0], cut[1]

    def attend_backward(self, first: int, last: int, ready: tuple[str, ...], piece: int = 0) -> None:
        """Gradients of the blocks over units `first` to `last`; with `ready` those of parameters are complete."""
        del piece
        for begin, end in inside(self._dense, first, last):
            dense = self._dense.pop((begin, end))
            gradients = [self.of_h.get(begin, end)]
            if self._along_tokens:
                gradients += self._kept.gradients(begin, end, dense.gave[1:])
            found = self._differentiated(dense, gradients, "attend")
            number = self._hand_back(begin, end, found)
            self._kept.add(begin, end, found[number:])
        self._publish(ready)

    def _hand_back(self, first: int, last: int, found: Sequence[Tensor]) -> int:
        """Leave the gradients of what the units began with to what made that; return how many they were."""
        if self.before is None:
            self.of_entered.put(first, last, found[0])
            return 1
        self.before.left(first, last, found[0], found[1])
        return 2

    def left(self, first: int, last: int, of_h: Tensor, of_y: Tensor) -> None:
        """Take the gradients of both parts of this layer's output from what came behind it."""
        self._of_h_behind.put(first, last, of_h)
        self.of_y.put(first, last, of_y)

    def _attended(self, first: int, last: int) -> tuple[list[Tensor], Tensor]:
        """Return leaves, and the residual stream behind attention that comes of them."""
        leaf = leaf_of(self.h.get(first, last))
        return [leaf], leaf

    def gate(self, first: int, last: int, begin: int, end: int) -> None:
        """Choose experts for units `first` to `last`, whose rows are at positions `begin` to `end`."""
        gate = self.mixture.gate
        assert isinstance(gate, Gate)
        with torch.enable_grad():
            leaves, h = self._attended(first, last)
            data = self.mixture.call("before_layer", {"x": self.blocks[-1].feed(h)})
            tokens = data["x"].reshape(-1, h.shape[-1])
            routing, share, chosen = gate.choose(tokens)
        self._gates[begin, end] = Dense(leaves, [tokens, routing.weight, share, h])
        self._firsts[begin, end] = chosen
        self._tokens += tokens.shape[0]
        self._units[begin, end] = (first, last)
        run = self._facts.crossing(self.name, (begin, end))
        run.tokens = tokens.detach().to(self._facts.dtype)
        run.routing = Routing(routing.token, routing.expert, routing.weight.detach(), routing.choice)
        run.found = self._found
        self._runs[begin, end] = run

    def gate_backward(self, begin: int, end: int, ready: tuple[str, ...]) -> None:
        """Gradients of the residual stream behind attention, from those of the tokens, their weights and the even loads."""
        dense, run = self._gates.pop((begin, end)), self._runs.pop((begin, end))
        first, last = self._units[begin, end]
        tokens, weight, share, _ = dense.gave
        gradients = [run.token_gradient.to(tokens.dtype), run.weight_gradient.to(weight.dtype)]
        gate: Any = self.mixture.gate
        if gate.balance:
            chosen = torch.stack(list(self._firsts.values())).sum(0)
            gradients.append(gate.even(chosen, self._tokens).to(share.dtype))
        else:
            gradients.append(torch.zeros_like(share))
        gradients.append(self._of_h_behind.get(first, last))
        self._into_attention(first, last, self._differentiated(dense, gradients, "gate"))
        self._publish(ready)

    def _into_attention(self, first: int, last: int, found: Sequence[Tensor]) -> None:
        """Take the gradients of the leaves that `_attended` gave."""
        self.of_h.put(first, last, found[0])

    def _differentiated(self, dense: Dense, gradients: Sequence[Tensor], part: str) -> list[Tensor]:
        """Return the gradients of a chunk's leaves; those of parameters are added to what other chunks gave."""
        names = self._params[part]
        parameters = [self._facts.parameters[name] for name in names]
        inputs = [*dense.leaves, *parameters]
        found: Sequence[Tensor | None] = torch.autograd.grad(dense.gave, inputs, list(gradients), allow_unused=True)
        for name, gradient in zip(names, found[len(dense.leaves) :], strict=True):
            if gradient is None:
                continue
            so_far = self._found.get(name)
            # The first sum is a new tensor: autograd may have handed out one that others hold too.
            self._found[name] = gradient if so_far is None else so_far + gradient
        pairs = zip(dense.leaves, found, strict=False)
        return [torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in pairs]

    def _publish(self, ready: tuple[str, ...]) -> None:
        """Let the gradients of these parameters be what is sent and applied."""
        for name in ready:
            parameter, found = self._facts.parameters[name], self._found.pop(name, None)
            parameter.grad = torch.zeros_like(parameter) if found is None else found.contiguous()

    # -- the mixture -------------------------------------------------------------------------------------------------------

    def order(self, begin: int, end: int) -> None:
        """Lay the tokens of one chunk out as rows."""
        self._runs[begin, end].order(begin, end)
        loads = [{"": run.load} for run in self._runs.values() if run.load is not None]
        self.mixture.load = added(loads)[""]

    def expert(self, chunk: Chunk, pieces: int = 1) -> None:
        """Compute the experts of this rank over the rows of one chunk."""
        self._run_of(chunk.begin, chunk.end).expert(chunk, pieces)

    def restore(self, begin: int, end: int) -> None:
        """Add up the rows of each token of one chunk."""
        run = self._runs[begin, end]
        run.restore(begin, end)
        first, last = self._units[begin, end]
        like = self._gates[begin, end].leaves[0]
        self.y.put(first, last, run.output.view(like.shape).to(like.dtype))

    def restore_backward(self, begin: int, end: int) -> None:
        """Gradients of the rows of one chunk and of their weights."""
        run = self._runs[begin, end]
        run.gradient = self.of_y.get(*self._units[begin, end]).reshape(run.tokens.shape)
        run.restore_backward(begin, end)

    def expert_backward(self, chunk: Chunk, pieces: int = 1, *, last: bool) -> None:
        """Gradients of one chunk's rows; after the `last` chunk those of the experts."""
        self._run_of(chunk.begin, chunk.end).expert_backward(chunk, pieces, last=last)

    def order_backward(self, begin: int, end: int) -> None:
        """Add up the gradients of the rows of each token of one chunk."""
        self._runs[begin, end].order_backward(begin, end)

    def pack(self, op: PackRows) -> None:
        """Write the rows of one chunk as they will travel."""
        self._run_of(op.begin, op.end).pack(op)

    def unpack(self, op: UnpackRows) -> None:
        """Read the rows of one chunk, which have come."""
        self._run_of(op.begin, op.end).unpack(op)

    def parcel(self, op: Rows) -> Parcel:
        """Return what the all-to-all of `op` hands over and fills."""
        return self._run_of(op.begin, op.end).parcel(op)

    def _run_of(self, begin: int, end: int) -> LayerRun:
        """Return the crossing of which these positions are a part, or all."""
        found = self._runs.get((begin, end))
        return found or next(run for (first, last), run in self._runs.items() if first <= begin and end <= last)


def inside(ran: Mapping[Range, Dense], first: int, last: int) -> list[Range]:
    """Return the chunks of forward that a chunk of backward is made of, the last one first."""
    return sorted((key for key in ran if first <= key[0] and key[1] <= last), reverse=True)


def leaf_of(piece: Tensor) -> Tensor:
    """Return a leaf that a graph begins with."""
    return piece.detach().requires_grad_()
