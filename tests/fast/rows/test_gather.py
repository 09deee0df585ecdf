"""Every mode gives the bytes that os.pread gives and the values that gguf gives, for every type and every kind of
batch.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.rows import ALIASES, MODES, RowCache, RowReader, RowSettings, Table, canonical_mode, open_rows
from fast.rows.dequantize import dequantize_numpy
from model_file.errors import InputError
from tests.fast.rows.tables import WIDTHS, make_table, pread_rows

# Few rows already count as a large batch, so that both ways of every mode run on small tables.
SETTINGS = RowSettings(
    inline_rows=8,
    queue_depth=32,
    workers=4,
    slice_reads=16,
    staging_bytes=1 << 16,
    range_pages=2,
    first_chunk_rows=4,
    chunk_rows=64,
)
PAGE = 4096


def open_any(table: Table, mode: str) -> RowReader:
    """A mode of the registry, or a row cache in front of one: `cache+MODE`."""
    if mode.startswith("cache+"):
        return RowCache(
            open_rows(table, mode.removeprefix("cache+"), SETTINGS), budget_bytes=200 * (table.row_bytes + 8)
        )
    return open_rows(table, mode, SETTINGS)


READERS = [*MODES, "cache+uring", "cache+mmap-random"]


@pytest.fixture(params=READERS)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def reader(table: Table, mode: str) -> Iterator[RowReader]:
    with open_any(table, mode) as opened:
        yield opened


def batches(rows: int) -> st.SearchStrategy[list[int]]:
    """Batches with the first and the last row often, duplicates, runs of neighbours, none and many."""
    one = st.one_of(st.integers(0, rows - 1), st.sampled_from([0, 1, rows - 2, rows - 1, 1099, 1100, 1101]))
    run = st.builds(lambda start, size: [min(start + i, rows - 1) for i in range(size)], one, st.integers(1, 40))
    return st.one_of(
        st.lists(one, max_size=60), st.lists(run, max_size=4).map(lambda runs: [i for r in runs for i in r])
    )


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("type", list(WIDTHS), ids=lambda type: type.name)
def test_gather_equals_pread_and_gguf(
    tables: Callable[..., Table], mode: str, type: gguf.GGMLQuantizationType, segments: int
) -> None:
    table = tables(type, segments)
    with open_any(table, mode) as reader:

        @given(batches(table.rows))
        def check(ids: list[int]) -> None:
            wanted = pread_rows(table, np.array(ids, np.int64))
            packed = reader.gather(np.array(ids, np.uint64))
            assert packed.dtype == np.uint8
            assert packed.shape == (len(ids), table.row_bytes)
            assert packed.tobytes() == wanted.tobytes()
            values = dequantize_numpy(packed, type)
            with np.errstate(invalid="ignore"):
                expected = gguf.dequantize(wanted, type) if ids else np.empty((0, table.row_width), np.float32)
            assert values.tobytes() == expected.tobytes()

        check()


def test_gather_returns_100_000_rows_in_order(reader: RowReader) -> None:
    ids = np.random.default_rng(3).integers(0, reader.table.rows, 100_000)
    distinct = pread_rows(reader.table, np.arange(reader.table.rows))
    assert reader.gather(ids).tobytes() == distinct[ids].tobytes()


@pytest.mark.parametrize("type", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16], ids=lambda t: t.name)
def test_gather_takes_neighbours_that_share_blocks_without_end(
    tmp_path: Path, mode: str, type: gguf.GGMLQuantizationType
) -> None:
    """Rows of 640 or 320 bytes from byte 96 on: every two share a block, and all of them exceed the staging memory."""
    table = make_table(tmp_path, type, (5000,))
    ids = np.arange(table.rows)
    assert table.rows * table.row_bytes > SETTINGS.staging_bytes
    with open_any(table, mode) as reader:
        assert reader.gather(ids).tobytes() == pread_rows(table, ids).tobytes()
        if reader.effective_mode == mode and mode.endswith("-uncached"):
            # A block is read twice where the batch was split, and no other.
            align_bytes: int = reader._files.align_bytes  # type: ignore[attr-defined]
            blocks = -(-table.segments[0].path.stat().st_size // align_bytes)
            splits = table.size_bytes // (SETTINGS.staging_bytes - 2 * align_bytes - table.row_bytes) + 1
            assert blocks < reader.last.bytes_asked / align_bytes <= blocks + splits


@pytest.mark.parametrize("count", [0, 1, 8, 9, 300])
def test_gather_takes_batches_around_the_small_one(reader: RowReader, count: int) -> None:
    ids = np.random.default_rng(count).integers(0, reader.table.rows, count)
    assert reader.gather(ids).tobytes() == pread_rows(reader.table, ids).tobytes()


def test_gather_takes_rows_that_cross_a_page(reader: RowReader) -> None:
    table = reader.table
    offsets = table.segments[0].offset_bytes + np.arange(table.rows) * table.row_bytes
    crossing = np.flatnonzero(offsets // PAGE != (offsets + table.row_bytes - 1) // PAGE)
    assert crossing.size > 20
    assert reader.gather(crossing[::-1]).tobytes() == pread_rows(table, crossing[::-1]).tobytes()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint16, ">i8", ">u8"])
def test_gather_takes_any_integer_array(reader: RowReader, dtype: str) -> None:
    wide = np.arange(2 * 200).astype(dtype)
    strided = wide[::2][::-1]
    assert not strided.flags.c_contiguous
    assert reader.gather(strided).tobytes() == pread_rows(reader.table, strided.astype(np.int64)).tobytes()


def test_gather_fills_the_buffer_it_is_given(reader: RowReader) -> None:
    ids = np.array([5, 5, 2999, 0])
    out = np.zeros((4, reader.table.row_bytes), np.uint8)
    assert reader.gather(ids, out) is out
    assert out.tobytes() == pread_rows(reader.table, ids).tobytes()


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((3, 90), np.uint8),
        np.zeros((4, 90), np.int8),
        np.zeros((4, 180), np.uint8)[:, ::2],
        np.broadcast_to(np.zeros(90, np.uint8), (4, 90)),
    ],
    ids=["too few rows", "another dtype", "strided", "read-only"],
)
def test_gather_refuses_a_buffer_that_does_not_fit(reader: RowReader, out: np.ndarray) -> None:
    reader.gather(np.arange(4))
    with pytest.raises(InputError, match=r"expected a writable contiguous uint8\[4, 90\]"):
        reader.gather(np.arange(4), out)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([0, -1]), "row id -1 at position 1 of 2: the table has rows 0 to 2999"),
        (np.array([3000]), "row id 3000 at position 0"),
        (np.array([0, 2**63], np.uint64), "row id 9223372036854775808 at position 1"),
        # 2^64/90 rounded up: the row's offset wraps to a small number in 64-bit arithmetic
        (np.array([204963823041217241], np.uint64), "row id 204963823041217241"),
        (np.array([-(2**63)]), "row id -9223372036854775808"),
        (np.array([1.0]), "dtype float64, expected int64 or uint64"),
        (np.array([True]), "dtype bool"),
        (np.array([[1]]), r"shape \(1, 1\), expected one axis"),
        (np.array(1), r"shape \(\), expected one axis"),
        (np.array(["1"]), "dtype <U1"),
    ],
)
def test_gather_refuses_bad_ids_before_any_arithmetic(reader: RowReader, ids: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        reader.gather(ids)
    assert reader.gather(np.array([7])).tobytes() == pread_rows(reader.table, np.array([7])).tobytes()


def test_gather_after_close_says_so(reader: RowReader) -> None:
    reader.close()
    reader.close()
    with pytest.raises(InputError, match="closed"):
        reader.gather(np.array([1]))


def test_gather_works_from_many_threads_at_once(reader: RowReader) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(10):
            ids = np.random.default_rng([seed, step]).integers(0, reader.table.rows, 5 + 40 * (step % 2))
            if reader.gather(ids).tobytes() != pread_rows(reader.table, ids).tobytes():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_preload_and_trim_change_no_byte(reader: RowReader) -> None:
    ids = np.arange(0, 3000, 7)
    wanted = pread_rows(reader.table, ids).tobytes()
    reader.preload(ids)
    assert reader.gather(ids).tobytes() == wanted
    reader.trim()
    assert reader.gather(ids).tobytes() == wanted
    reader.trim(budget_bytes=16 * PAGE)
    assert reader.gather(ids).tobytes() == wanted


def test_modes_are_those_of_the_readme_in_its_order() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    table = readme.partition("## The access modes")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(MODES)
    assert all(MODES[name].name == name for name in MODES)


def test_aliases_are_those_of_llama_cpp(table: Table) -> None:
    assert {alias: canonical_mode(alias) for alias in [*ALIASES, "auto"]} == {
        "off": "resident",
        "on": "prefetch",
        "on-direct": "direct",
        "auto": "auto",
    }
    with open_rows(table, "on-direct", SETTINGS) as reader:
        assert reader.mode == "direct"
    with pytest.raises(InputError, match="unknown row mode 'fast', expected one of resident, mmap"):
        open_rows(table, "fast")
