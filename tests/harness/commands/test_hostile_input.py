"""Input that nobody means well: each is refused with exit code 2 and words that say where it is, never a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from fast.engine.settings import EngineSettings
from fast.rows import locate_table
from fast.rows.dequantize import UNPACKERS
from harness import oracle
from harness.cases.prompts import read_token_file
from harness.cli import app
from harness.gate import whole_table
from harness.gate.batches import random_rows
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.tensors import TABLE
from tests import gguf_edit

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
    command = [sys.executable, "-m", "harness.faults", "--only", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
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


def test_names_are_not_markup(tiny_quant: Path, tmp_path: Path) -> None:
    model = tmp_path / "[bold]q.gguf"
    shutil.copy(tiny_quant, model)
    (tmp_path / "ids").write_text("1 2 3")
    copy = tmp_path / "[bold]copy.gguf"
    shutil.copy(tiny_quant, copy)
    mode = f"mmap@{copy}"
    for command in (("rows", "--no-cold"), ("gate", "--generate", "1")):
        done = run(command[0], model, *command[1:], "--mode", mode, "--tokens", tmp_path / "ids")
        assert done.exit_code == 0, done.output
        assert "[bold]q.gguf" in (flat := "".join(done.output.split())), done.output
        assert "[bold]copy.gguf" in flat, done.output


def test_modes_are_listed_in_a_line_each() -> None:
    done = run("gate", "--list-modes")
    assert done.exit_code == 0
    assert "Reads every row at open." in words(done)
    assert "Raises" not in done.output


HUGE = "99999999999"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("gate", "MODEL", "--tokens", "IDS", "--generate", HUGE, "--mode", "mmap"), "MODEL: has a context of"),
        (("logits", "MODEL", "--tokens", "IDS", "--generate", HUGE, "--out", "OUT"), "MODEL: has a context of"),
        (("bench", "MODEL", "--depth", HUGE, "--out", "OUT"), "MODEL: has a context of"),
        (("rows", "MODEL", "--rows", "99999999999999999"), "--rows 99,999,999,999,999,999"),
        (("bench", "MODEL", "--workload", f"gather:{HUGE}", "--out", "OUT"), f"--workload gather:{HUGE}"),
        (("synth", "table", "--gib", "1e300", "--out", "OUT"), "--gib 1e+300"),
        (("rows", "MODEL", "--prompt", "\udcff\udcfe"), "--prompt 1: character 0 is byte 0xff"),
        (("gate", "MODEL", "--prompt", "a\udcfe"), "--prompt 1: character 1 is byte 0xfe"),
        (("run", "MODEL", "--prompt", "\udcff"), "the prompt: character 0 is byte 0xff"),
        (("rows", "MODEL", "--tokens", "DEEP"), "deep.json: lists in lists in lists"),
        (("rows", "MODEL", "--tokens", "NESTED"), "nested.json: prompt 0: token 0 is [[["),
        (("rows", "MODEL", "--prompt-file", "EMPTY"), "EMPTY: the prompt is empty"),
        (("run", "MODEL", "--tokens", "OUTSIDE"), "OUTSIDE: token 1 is 100000, expected 0.."),
    ],
)
def test_hostile_arguments_are_refused(tiny_quant: Path, tmp_path: Path, command: tuple[str, ...], said: str) -> None:
    contents = {
        "IDS": ("ids", "1 2 3"),
        "DEEP": ("deep.json", "[" * 100_000),
        "NESTED": ("nested.json", "[" * 300 + "1" + "]" * 300),
        "EMPTY": ("empty.txt", ""),
        "OUTSIDE": ("outside", "1 100000"),
    }
    names = {"MODEL": str(tiny_quant), "OUT": str(tmp_path / "out")}
    for name, (file, text) in contents.items():
        (tmp_path / file).write_text(text)
        names[name] = str(tmp_path / file)
    done = run(*(names.get(word, word) for word in command))
    assert done.exit_code == 2, (done.output, done.exception)
    place, colon, rest = said.partition(":")
    assert names.get(place, place) + colon + rest in words(done)
    assert "Traceback" not in done.output


def test_engine_settings_have_an_upper_limit() -> None:
    with pytest.raises(InputError, match=f"context is {HUGE}, expected at most .*; chunk is {HUGE}, expected at most"):
        EngineSettings(context=int(HUGE), chunk=int(HUGE))


def test_a_byte_order_mark_before_ids_is_no_matter(tmp_path: Path) -> None:
    for text in ("[1, 2]", "1 2"):
        (tmp_path / "ids").write_text(text, encoding="utf-8-sig")
        assert read_token_file(tmp_path / "ids") == [[1, 2]]


def test_chunks_longer_than_the_context_are_cut_to_it(tiny_quant: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("1 2 3")
    out = tmp_path / "out.npz"
    chunk = ("--tokens", tmp_path / "ids", "--chunk", HUGE)
    done = run("logits", tiny_quant, *chunk, "--out", out)
    assert done.exit_code == 0, (done.output, done.exception)
    done = run("run", tiny_quant, *chunk, "-n", "2")
    assert done.exit_code == 0, (done.output, done.exception)


def lone_table(path: Path, kind: gguf.GGMLQuantizationType, shape: tuple[int, ...] = (200, 256)) -> Path:
    """A gemma3n file of a table alone, of zeros."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.zeros((*shape[:-1], shape[-1] // block * block_bytes), np.uint8)
    plain = {"I8": np.int8, "I32": np.int32, "F64": np.float64}.get(kind.name)
    keys: gguf_edit.Keys = {"general.architecture": ("gemma3n", gguf.GGUFValueType.STRING, None)}
    return gguf_edit.write(path, keys, {TABLE: (data if plain is None else data.view(plain), kind)})


