"""Input that nobody means well: each is refused with exit code 2 and words that say where it is, never a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fast.rows import locate_table
from harness.cli import app
from harness.fitted_table import Column, print_fitted
from harness.gate import whole_table
from harness.gate.table import random_rows
from reference.gguf_file import open_gguf

runner = CliRunner()


def run(*arguments: str | Path) -> Any:
    return runner.invoke(app, [str(argument) for argument in arguments])


def words(done: Any) -> str:
    return " ".join(done.output.split())


@pytest.mark.parametrize("tokens", ["[-1]", "[999999999]", "[100000000000000000000000000]"])
def test_rows_refuses_ids_outside_the_vocabulary(tiny_quant: Path, tmp_path: Path, tokens: str) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(tokens)
    done = run("rows", tiny_quant, "--tokens", ids, "--mode", "mmap", "--no-cold")
    assert done.exit_code == 2, done.output
    assert f"token 0 is {tokens[1:-1]}, expected 0.." in words(done)


@pytest.mark.parametrize("block_bytes", [8 << 20, 1000])
def test_rows_against_compares_whole_tables(
    tiny_quant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(whole_table, "BLOCK_BYTES", block_bytes)
    with open_gguf(tiny_quant) as opened:
        table = locate_table(opened)
    row = max(set(range(table.rows)) - set(random_rows(table, 100, 1).tolist()) - {table.rows - 1})
    offset = table.place(row)[1]
    copy = tmp_path / "copy.gguf"
    shutil.copy(tiny_quant, copy)
    few = ("--rows", "100", "--mode", "mmap", "--no-cold", "--tokens", tmp_path / "ids", "--json", tmp_path / "r")
    (tmp_path / "ids").write_text("1")
    done = run("rows", copy, "--against", tiny_quant, *few)
    assert done.exit_code == 0, done.output
    assert f"whole tables compared: all {table.rows:,} rows equal" in words(done)
    data = bytearray(copy.read_bytes())
    data[offset + 4] ^= 0x10
    copy.write_bytes(data)
    done = run("rows", copy, "--against", tiny_quant, *few)
    assert done.exit_code == 1, done.output
    whole = json.loads((tmp_path / "r").read_text())["whole_table"]
    found = data[offset + 4]
    assert (whole["different"], whole["row"], whole["byte"], whole["offset_bytes"]) == (1, row, 4, offset)
    assert (whole["found"], whole["expected"]) == (found, found ^ 0x10)
    assert f"1 of {table.rows:,} rows different, first row {row} (at byte {offset} of" in words(done)


def test_rows_says_how_much_of_the_table_it_compared(tiny_quant: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("1")
    done = run("rows", tiny_quant, "--mode", "mmap", "--no-cold", "--rows", "100", "--tokens", tmp_path / "ids")
    with open_gguf(tiny_quant) as opened:
        table = locate_table(opened)
    sampled = np.unique(random_rows(table, 100, 1)).size
    last = words(done).rsplit(";", 1)[-1]
    assert f"of {table.rows:,} rows compared" in last
    assert sampled <= int(last.split()[0].replace(",", "")) <= sampled + 16


def test_mutation_refuses_an_unknown_fault() -> None:
    command = [sys.executable, "-m", "harness.mutation", "--only", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 2, done.stderr
    assert "'nosuch': no such fault, expected one of: nothing planted, flipped bit" in done.stderr
    assert "Traceback" not in done.stderr


def verdict_lines(output: str, modes: Sequence[str], verdict: str) -> set[str]:
    """The modes whose line of the table is there whole, from name to verdict."""
    lines = [line.strip(" │┃").split() for line in output.splitlines()]
    return {line[0] for line in lines if line and line[0] in modes and line[-1] == verdict}


@pytest.mark.parametrize("width", [30, 60, 100])
def test_narrow_terminals_keep_names_and_verdicts(
    tiny_quant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    modes = ["mmap", "mmap-random", "mmap-sequential", "direct-uncached"]
    chosen = [word for mode in modes for word in ("--mode", mode)]
    (tmp_path / "ids").write_text("1 2 3")
    for command in (("rows", "--no-cold"), ("gate", "--generate", "1")):
        done = run(command[0], tiny_quant, *command[1:], *chosen, "--tokens", tmp_path / "ids")
        assert done.exit_code == 0, done.output
        assert verdict_lines(done.output, modes, "equal") == set(modes), done.output
        assert ("left out, the terminal is" in done.output) == (width < 100), done.output
        assert max(map(len, done.output.splitlines())) <= width


def test_a_long_name_folds_and_takes_no_column_away(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"direct@/{'folder/' * 20}copy.gguf"
    columns = [Column("mode", justify="left"), Column("rows", 0), Column("verdict", justify="left")]
    print_fitted(Console(width=60), columns, [[name, "2,048", "equal"]])
    shown = capsys.readouterr().out
    assert "left out" not in shown
    assert name in "".join(line.split("│")[1].strip() for line in shown.splitlines() if "│" in line)


def test_names_are_not_markup(tiny_quant: Path, tmp_path: Path) -> None:
    model = tmp_path / "[bold]q.gguf"
    shutil.copy(tiny_quant, model)
    (tmp_path / "ids").write_text("1 2 3")
    mode = f"mmap@{model}"
    for command in (("rows", "--no-cold"), ("gate", "--generate", "1")):
        done = run(command[0], model, *command[1:], "--mode", mode, "--tokens", tmp_path / "ids")
        assert done.exit_code == 0, done.output
        assert "".join(done.output.split()).count("[bold]q.gguf") == 2, done.output


def test_modes_are_listed_in_a_line_each() -> None:
    done = run("gate", "--list-modes")
    assert done.exit_code == 0
    assert "Reads every row at open." in words(done)
    assert "Raises" not in done.output
