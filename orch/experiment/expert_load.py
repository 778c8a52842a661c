"""Experts' loads among the figures of a run: counts, from which they can be read again, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orch.models.load import Load
from orch.track.steps import Value

ROWS, DROPPED = "expert_rows", "dropped_choices"
IMBALANCE, DROP_RATE = "load_imbalance", "drop_rate"
COLUMNS = ("stack", "seed", "mixture", "step", "clock_s", "expert", "share", IMBALANCE, DROP_RATE)

Loads = Mapping[str, Load]


def to_values(step: int, clock_s: float, loads: Loads) -> list[Value]:
    """Return the figures of the loads, by mixture, of the steps up to `step`."""
    named: list[tuple[str, float]] = []
    for mixture, load in loads.items():
        named += [(f"{IMBALANCE}.{mixture}", load.imbalance), (f"{DROP_RATE}.{mixture}", load.drop_rate)]
        named.append((f"{DROPPED}.{mixture}", load.dropped))
        named += [(f"{ROWS}.{mixture}.{expert}", rows) for expert, rows in enumerate(load.rows)]
    return [Value(step, clock_s, name, float(value)) for name, value in named]


def from_values(values: Sequence[Value]) -> list[tuple[int, float, Loads]]:
    """Return the loads that `to_values` wrote, each with its step and clock, in order."""
    found: dict[int, tuple[float, dict[str, dict[int, int]], dict[str, int]]] = {}
    for value in values:
        kind, _, rest = value.name.partition(".")
        if kind not in (ROWS, DROPPED):
            continue
        _, rows, dropped = found.setdefault(value.step, (value.clock_s, {}, {}))
        if kind == DROPPED:
            dropped[rest] = int(value.value)
        else:
            mixture, _, expert = rest.rpartition(".")
            rows.setdefault(mixture, {})[int(expert)] = int(value.value)
    return [
        (step, clock_s, {m: Load(tuple(by[e] for e in sorted(by)), dropped.get(m, 0)) for m, by in rows.items()})
        for step, (clock_s, rows, dropped) in sorted(found.items())
    ]


def rows_of(stack: str, seed: int, loads: Sequence[tuple[int, float, Loads]]) -> Iterator[Sequence[object]]:
    """Yield the rows of the figure's table."""
    for step, clock_s, each in loads:
        for mixture, load in each.items():
            total = max(1, sum(load.rows))
            for expert, rows in enumerate(load.rows):
                yield stack, seed, mixture, step, clock_s, expert, rows / total, load.imbalance, load.drop_rate


def summary(loads: Sequence[tuple[int, float, Loads]]) -> dict[str, dict[str, float]]:
    """Return by mixture what the last loads come to."""
    last: Loads = loads[-1][2] if loads else {}
    return {name: {IMBALANCE: load.imbalance, DROP_RATE: load.drop_rate} for name, load in last.items()}
