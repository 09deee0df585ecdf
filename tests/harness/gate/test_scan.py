"""`plegate rows --scan`, and tables of every type that GGUF knows, judged as bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from fast.rows import dequantize
from harness.gate.scan import never_written, scan_table
from harness.oracle import TABLE_TYPES
from harness.synth.bits import BitStream
from harness.synth.table import TABLE_MASKS, table_blocks
from model_file.tensors import TABLE
from tests import gguf_edit
from tests.fast.rows.commands import run, table_of
from tests.fast.rows.tables import Type

pytestmark = pytest.mark.hostile
ROWS, WIDTH = 500, 256
EVERY_TYPE = pytest.mark.parametrize("kind", list(gguf.GGML_QUANT_SIZES), ids=lambda kind: kind.name)
DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}


def packed_rows(kind: Type, rows: int = ROWS) -> np.ndarray:
    """Random rows; finite ones of the types that the maker knows."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    size = WIDTH // block * block_bytes
    raw = BitStream("scan", 0, kind.name).take(rows * size)
    return (table_blocks(raw, kind) if kind in TABLE_MASKS else raw).reshape(rows, size)


def model_of(path: Path, kind: Type, packed: np.ndarray) -> Path:
    data = packed.view(DTYPES[kind.name]) if kind.name in DTYPES else packed
    keys: gguf_edit.Keys = {"general.architecture": ("gemma3n", gguf.GGUFValueType.STRING, None)}
    return gguf_edit.write(path, keys, {TABLE: (data, kind)})


def scanned(path: Path, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    done = run("rows", path, "--mode", "mmap", "--no-cold", "--scan", "--json", tmp_path / "r.json", *options)
    return done.exit_code, json.loads((tmp_path / "r.json").read_text())["scan"], " ".join(done.output.split())


@EVERY_TYPE
def test_rows_of_every_type_are_judged_as_bytes(kind: Type, tmp_path: Path) -> None:
    """And one flipped bit is found; of types that nothing here unpacks, the command says so."""
    packed = packed_rows(kind)
    path = model_of(tmp_path / "a.gguf", kind, packed)
    command = ("--mode", "mmap", "--mode", "direct", "--mode", "uring-uncached", "--no-cold", "--rows", "300")
    done = run("rows", path, *command)
    assert done.exit_code == 0, done.output
    assert ("are compared as bytes alone" in " ".join(done.output.split())) == (kind not in TABLE_TYPES)
    packed[ROWS // 2, 1] ^= 1
    copy = model_of(tmp_path / "b.gguf", kind, packed)
    done = run("rows", copy, "--against", path, *command)
    assert done.exit_code == 1, done.output
    assert f"row {ROWS // 2} (at byte {table_of(copy).place(ROWS // 2)[1]} of" in " ".join(done.output.split())


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.IQ4_NL, Type.Q5_1, Type.Q6_K])
@pytest.mark.parametrize("word", ["7c00", "fc00", "7e00", "7c01"], ids=["inf", "-inf", "quiet", "signalling"])
def test_scan_finds_rows_that_are_not_finite(kind: Type, word: str, tmp_path: Path) -> None:
    packed = packed_rows(kind)
    wide = {Type.F32: int(word, 16) << 16, Type.BF16: int(word, 16)}
    if kind in wide:  # the same kinds of value in an exponent of 8 bits
        exponent = {"7c00": 0x7F80, "fc00": 0xFF80, "7e00": 0x7FC0, "7c01": 0x7F81}[word]
        value = (exponent << 16).to_bytes(4, "little") if kind == Type.F32 else exponent.to_bytes(2, "little")
    else:
        value = int(word, 16).to_bytes(2, "little")
    at = 208 if kind == Type.Q6_K else 0
    for row in (123, 400):
        packed[row, at : at + len(value)] = np.frombuffer(value, np.uint8)
    path = model_of(tmp_path / "a.gguf", kind, packed)
    code, found, text = scanned(path, tmp_path)
    assert code == 2, text
    assert (found["not_finite"], found["first_not_finite"], found["sound"]) == (2, 123, False)
    place = table_of(path).place(123)[1]
    assert f"scan: 2 of 500 rows hold NaN or infinity, the first is row 123 (at byte {place} of" in text


