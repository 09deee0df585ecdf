"""Tables that keep their answer on a narrow terminal: whole columns go, the name and the verdict never do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import HEAVY_HEAD, Box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000
_NAME_WIDTH = 20  # holds the name of every mode; a longer one (MODE@FILE) folds instead of taking columns away


@dataclass(frozen=True)
class Column:
    """A column; leave_out: the lowest goes first where the terminal is narrow, None: never. Numbers to the right."""

    name: str
    leave_out: int | None = None
    justify: Literal["left", "right"] = "right"


def print_fitted(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    box: Box = HEAVY_HEAD,
    **look: Any,
) -> None:
    """Print a table, and what was left out for want of width. The first column is the name, cells are never markup."""
    kept = list(range(len(columns)))
    table = _table(console, columns, rows, kept, box, look)
    while _width(console, table) > console.width:
        optional = [index for index in kept if columns[index].leave_out is not None]
        if not optional:
            break
        kept.remove(min(optional, key=lambda index: columns[index].leave_out or 0))
        table = _table(console, columns, rows, kept, box, look)
    console.print(table)
    gone = [columns[index].name.replace("-\n", "-").replace("\n", " ") for index in range(len(columns))]
    gone = [name for index, name in enumerate(gone) if index not in kept]
    if gone:
        console.print(Text(f"left out, the terminal is {console.width} wide: {', '.join(gone)}"))


def _table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Text]],
    kept: Sequence[int],
    box: Box,
    look: dict[str, Any],
) -> Table:
    table = Table(box=box, **look)
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    for index in kept:
        column = columns[index]
        if index == 0:
            widest = max([len(column.name), *(row[index].cell_len for row in cells)])
            limit = max(_NAME_WIDTH, console.width // 3)
            table.add_column(column.name, justify=column.justify, overflow="fold", max_width=min(widest, limit))
        else:
            table.add_column(column.name, justify=column.justify, no_wrap=True)
    for row in cells:
        table.add_row(*(row[index] for index in kept))
    return table


def _width(console: Console, table: Table) -> int:
    """Cells that the table takes where nothing keeps it from it."""
    return Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), table).maximum
