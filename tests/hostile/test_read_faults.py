"""Reads that come short, again, or not at all: the right bytes, or an error with file and place, in every mode."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fast.rows import MODES, RowReader, RowSettings, Table, open_rows, syscalls
from model_file.errors import InputError
from tests.fast.rows.tables import make_table, pread_rows
from tests.hostile.conftest import Count
from tests.hostile.faulty_kernel import AGAIN, FaultyKernel

pytestmark = [pytest.mark.hostile, pytest.mark.filterwarnings("ignore::fast.rows.FallbackNotice")]

IDS = np.random.default_rng(11).integers(0, 3000, 400)
NO_AIO = ("io_setup",)
# Each way of reading: a mode, and what is refused so that it is taken.
READING = [name for name, of in MODES.items() if of.own_memory or not of.kernel_view or of.kernel_view.way != "faults"]
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, ()) for name in READING},
    "direct by pread": ("direct", NO_AIO),
    "direct-uncached by pread": ("direct-uncached", NO_AIO),
}
BLOCK = 512  # what O_DIRECT reads are cut to multiples of: others do not come from a kernel


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return make_table(tmp_path_factory.mktemp("faults"))


def settings(kernel: FaultyKernel) -> RowSettings:
    return RowSettings(syscall=kernel, inline_rows=8, workers=3, slice_reads=64, queue_depth=64)


@pytest.fixture(autouse=True)
def _no_row_of_a_large_batch_is_taken_from_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode `auto` reads them then."""
    monkeypatch.setattr(syscalls, "mincore", lambda *_: -errno.EPERM)


