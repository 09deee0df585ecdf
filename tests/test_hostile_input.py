"""Input that nobody means well: each is refused with exit code 2 and words that say where it is, never a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fast.rows import locate_table
from harness.cli import app
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
