"""Tables and lines are readable at every width, on every terminal, and say all that they were given."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from harness.pages.tables import ANY_WIDTH, Column, markdown_table, print_line, print_table, screen, text_column

ROOT = Path(__file__).parents[3]
COLUMNS = [text_column("mode"), Column("cold\nrows/s", 2), Column("over-\nread", 1), text_column("verdict")]
ROWS = [["mmap-sequential", "1.23M", "1.0x", "equal"], [], ["uring", "45.6k", "-", "not run"]]
CELLS = {cell for row in ROWS for cell in row}


def printed(width: int, columns: list[Column] = COLUMNS, rows: list[list[str]] = ROWS, **more: str) -> str:
    out = io.StringIO()
    print_table(columns, rows, console=Console(file=out, width=width, highlight=False, markup=False), **more)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, ANY_WIDTH])
def test_a_wide_terminal_shows_all(width: int) -> None:
    text = printed(width, title="rows")
    assert all(cell in text for cell in CELLS), text
    assert text.startswith("\nrows\n")
    assert "left out" not in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [28, 32])
def test_columns_go_by_their_rank_and_are_named(width: int) -> None:
    text = printed(width)
    assert "left out, the terminal is" in text
    gone = text.rpartition("wide: ")[2].split()
    assert gone[0] == ("over-read" if width == 32 else "cold")
    assert all(len(line) <= width for line in text.splitlines())
    assert [line.split()[-1] for line in text.splitlines() if "equal" in line] == ["equal"]


@pytest.mark.parametrize("width", [1, 2, 10, 20])
def test_where_no_column_fits_each_cell_has_its_line(width: int) -> None:
    columns = [text_column("mode"), Column("rows", 0), text_column("verdict " * 3)]
    text = printed(width, columns, [["mmap-sequential", "2,048", "equal"]])
    joined = "".join(text.split())
    assert "mmap-sequential" in joined and "rows:2,048" in joined and joined.endswith(":equal")
    if width < 20:  # not broken by us: the terminal does it
        assert "mmap-sequential\n" in text


def test_a_long_name_folds_and_takes_no_column_away() -> None:
    name = f"direct@/{'folder/' * 20}copy.gguf"
    text = printed(60, rows=[[name, "2,048", "1.0x", "equal"]])
    assert "left out" not in text
    lines = text.splitlines()[3:]
    assert "".join(line[:20].strip() for line in lines) == name


def test_an_empty_table_says_so() -> None:
    assert printed(80, rows=[], title="goldens") == "\ngoldens\n(nothing)\n"


def test_columns_without_names_have_no_head() -> None:
    text = printed(40, [text_column(""), text_column("", wrap=True)], [["shards", "one.gguf\ntwo.gguf"], ["rows", "7"]])
    assert text.splitlines()[0].startswith("shards")
    assert [line.strip().split()[-1] for line in text.splitlines()] == ["one.gguf", "two.gguf", "7"]


EVIL = "a\nb\x1b[2Jc\u2028d\x9be\u202ef\udcff[bold]g|h"


def test_no_name_breaks_out() -> None:
    for text in (printed(ANY_WIDTH, rows=[[EVIL, "1", "2", "equal"]]), printed(1, rows=[[EVIL, "1", "2", "equal"]])):
        assert "\\x1b[2Jc\\u2028d\\x9be\\u202ef\\udcff[bold]g|h" in text
        assert not {"\x1b", "\u2028", "\x9b", "\u202e"} & set(text)
    out = io.StringIO()
    print_line(EVIL, Console(file=out, width=20))
    assert "".join(out.getvalue().split()) == r"a\nb\x1b[2Jc\u2028d\x9be\u202ef\udcff[bold]g|h"


def test_markdown_has_the_same_rows() -> None:
    lines = markdown_table(COLUMNS, [*ROWS, ["a|b\nc", "", "", "equal"]])
    assert lines[:2] == ["| mode | cold rows/s | over-read | verdict |", "|---|--:|--:|---|"]
    assert lines[2:4] == ["| mmap-sequential | 1.23M | 1.0x | equal |", "| uring | 45.6k | - | not run |"]
    assert lines[4] == r"| a\|b<br>c |  |  | equal |"


CHILD = """
from harness.pages.tables import Column, print_line, print_table, text_column
print_line("a line of several words that says what was compared " + "word " * 30)
print_table([text_column("mode"), Column("rows", 1), text_column("verdict")], [["mmap", "2,048", "equal"]] * 2)
"""


@pytest.mark.parametrize(
    "environment",
    [{"COLUMNS": "0"}, {"COLUMNS": "1"}, {"COLUMNS": "20"}, {"COLUMNS": "x"}, {"COLUMNS": "-3"}, {"COLUMNS": "1" * 30},
     {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}, {"FORCE_COLOR": "1", "COLUMNS": "1"}],
)  # fmt: skip
def test_something_readable_always(environment: dict[str, str]) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=kept | environment, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    plain = done.stdout.replace("\x1b[32m", "").replace("\x1b[0m", "").replace("\x1b[1m", "")
    assert plain.count("mmap") == 2 and plain.count("equal") == 2 and plain.count("2,048") == 2, done.stdout
    assert ("a line of several words" in plain) == (environment.get("COLUMNS") != "20")


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen().width == ANY_WIDTH
    monkeypatch.setenv("COLUMNS", "33")
    assert screen().width == 33
