"""A published table: a CSV file whose rows carry evidence ids. A number's own id is `row id/column`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orch.errors import OrchError, Position, clipped, did_you_mean, quoted
from orch.recipe.source import display

CODE = "E351"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: its id, its cells by column, and where it stands."""

    id: str
    cells: Mapping[str, str]
    where: Position

    def number_id(self, column: str) -> str:
        """Return the evidence id of one of its numbers."""
        return f"{self.id}/{column}"

    def number(self, column: str) -> float | None:
        """Return one of its numbers; None where the paper left the cell empty. Raises OrchError (E351)."""
        text = self.cells[column].strip()
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise OrchError(f"{quoted(text)} in column {column} is no number above 0", code=CODE, where=self.where)
        return value


@dataclass(frozen=True, slots=True)
class Table:
    """A table as read from its file. Comment lines begin with #."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]

    def column(self, name: str, where: Position) -> str:
        """Return `name`. Raises OrchError (E352) at `where` when the table has no such column."""
        if name not in self.columns:
            hint = did_you_mean(name, self.columns) or f"its columns: {', '.join(self.columns)}"
            message = f"{display(self.path)} has no column {quoted(name)}"
            raise OrchError(message, code="E352", where=where, hint=hint)
        return name


def read_table(path: Path, where: Position) -> Table:
    """Return the table in `path`. Raises OrchError (E351), at `where` if there is no such file, else at its line."""
    name = clipped(display(path), 200)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "paths count from the folder of the file that holds them"
        raise OrchError(f"there is no table {quoted(name)}", code=CODE, where=where, hint=hint) from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "it is no text in UTF-8") or str(error)
        raise OrchError(f"the table {quoted(name)} cannot be read: {why}", code=CODE, where=where) from None
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if len(lines) < 2:
        raise OrchError("the table has no rows", code=CODE, where=Position(name), hint="a header, then a row a line")
    columns = tuple(_cells(lines[0][1]))
    at = Position(name, lines[0][0])
    if len(set(columns)) != len(columns) or "id" not in columns:
        fault = "has no column id" if "id" not in columns else "names a column twice"
        raise OrchError(f"the header {fault}", code=CODE, where=at, hint="every row carries an evidence id")
    rows: list[TableRow] = []
    seen: dict[str, int] = {}
    for number, line in lines[1:]:
        cells = _cells(line)
        here = Position(name, number)
        if len(cells) != len(columns):
            message = f"{len(cells)} cells where the header has {len(columns)}"
            raise OrchError(message, code=CODE, where=here)
        row = dict(zip(columns, cells, strict=True))
        if not row["id"] or row["id"] in seen:
            first = f"; it stands in line {seen[row['id']]} too" if row["id"] else ""
            raise OrchError(f"{quoted(row['id'])} is no id of one row{first}", code=CODE, where=here)
        seen[row["id"]] = number
        rows.append(TableRow(row["id"], row, here))
    return Table(path, columns, tuple(rows))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader(io.StringIO(line)))]
