"""What a model computes between two mixtures, as it may be cut: facts of a profile, plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """The dense work that leads to mixture `mixture`: modules `attend` up to the residual stream behind attention, then
    modules `gate`, which know each token by itself.

    It may be cut along the samples of a batch; where it is `causal` along the `tokens` of a sample as well, each of which
    depends on earlier ones only. `quadratic` is the share of the FLOPs of `attend` that grow with the square of the tokens.
    """

    mixture: str
    attend: tuple[str, ...]
    gate: tuple[str, ...]
    tokens: int
    causal: bool
    quadratic: float = 0.0

    def part_of(self, module: str) -> str | None:
        """Return `attend` or `gate`, None for a module of neither."""
        return "attend" if module in self.attend else "gate" if module in self.gate else None
