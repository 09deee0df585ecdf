"""The one way to print: tables that keep their answer at any width, and lines that no file name can break out of.

The same columns and rows become a table on a terminal, Markdown for a pull request, and HTML (`harness.pages.html`).
Where a terminal is narrow, whole columns go and are named below the table; where not even the others fit, each row
becomes lines of `column: value`. A pipe or a file has no width: nothing is left out and no line is broken.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

ANY_WIDTH = 10_000
NARROWEST = 20  # a line is not broken into pieces shorter than this: the terminal does that as well
_NAME_WIDTH = 20  # holds the name of every mode; a longer one (MODE@FILE) folds instead of taking columns away
_WRAPPED = 24  # a column of text is worth having from this width on
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
STYLES = {
    "equal": "green", "steady": "", "faster": "green", "different": "bold red", "slower": "bold red",
    "failed": "bold red", "changed": "bold red", "unsteady": "bold magenta", "not run": "yellow", "undecided": "yellow",
}  # fmt: skip
"""Colours of verdicts, wherever a cell is one. The word alone says it too."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    leave_out: the lowest goes first where the terminal is narrow; None: never. justify: numbers to the right.
    wrap: text that may take several lines.
    """

    name: str
    leave_out: int | None = None
    justify: Literal["left", "right"] = "right"
    wrap: bool = False

    @property
    def plain(self) -> str:
        """The name on one line."""
        return self.name.replace("-\n", "-").replace("\n", " ")


Row = Sequence[str]
"""The cells of a row; an empty one is a line between two groups of rows."""


def text_column(name: str, leave_out: int | None = None, *, wrap: bool = False) -> Column:
    """A column of words, to the left."""
    return Column(name, leave_out, "left", wrap)


def printable(text: str) -> str:
    """The text with an escape for all that would move a cursor, break a line or could not be encoded."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def columns_of(stream: TextIO | None) -> int:
    """The width to write for: that of a terminal, or COLUMNS; no limit where there is none, or it is said to be 0."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and (columns := int(given)):
        return min(columns, ANY_WIDTH)
    try:
        return (os.get_terminal_size(stream.fileno()).columns if stream else 0) or ANY_WIDTH
    except (OSError, ValueError):  # a file, a pipe, or closed
        return ANY_WIDTH


def screen(*, stderr: bool = False) -> Console:
    """Where results go (or progress), at the width of the terminal."""
    width = columns_of(sys.stderr if stderr else sys.stdout)
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_line(text: str, console: Console | None = None) -> None:
    """Print one line that is no markup; words are wrapped on a terminal, control characters shown as escapes."""
    console = console or screen()
    console.print(Text(printable(text)), soft_wrap=console.width < NARROWEST or console.width == ANY_WIDTH)


def print_table(
    columns: Sequence[Column], rows: Sequence[Row], *, title: str = "", console: Console | None = None
) -> None:
    """Print a table under its title. The first column is the name, cells are no markup; verdicts get their colours.

    Columns without names print no head. A table without rows says so.
    """
    console = console or screen()
    if title:
        console.print()
        print_line(title.strip(), console)
    if not any(rows):
        print_line("(nothing)", console)
        return
    kept = list(range(len(columns)))
    while (table := _fitting(console, columns, rows, kept)) is None:
        optional = [index for index in kept if columns[index].leave_out is not None]
        if not optional:
            _print_list(console, columns, rows)
            return
        kept.remove(min(optional, key=lambda index: columns[index].leave_out or 0))
    with console.capture() as drawn:
        console.print(table)
    console.file.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))
    gone = [column.plain for index, column in enumerate(columns) if index not in kept]
    if gone:
        print_line(f"left out, the terminal is {console.width} wide: {', '.join(gone)}", console)


def _fitting(console: Console, columns: Sequence[Column], rows: Sequence[Row], kept: Sequence[int]) -> Table | None:
    """The table of these columns, or None where it is too wide."""
    widest = max(_NAME_WIDTH, console.width // 3)
    narrow = _table(columns, rows, kept, widest, _WRAPPED)
    needed = Measurement.get(console, console.options.update(max_width=ANY_WIDTH), narrow).maximum
    return None if needed > console.width else _table(columns, rows, kept, widest, None)


def _table(
    columns: Sequence[Column], rows: Sequence[Row], kept: Sequence[int], name_width: int, text_width: int | None
) -> Table:
    named = any(column.name for column in columns)
    table = Table(box=SIMPLE_HEAD, show_header=named, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index in kept:
        column = columns[index]
        limit = text_width if column.wrap else name_width if index == 0 else None
        folds = column.wrap or index == 0
        overflow: Literal["fold", "ellipsis"] = "fold" if folds else "ellipsis"
        style = None if named or index else "bold"
        table.add_column(
            column.name, justify=column.justify, max_width=limit, no_wrap=not folds, overflow=overflow, style=style
        )
    for row in rows:
        if row:
            table.add_row(*(_cell(row[index]) for index in kept))
        elif table.rows:
            table.add_section()
    return table


def _cell(text: str) -> Text:
    return Text("\n".join(map(printable, text.split("\n"))), style=STYLES.get(text, ""))


def _print_list(console: Console, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    for name, *cells in filter(None, rows):
        print_line(name, console)
        for column, cell in zip(columns[1:], cells, strict=True):
            for part in cell.split("\n"):
                print_line(f"  {column.plain}: {part}" if column.name else f"  {part}", console)


def markdown_table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """The table as lines of Markdown."""

    def line(cells: Sequence[str]) -> str:
        shown = ("<br>".join(map(printable, cell.replace("|", "\\|").split("\n"))) for cell in cells)
        return f"| {' | '.join(shown)} |"

    rule = "".join("|---" if column.justify == "left" else "|--:" for column in columns) + "|"
    return [line([column.plain for column in columns]), rule, *(line(row) for row in rows if row)]