@pytest.mark.parametrize("kind", ["I8", "Q8_1"])
def test_models_whose_table_nothing_unpacks_are_refused(tiny_quant: Path, tmp_path: Path, kind: str) -> None:
    """`rows` takes such a table, as bytes: `tests/harness/gate/test_scan.py`."""

    def change(_: gguf_edit.Keys, tensors: gguf_edit.Tensors) -> None:
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        data = np.zeros((len(tensors[TABLE][0]), 32 // block * block_bytes), np.uint8)
        tensors[TABLE] = (data.view(np.int8) if kind == "I8" else data, gguf.GGMLQuantizationType[kind])

    path = gguf_edit.edited(tiny_quant, tmp_path / "other.gguf", change)
    for command in (("gate", path, "--generate", "0", "--mode", "mmap"), ("inspect", path)):
        done = run(*command)
        assert done.exit_code == 2, (done.output, done.exception)
        assert f"other.gguf: the table's type is {kind}, expected one of F32," in words(done)


@pytest.mark.parametrize("shape", [(256,), (2, 100, 256)])
def test_inspect_says_that_a_table_of_another_shape_is_none(tmp_path: Path, shape: tuple[int, ...]) -> None:
    done = run("inspect", lone_table(tmp_path / "lone.gguf", gguf.GGMLQuantizationType.F16, shape))
    assert done.exit_code == 2, (done.output, done.exception)
    assert f"has shape {shape}, expected two dimensions" in words(done)
    assert "can be checked" not in words(done)


def test_types_that_the_gate_takes_are_those_with_an_unpacker() -> None:
    assert set(oracle.TABLE_TYPES) == set(UNPACKERS)


def test_a_split_count_that_is_no_number_is_refused(tiny_quant: Path, tmp_path: Path) -> None:
    def change(keys: gguf_edit.Keys, _: gguf_edit.Tensors) -> None:
        keys["split.count"] = ("four", gguf.GGUFValueType.STRING, None)

    done = run("inspect", gguf_edit.edited(tiny_quant, tmp_path / "split.gguf", change))
    assert done.exit_code == 2, (done.output, done.exception)
    assert "split.gguf: split.count: found 'four', expected a whole number" in words(done)


@pytest.mark.parametrize(
    "command",
    [
        ("gate", "--generate", "5000", "--mode", "mmap"),
        ("logits", "--generate", "5000", "--out", "OUT"),
        ("run", "-n", "5000"),
        ("run", "--context", "5000"),
        ("bench", "--depth", "5000", "--out", "OUT"),
    ],
)
def test_no_command_goes_past_the_models_context(tiny_quant: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "ids").write_text("1 2 3")
    ids = () if command[0] == "bench" else ("--tokens", tmp_path / "ids")
    words_given = [str(tmp_path / "out.npz") if word == "OUT" else word for word in command]
    done = run(words_given[0], tiny_quant, *words_given[1:], *ids)
    assert done.exit_code == 2, (done.output, done.exception)
    needed = 7096 if command[0] == "bench" else "5"  # bench: the depth, its longest workload and what is fed before it
    assert f"{tiny_quant}: has a context of 4096 tokens, expected at least the {needed}" in words(done)


@pytest.mark.parametrize(("ids", "chunk", "prompt_tokens"), [("7", 512, 1), ("1 2 3", 1, 3), ("1 2 3", 512, 3)])
def test_run_counts_prompt_and_answer(
    tiny_quant: Path, tmp_path: Path, ids: str, chunk: int, prompt_tokens: int
) -> None:
    (tmp_path / "ids").write_text(ids)
    done = run("run", tiny_quant, "--tokens", tmp_path / "ids", "--chunk", str(chunk), "-n", "3", "--ignore-eos")
    assert done.exit_code == 0, (done.output, done.exception)
    assert f"prompt: {prompt_tokens} tokens" in done.output
    assert "answer: 3 tokens" in done.output
    assert "3 tokens written" in done.output
