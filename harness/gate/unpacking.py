"""Unpacking: the file's own bytes, and made rows of every table type, as the fast path turns them into numbers.

A wrong byte from a mode is another check's to find. What is right is the `gguf` package's dequantizer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fast.rows import Segment, Table, dequantize
from harness.gate.checks import Finding
from harness.gate.rows import ExpectedRows, Notes, expect_rows
from harness.oracle import TABLE_TYPES, Float32, Packed
from harness.synth.bits import BitStream
from harness.synth.table import row_bytes, table_blocks

PIECE_ROWS = 2048  # unpacked at a time: one program for every batch
MADE_ROWS, MADE_WIDTH = 64, 256


def judge_unpacking(findings: list[Finding], expected: ExpectedRows, table: Table, without: Collection[str]) -> None:
    """The rows that the file holds, on the device."""
    if table.type in TABLE_TYPES and "f32 rows" not in without:
        _judge(findings, expected, table, without, _on_device(expected.packed, table), "")


def judge_types(findings: list[Finding], without: Collection[str]) -> None:
    """Rows of random bits in every type that a table may have, on the device and on the host."""
    with tempfile.TemporaryDirectory(prefix="plegate-types-") as folder:
        for kind in TABLE_TYPES if "f32 rows" not in without else ():
            path, size = Path(folder, f"{kind.name}.table"), row_bytes(kind, MADE_WIDTH)
            path.write_bytes(table_blocks(BitStream("types", 0, kind.name).take(MADE_ROWS * size), kind).tobytes())
            table = Table(kind, MADE_ROWS, MADE_WIDTH, size, (Segment(path, 0, 0, MADE_ROWS),))
            expected = expect_rows(table, np.arange(MADE_ROWS, dtype=np.uint64), "made rows", 0)
            device = np.array(dequantize.dequantize_on_device(expected.packed, type=kind))
            host = dequantize.dequantize_numpy(expected.packed, kind)
            _judge(findings, expected, table, without, device, f"{kind.name}: ")
            _judge(findings, expected, table, without, host, f"{kind.name}, on the host: ")


def _on_device(packed: Packed, table: Table) -> Float32:
    pieces = []
    for start in range(0, len(packed), PIECE_ROWS):
        piece = packed[start : start + PIECE_ROWS]
        padded = np.pad(piece, ((0, PIECE_ROWS - len(piece)), (0, 0)))
        pieces.append(np.array(dequantize.dequantize_on_device(padded, type=table.type))[: len(piece)])
    return np.concatenate(pieces)


def _judge(
    findings: list[Finding],
    expected: ExpectedRows,
    table: Table,
    without: Collection[str],
    unpacked: Float32,
    before: str,
) -> None:
    if table.type.name not in ("F32", "BF16"):
        # Where unpacking computes, a NaN's bits are the hardware's choice; every other value is compared as bits.
        both_nan = np.isnan(unpacked) & np.isnan(expected.f32)
        unpacked[both_nan] = expected.f32[both_nan]
    Notes(findings, expected, table, without).add("f32 rows", "f32", unpacked, expected.f32, before)
