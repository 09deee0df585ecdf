"""Describing a table: where rows lie, and refusals that name file, place, found and expected."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from fast.rows import Segment, Table, locate_table
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from tests.conftest import FIXTURES
from tests.fast.rows.tables import Type, make_table


def test_locate_table_finds_the_fixture_table() -> None:
    with open_gguf(FIXTURES / "tiny-quant.gguf") as opened:
        table = locate_table(opened)
        info = opened.tensors["per_layer_token_embd.weight"]
    assert (table.rows, table.row_width, table.type) == (info.shape[0], info.shape[1], info.type)
    assert table.size_bytes == info.size_bytes
    assert table.segments == (Segment(info.path, info.offset_bytes, 0, table.rows),)


def test_locate_table_names_a_missing_table() -> None:
    with open_gguf(FIXTURES / "tiny.gguf") as opened, pytest.raises(InputError, match="no tensor named absent among"):
        locate_table(opened, "absent")


def test_place_and_offsets_agree_over_segments(tmp_path: Path) -> None:
    table = make_table(tmp_path, rows=(5, 1, 9))
    ids = np.arange(15)
    assert [table.place(i)[1] for i in range(15)] == table.offsets(ids).tolist()
    assert [table.segments.index(table.place(i)[0]) for i in range(15)] == table.segment_of(ids).tolist()
    with pytest.raises(InputError, match="row 15 does not exist, the table has 15 rows"):
        table.place(15)


def test_a_short_file_is_named_with_its_first_missing_row(tmp_path: Path) -> None:
    table = make_table(tmp_path, rows=(50,))
    segment = table.segments[0]
    size = segment.offset_bytes + 41 * 90 + 10
    with segment.path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(
        InputError, match=rf"row 41 ends at byte {segment.offset_bytes + 42 * 90}, file has {size} bytes"
    ):
        Table(Type.IQ4_NL, 50, 160, 90, table.segments)


def test_segments_with_a_gap_are_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path, rows=(5, 6))
    first, second = table.segments
    with pytest.raises(InputError, match="expected the next segment to start at row 5"):
        Table(Type.IQ4_NL, 12, 160, 90, (first, Segment(second.path, second.offset_bytes, 6, 6)))
    with pytest.raises(InputError, match="hold 11 rows, expected 12"):
        Table(Type.IQ4_NL, 12, 160, 90, table.segments)
    with pytest.raises(InputError, match="160 values take 91 bytes"):
        Table(gguf.GGMLQuantizationType.IQ4_NL, 11, 160, 91, table.segments)


def test_offsets_of_large_tables_do_not_wrap(tmp_path: Path) -> None:
    """Flash-Next's table in F16 is 95 GiB: offsets beyond 32 bits, in a sparse file."""
    path = tmp_path / "sparse"
    rows = 320_001_536
    with path.open("wb") as file:
        file.truncate(64 + rows * 320)
        file.seek(64 + (rows - 1) * 320)
        file.write(bytes(range(160)) * 2)
    table = Table(Type.F16, rows, 160, 320, (Segment(path, 64, 0, rows),))
    from fast.rows import MODES, open_rows

    for mode in MODES:
        if mode != "resident":
            with open_rows(table, mode) as reader:
                found = reader.gather(np.array([rows - 1, 0, rows - 1], np.uint64))
            assert found.tobytes() == bytes(range(160)) * 2 + bytes(320) + bytes(range(160)) * 2, mode