MOVED = pytest.mark.parametrize("kind", [Type.F32, Type.BF16], ids=lambda kind: kind.name)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.IQ4_NL], ids=lambda kind: kind.name)
def test_another_nan_is_a_difference(kind: Type, tmp_path: Path) -> None:
    """A quiet one where the file has a signalling one, and one with another payload."""
    words = {Type.F32: ("a07f", "e07f", "a17f"), Type.BF16: ("a07f", "e07f", "a17f")}.get(
        kind, ("107d", "107f", "117d")
    )
    packed, paths = packed_rows(kind), []
    at = 2 if kind == Type.F32 else 0  # the upper half of the first value
    for number, word in enumerate(words):
        packed[0, at : at + 2] = np.frombuffer(bytes.fromhex(word), np.uint8)
        paths.append(model_of(tmp_path / f"{number}.gguf", kind, packed))
    done = run("rows", paths[0], "--mode", "mmap", "--mode", "direct", "--no-cold", "--rows", "50")
    assert done.exit_code == 0, done.output
    for other in paths[1:]:
        done = run("rows", other, "--against", paths[0], "--mode", "mmap", "--no-cold", "--rows", "50")
        assert done.exit_code == 1, done.output
        assert "row 0 (at byte" in " ".join(done.output.split())


@MOVED
def test_a_nan_made_quiet_by_unpacking_is_found(kind: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of types that are moved and not computed with."""
    packed = packed_rows(kind)
    at = 2 if kind == Type.F32 else 0
    packed[:, at : at + 2] = [0xA0, 0x7F]
    path = model_of(tmp_path / "a.gguf", kind, packed)
    command = ("rows", path, "--mode", "mmap", "--no-cold", "--rows", "50")
    assert run(*command).exit_code == 0
    real = dequantize.dequantize_on_device

    def quiet(rows: Any, type: Type) -> np.ndarray:
        found = np.array(real(rows, type=type))
        found.view(np.uint32)[np.isnan(found)] |= 1 << 22
        return found

    monkeypatch.setattr(dequantize, "dequantize_on_device", quiet)
    done = run(*command)
    assert done.exit_code == 1, done.output
    assert "first difference in f32 rows" in " ".join(done.output.split())


def test_scan_counts_rows_of_zeros_and_goes_on(tmp_path: Path) -> None:
    """A scale of zero is a row of zeros, whatever its codes are."""
    packed = packed_rows(Type.IQ4_NL)
    packed[7].reshape(-1, 18)[:, :2] = 0
    packed[9] = 0
    code, found, text = scanned(model_of(tmp_path / "a.gguf", Type.IQ4_NL, packed), tmp_path)
    assert (code, found["zero"], found["first_zero"], found["not_finite"], found["sound"]) == (0, 2, 7, 0, True), text
    assert "scan: 2 of 500 rows are all zero, the first is row 7 (at byte" in text


def test_scan_of_a_type_that_gguf_does_not_unpack_says_so(tmp_path: Path) -> None:
    packed = packed_rows(Type.Q8_K)
    packed[3] = 0
    code, found, text = scanned(model_of(tmp_path / "a.gguf", Type.Q8_K, packed), tmp_path)
    assert (code, found["zero"], found["unpacked"]) == (0, 1, False), text
    assert "NaN and infinity were not looked for" in text


@pytest.mark.parametrize("how", ["hole", "unwritten extent"])
def test_scan_finds_what_was_never_written(how: str, tmp_path: Path) -> None:
    packed = packed_rows(Type.F16, 40_000)
    path = model_of(tmp_path / "a.gguf", Type.F16, packed)
    table = table_of(path)
    middle = table.place(20_000)[1]
    os.truncate(path, middle)
    if how == "hole":
        os.truncate(path, middle + table.size_bytes - 20_000 * table.row_bytes)
    else:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), middle, table.size_bytes - 20_000 * table.row_bytes)
    if not never_written(table):
        pytest.skip(f"the file system of {tmp_path} does not say what was never written")
    code, found, text = scanned(path, tmp_path)
    assert code == 2, text
    lost = 20_000 * table.row_bytes
    # What lies in one folio with the last written byte counts as written where it is in memory.
    assert lost - (1 << 20) <= found["unwritten_bytes"] <= lost
    assert found["zero"] == 20_000
    assert "% of the table was never written (a download that is not finished" in text


def test_scan_reads_in_pieces_and_names_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.gate.scan.BLOCK_BYTES", 7 * 512)
    packed = packed_rows(Type.F16)
    packed[499, :2] = [0, 0x7E]
    packed[13] = 0
    found = scan_table(table_of(model_of(tmp_path / "a.gguf", Type.F16, packed)), [], lambda _: None)
    assert (found.first_not_finite, found.first_zero, found.not_finite, found.zero) == (499, 13, 1, 1)


@pytest.mark.parametrize("command", ["rows", "gate"])
def test_a_difference_comes_before_what_a_scan_found(command: str, tmp_path: Path) -> None:
    if command == "gate":
        assert run("gate", "--scan").exit_code == 2  # it has no such option
        return
    packed = packed_rows(Type.F16)
    original = model_of(tmp_path / "a.gguf", Type.F16, packed)
    packed[0, :2] = [0, 0x7E]
    code, found, text = scanned(model_of(tmp_path / "b.gguf", Type.F16, packed), tmp_path, "--against", str(original))
    assert (code, found["not_finite"]) == (1, 1), text
