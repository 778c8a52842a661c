"""Profiles kept as two tables a model: `profiles/<model>/modules.csv` and `profiles/<model>/tensors.csv`.

Comment lines on top say what the table is and where it comes from. Modules: name, flops, activation_elements (forward,
one sample), per (`pixel`: grows with the image's area; `sample`: does not), calls, and forward_s, backward_s where they
were measured. Tensors: name, shape (`64x3x7x7`), modules (`a;b` for a tied tensor), ready (place in the gradient-ready
order; empty: never).
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from orch.errors import OrchError, Position
from orch.models.files import read_text
from orch.models.profile import Module, Profile, Tensor

T = TypeVar("T")

PROFILES = Path(__file__).parent / "profiles"
TABLE_IMAGE_SIZE = 224
MODULE_COLUMNS = ("name", "flops", "activation_elements", "per", "calls")
TENSOR_COLUMNS = ("name", "shape", "modules", "ready")
MEASURED_COLUMNS = ("forward_s", "backward_s")


@lru_cache(maxsize=32)
def load(folder: Path) -> Profile:
    """Return the profile kept in `folder`. Raises OrchError (E411) with file and line for a faulty table."""
    table, tensors = _table(folder / "modules.csv", MODULE_COLUMNS), _table(folder / "tensors.csv", TENSOR_COLUMNS)
    flops, elements, calls = (
        table.read("flops", float),
        table.read("activation_elements", float),
        table.read("calls", int),
    )
    times = [table.read_optional(column) for column in MEASURED_COLUMNS]
    modules = tuple(map(Module, table.columns["name"], flops, elements, calls, *times))
    uses = [tuple(cell.split(";")) for cell in tensors.columns["modules"]]
    parameters = tuple(map(Tensor, tensors.columns["name"], tensors.read("shape", _shape), uses))
    ready = sorted(
        (place, t.name) for place, t in zip(tensors.read("ready", _place), parameters, strict=True) if place is not None
    )
    return Profile(folder.name, modules, parameters, tuple(name for _, name in ready), tensors.source)


@lru_cache(maxsize=32)
def at_image_size(folder: Path, image_size: int, table_size: int = TABLE_IMAGE_SIZE) -> Profile:
    """Return a table's profile for square images of `image_size` pixels a side; the table was counted at `table_size`.

    Modules marked `per: pixel` grow with the area, which is exact where convolutions pad and the size is a multiple of
    the model's stride (32 for the residual nets), and within a few percent otherwise.
    """
    profile = load(folder)
    if image_size == table_size:
        return profile
    area = (image_size / table_size) ** 2
    grows = _table(folder / "modules.csv", MODULE_COLUMNS).columns["per"]
    modules = tuple(
        replace(module, flops=module.flops * area, activation_elements=module.activation_elements * area)
        if per == "pixel"
        else module
        for module, per in zip(profile.modules, grows, strict=True)
    )
    return replace(profile, modules=modules)


def save(profile: Profile, folder: Path, *, per_pixel: set[str], title: str) -> None:
    """Write the two tables of `profile`; modules named in `per_pixel` grow with the image."""
    folder.mkdir(parents=True, exist_ok=True)
    place = {name: index for index, name in enumerate(profile.ready_order)}
    measured = MEASURED_COLUMNS if profile.measured else ()
    with (folder / "modules.csv").open("w", newline="") as file:
        file.write(f"# {title}\n# {profile.source}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(MODULE_COLUMNS + measured)
        for m in profile.modules:
            times = [repr(m.forward_s), repr(m.backward_s)] if measured else []
            writer.writerow(
                [
                    m.name,
                    f"{m.flops:.15g}",
                    f"{m.activation_elements:.15g}",
                    "pixel" if m.name in per_pixel else "sample",
                    m.calls,
                    *times,
                ]
            )
    with (folder / "tensors.csv").open("w", newline="") as file:
        file.write(f"# {title}\n# {profile.source}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TENSOR_COLUMNS)
        for t in profile.tensors:
            writer.writerow([t.name, "x".join(map(str, t.shape)), ";".join(t.modules), place.get(t.name, "")])


@dataclass(frozen=True, slots=True)
class _Table:
    """A table's comment (less the title, its first line) and columns; `lines` are the rows' numbers in the file."""

    path: Path
    source: str
    lines: list[int]
    columns: dict[str, tuple[str, ...]]

    def read(self, column: str, kind: Callable[[str], T]) -> list[T]:
        """Return a column as values of `kind`; OrchError names the line of the first cell that is none."""
        cells = self.columns[column]
        try:
            return [kind(cell) for cell in cells]
        except ValueError:
            for line, cell in zip(self.lines, cells, strict=True):
                try:
                    kind(cell)
                except ValueError:
                    raise OrchError(
                        f"{cell!r} is no {column}", code="E411", where=Position(str(self.path), line)
                    ) from None
            raise

    def read_optional(self, column: str) -> list[float | None]:
        """Return a column of numbers whose cells may be empty; all None when the table has no such column."""
        if column not in self.columns:
            return [None] * len(self.lines)
        return self.read(column, lambda cell: float(cell) if cell else None)


def _table(path: Path, columns: tuple[str, ...]) -> _Table:
    try:
        text = read_text(path).splitlines()
    except FileNotFoundError:
        raise OrchError(
            f"there is no table {path.name} in {path.parent}", code="E411", where=Position(str(path))
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise OrchError(f"cannot read the table: {reason}", code="E411", where=Position(str(path))) from None
    comments = [line.lstrip("# ") for line in text if line.startswith("#")]
    body = [(number, line) for number, line in enumerate(text, start=1) if line and not line.startswith("#")]
    # Names hold no commas and no quotes, so splitting is enough, and three times as fast as the csv module.
    header = body[0][1].split(",") if body else []
    missing = [column for column in columns if column not in header]
    if missing:
        where = Position(str(path), body[0][0] if body else 1)
        raise OrchError(
            f"the table has no column {missing[0]!r}; its columns must be {', '.join(columns)}",
            code="E411",
            where=where,
        )
    rows = [line.split(",") for _, line in body[1:]]
    for (number, _), cells in zip(body[1:], rows, strict=True):
        if len(cells) != len(header):
            raise OrchError(
                f"{len(cells)} cells where the header has {len(header)}", code="E411", where=Position(str(path), number)
            )
    by_column: dict[str, tuple[str, ...]] = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else {}
    return _Table(path, " ".join(comments[1:]) or str(path), [number for number, _ in body[1:]], by_column)


def _place(cell: str) -> int | None:
    return int(cell) if cell else None


@lru_cache(maxsize=512)
def _shape(cell: str) -> tuple[int, ...]:
    return tuple(map(int, cell.split("x")))