def shorter(way: str, to: int | None = None) -> Callable[[int], int]:
    """A cut to `to` bytes, or to a drawn number of them; for windows of O_DIRECT to whole blocks."""
    rng = np.random.default_rng(len(way))

    def cut(length: int) -> int:
        if "uncached" in way:
            return max(BLOCK, int(rng.integers(0, max(1, length // BLOCK))) * BLOCK)
        return min(to, length) if to else int(rng.integers(1, max(2, length)))

    return cut


def open_rows_under(patch: pytest.MonkeyPatch, table: Table, mode: str, kernel: FaultyKernel) -> RowReader:
    patch.setattr(os, "preadv", kernel.preadv)
    return open_rows(table, mode, settings(kernel))


def gather_under(
    table: Table, way: str, kernel: FaultyKernel, monkeypatch: pytest.MonkeyPatch, expected: bytes, times: int = 1
) -> None:
    """Open and gather while faults are injected; the bytes must be right, and memory not read must show."""
    mode, _ = WAYS[way]
    with monkeypatch.context() as patch, open_rows_under(patch, table, mode, kernel) as reader:
        for _ in range(times):
            out = np.full((IDS.size, table.row_bytes), 0xAA, np.uint8)
            assert reader.gather(IDS, out).tobytes() == expected
            assert reader.gather(IDS[:5]).tobytes() == expected[: 5 * table.row_bytes]


@pytest.mark.parametrize("way", WAYS)
def test_reads_that_come_short_or_again_give_the_right_rows(
    table: Table, way: str, monkeypatch: pytest.MonkeyPatch, count: Count
) -> None:
    expected = pread_rows(table, IDS).tobytes()
    again = () if way == "resident" else AGAIN  # Python repeats EINTR itself
    kernel = FaultyKernel(1, 0.9 if way == "resident" else 0.25, shorter(way), again, WAYS[way][1])
    gather_under(table, way, kernel, monkeypatch, expected, 3)
    if way == "resident":  # one read of everything
        assert kernel.injected
    else:
        assert kernel.injected > 60
    count("faults injected into reads: short, EINTR, EAGAIN", kernel.injected)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct", "direct by pread", "uring", "resident"])
def test_a_read_of_every_length_below_a_row_is_continued(
    table: Table, way: str, monkeypatch: pytest.MonkeyPatch, count: Count
) -> None:
    expected = pread_rows(table, IDS).tobytes()
    for length in range(1, table.row_bytes):
        kernel = FaultyKernel(length, 0.02, shorter(way, length), (), WAYS[way][1])
        gather_under(table, way, kernel, monkeypatch, expected)
        count("faults injected into reads: every length from 1", kernel.injected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", [0, errno.EIO, errno.ENOSPC, errno.ENODATA, errno.EBADF])
def test_a_read_that_fails_is_an_error_with_file_and_place(
    table: Table, way: str, code: int, monkeypatch: pytest.MonkeyPatch, count: Count
) -> None:
    """And the next gather, when the disk is well again, gives the right rows."""
    mode, refused = WAYS[way]
    expected = pread_rows(table, IDS).tobytes()
    path = str(table.segments[0].path)
    for seed in range(6):
        kernel = FaultyKernel(seed, 0.02 if way != "resident" else 1, None, (-code,), refused, most=1)
        with monkeypatch.context() as patch:
            if way == "resident":
                with pytest.raises((OSError, InputError)) as caught:
                    open_rows_under(patch, table, mode, kernel)
            else:
                with open_rows_under(patch, table, mode, kernel) as reader:
                    with pytest.raises((OSError, InputError)) as caught:
                        for _ in range(20):
                            reader.gather(IDS)
                    assert reader.gather(IDS).tobytes() == expected
                    assert reader.gather(IDS[:3]).tobytes() == expected[: 3 * table.row_bytes]
                    assert reader.effective_mode == mode
        assert kernel.injected == 1
        count("faults injected into reads: end of file, EIO, ENOSPC, ENODATA, EBADF", 1)
        if code:
            assert isinstance(caught.value, OSError)
            assert (caught.value.errno, caught.value.filename) == (code, path)
            assert "reading at byte " in str(caught.value)
        else:
            assert path in str(caught.value)
            assert "truncated while it was open" in str(caught.value) or "no bytes at" in str(caught.value)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "resident"])
def test_reads_that_never_come_end(table: Table, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN for ever: an error after a bounded number of rounds."""
    from fast.rows import io_uring, kernel_aio, reads

    for module in (io_uring, kernel_aio, reads):
        monkeypatch.setattr(module, "MAX_ROUNDS", 20)
    mode, refused = WAYS[way]
    kernel = FaultyKernel(1, 1, None, (-errno.EAGAIN,), refused)
    monkeypatch.setattr(os, "preadv", kernel.preadv)
    with open_rows(table, mode, settings(kernel)) as reader, pytest.raises(OSError, match="make no progress"):
        reader.gather(IDS[:20])


@pytest.mark.parametrize("way", ["direct by pread", "resident"])
def test_a_read_of_more_than_2_gib_comes_in_parts(
    table: Table, way: str, monkeypatch: pytest.MonkeyPatch, count: Count
) -> None:
    """Linux gives at most 2,147,479,552 bytes a call; here the cap is 1,000, so that a small table meets it."""
    cap = 1000
    calls = []

    def capped(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        view = memoryview(buffers[0]).cast("B")
        calls.append(len(view))
        return real(descriptor, [view[:cap]], offset)

    real = os.preadv
    expected = pread_rows(table, IDS).tobytes()
    monkeypatch.setattr(os, "preadv", capped)
    mode, refused = WAYS[way]
    with open_rows(table, mode, settings(FaultyKernel(0, 0, refused=refused))) as reader:
        assert reader.gather(IDS).tobytes() == expected
    assert calls
    if way == "resident":
        assert len(calls) >= table.size_bytes // cap
    count("reads cut by a cap", len(calls))


def test_the_first_read_is_not_larger_than_a_call_may_be() -> None:
    from fast.rows import resident

    assert resident._PORTION_BYTES < 0x7FFFF000


def test_a_resident_table_that_loses_its_end_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path)
    path = table.segments[0].path
    real = os.preadv

    def cutting(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        os.truncate(path, 50_000)
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", cutting)
    with pytest.raises(InputError, match="truncated"):
        open_rows(table, "resident")
