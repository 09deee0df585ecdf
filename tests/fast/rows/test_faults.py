"""Modes that are forbidden, files that shrink, calls that do half the work: right bytes, a clear word or an error."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fast.rows import MODES, FallbackNotice, RowReader, RowSettings, Table, open_rows, reader, syscalls, table_files
from fast.rows.auto import AutoReader
from fast.rows.io_uring import Ring
from fast.rows.prefetch import Adviser
from fast.rows.reads import Reads
from model_file.errors import InputError
from tests.fast.rows.tables import make_table, pread_rows

IDS = np.random.default_rng(9).integers(0, 3000, 500)


def refusing(refused: dict[str, int]) -> syscalls.SyscallFunction:
    """The kernel, except that it answers some calls with an error."""

    def call(name: str, *arguments: int) -> int:
        return -refused[name] if name in refused else syscalls.call(name, *arguments)

    return call


def open_quietly(table: Table, mode: str, settings: RowSettings) -> tuple[RowReader, list[str]]:
    """Open a mode, with the notices it gives, as for the first time in a process."""
    reader._announced.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened = open_rows(table, mode, settings)
        assert opened.gather(IDS).tobytes() == pread_rows(table, IDS).tobytes()
        assert opened.gather(IDS[:3]).tobytes() == pread_rows(table, IDS[:3]).tobytes()
    return opened, [str(w.message) for w in caught if w.category is FallbackNotice]


@pytest.mark.parametrize("mode", ["uring", "uring-uncached", "auto"])
@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ({"io_uring_setup": errno.ENOSYS}, "this kernel has no io_uring: ENOSYS"),
        ({"io_uring_setup": errno.EPERM}, "forbidden here (kernel.io_uring_disabled, or a container's seccomp profile"),
        ({"io_uring_setup": errno.ENOMEM}, "memlock"),
        ({"io_uring_register": errno.EINVAL}, "no read operation"),
        ({"io_uring_enter": errno.EPERM}, "io_uring_enter is forbidden here"),
    ],
)
def test_uring_falls_back_to_direct_with_one_notice(
    table: Table,
    mode: str,
    refused: dict[str, int],
    reason: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AutoReader, "_sample_is_resident", lambda *_: False)  # else it has no use for a ring here
    if "io_uring_setup" not in refused:
        request.getfixturevalue("real_ring")
    opened, notices = open_quietly(table, mode, RowSettings(syscall=refusing(refused)))
    with opened:
        assert len(notices) == 1
        assert reason in (opened.fallback_reason or "")
        assert opened.mode == mode
        expected = {"uring": "direct", "uring-uncached": "direct-uncached", "auto": "auto"}[mode]
        assert opened.effective_mode == expected == opened.last.effective_mode
        assert opened.last.fallback_reason == opened.fallback_reason
        if mode == "auto":
            opened.gather(IDS)
            assert opened.last.served_by == "direct"


@pytest.mark.parametrize("mode", ["direct", "direct-uncached", "uring"])
@pytest.mark.parametrize("refused", ["io_setup", "io_submit"])
def test_direct_without_kernel_aio_calls_pread(table: Table, mode: str, refused: str) -> None:
    call = refusing({refused: errno.EPERM, "io_uring_setup": errno.EPERM})
    opened, _ = open_quietly(table, mode, RowSettings(syscall=call))
    with opened:
        assert opened.effective_mode == ("direct-uncached" if mode == "direct-uncached" else "direct")
        assert "kernel AIO is not available" in (opened.fallback_reason or "")


@pytest.mark.parametrize("mode", ["direct-uncached", "uring-uncached"])
def test_o_direct_refused_at_open_falls_back(table: Table, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.open(path, os.O_RDONLY | flags)

    monkeypatch.setattr(table_files, "open_read_only", refuse)
    opened, notices = open_quietly(table, mode, RowSettings())
    with opened:
        assert opened.effective_mode == "direct"
        assert "refuses O_DIRECT at open" in (opened.fallback_reason or "")
        assert notices


@pytest.mark.parametrize("mode", ["direct-uncached", "uring-uncached"])
def test_o_direct_refused_at_the_first_read_falls_back(
    table: Table, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel itself refuses: windows aligned to one byte, as for a device that lied about its blocks."""
    monkeypatch.setattr(table_files, "direct_alignment", lambda *_: (1, None))
    opened, notices = open_quietly(table, mode, RowSettings())
    with opened:
        assert opened.effective_mode == "direct"
        assert "O_DIRECT reads of 1 bytes are refused" in (opened.fallback_reason or "")
        assert notices


def test_an_unalignable_file_system_is_believed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _: int) -> int:
        raise reader.ModeUnavailable(f"{path}: the file system does not support O_DIRECT for this file")

    monkeypatch.setattr(table_files, "direct_alignment", refuse)
    opened, _ = open_quietly(table, "uring-uncached", RowSettings())
    with opened:
        assert opened.effective_mode == "direct"


@pytest.mark.parametrize("refused", [{"process_madvise": errno.EPERM}, {"pidfd_open": errno.ENOSYS}])
def test_prefetch_without_process_madvise_uses_madvise(table: Table, refused: dict[str, int]) -> None:
    opened, _ = open_quietly(table, "prefetch", RowSettings(syscall=refusing(refused), advise_rows=64, range_pages=1))
    with opened:
        opened.gather(IDS)
        assert opened._adviser.method == "madvise"  # type: ignore[attr-defined]
        assert opened.last.read_calls > 10  # one a range


def test_prefetch_without_any_advice_says_that_it_is_mmap_random(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel with larger pages would, which refuses addresses inside one."""
    monkeypatch.setattr(syscalls, "madvise", lambda *_: -errno.EINVAL)
    opened, notices = open_quietly(table, "prefetch", RowSettings(syscall=refusing({"process_madvise": errno.EINVAL})))
    with opened:
        assert len(notices) == 1
        assert "prefetch continues as mmap-random: the kernel takes no advice: madvise: EINVAL" in notices[0]
        assert opened.effective_mode == opened.last.effective_mode == "mmap-random"
        assert opened.last.fallback_reason == opened.fallback_reason


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EAGAIN])
def test_prefetch_goes_on_when_the_advice_of_a_range_is_not_taken(
    table: Table, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syscalls, "madvise", lambda *_: -code)
    opened, notices = open_quietly(table, "prefetch", RowSettings(syscall=refusing({"process_madvise": errno.EPERM})))
    with opened:
        assert (opened.effective_mode, notices) == ("prefetch", [])


def test_prefetch_resumes_after_a_partial_process_madvise() -> None:
    """The kernel may take fewer ranges, and says so in bytes; one it cannot take is left to the page fault."""
    taken: list[tuple[int, int]] = []

    def call(name: str, *arguments: int) -> int:
        if name == "pidfd_open":
            return os.open("/dev/null", os.O_RDONLY)
        _, address, count, _, _ = arguments
        vectors = np.ctypeslib.as_array((syscalls.ctypes.c_int64 * (2 * count)).from_address(address)).reshape(-1, 2)
        if vectors[0, 0] == 5 * 4096:
            return -errno.ENOMEM
        done = vectors[: max(1, count // 3)]
        done = done[: next((i for i, base in enumerate(done[:, 0]) if base == 5 * 4096), None)]
        taken.extend((int(base), int(length)) for base, length in done)
        return int(done[:, 1].sum())

    adviser = Adviser(RowSettings(syscall=call, advise_ranges=7))
    addresses = np.arange(20, dtype=np.int64) * 4096
    adviser.willneed(addresses, np.full(20, 4096, np.int64))
    adviser.close()
    assert taken == [(i * 4096, 4096) for i in range(20) if i != 5]


class Stubborn:
    """A kernel that submits few entries at a time, says EAGAIN and EINTR now and then, and cuts reads short."""

    def __init__(self) -> None:
        self.ring: Ring | None = None
        self.calls = 0
        self.cut = 0

    def __call__(self, name: str, *arguments: int) -> int:
        if name != "io_uring_enter" or self.ring is None:
            return syscalls.call(name, *arguments)
        self.calls += 1
        if self.calls % 5 == 0:
            return -[errno.EAGAIN, errno.EINTR, errno.EBUSY][self.calls // 5 % 3]
        fd, to_submit, _, flags, *rest = arguments
        submitted = min(to_submit, 3)
        before = int(self.ring._cq_tail[0])
        result = syscalls.call(name, fd, submitted, min(submitted, 1), flags, *rest)
        for place in range(before, int(self.ring._cq_tail[0])):
            slot = place & self.ring._cq_mask
            if place % 3 == 0 and self.ring._done_res[slot] > 7:
                self.ring._done_res[slot] = [7, -errno.EAGAIN, -errno.EINTR][place // 3 % 3]
                self.cut += 1
        return result


@pytest.mark.usefixtures("real_ring")
def test_ring_survives_partial_submission_short_reads_and_again(table: Table) -> None:
    kernel = Stubborn()
    ring = Ring(16, kernel)
    kernel.ring = ring
    out = np.zeros((IDS.size, 90), np.uint8)
    fd = os.open(table.segments[0].path, os.O_RDONLY)
    places = syscalls.address_of(out) + np.arange(IDS.size, dtype=np.int64) * 90
    stats = ring.read(Reads(fd, table.offsets(IDS), places, 90, out))
    assert out.tobytes() == pread_rows(table, IDS).tobytes()
    assert kernel.cut > 50
    assert stats.bytes_asked > out.nbytes  # the rest of cut reads was asked for again
    ring.close()
    os.close(fd)


@pytest.mark.usefixtures("real_ring")
def test_ring_reports_an_error_of_one_read_with_its_place(table: Table) -> None:
    ring = Ring(8)
    out = np.zeros((2, 90), np.uint8)
    fd = os.open(table.segments[0].path, os.O_WRONLY)  # not opened for reading: EBADF
    with pytest.raises(OSError, match="reading at byte 96") as caught:
        ring.read(Reads(fd, np.array([96, 200]), syscalls.address_of(out) + np.array([0, 90]), 90, out))
    assert caught.value.errno == errno.EBADF
    assert ring._flying() == 0
    ring.close()
    os.close(fd)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "resident"])
def test_a_file_cut_while_open_is_an_error_that_names_it(tmp_path: Path, mode: str) -> None:
    table = make_table(tmp_path)
    path = table.segments[0].path
    content = path.read_bytes()
    with open_rows(table, mode, RowSettings(inline_rows=8)) as opened:
        for ids in (np.array([2999]), np.arange(2900, 3000)):
            opened.gather(np.arange(5))
            with path.open("r+b") as file:
                file.truncate(len(content) // 2)
            with pytest.raises(InputError, match=r"IQ4_NL-0\.table: .*truncated"):
                opened.gather(ids)
            path.write_bytes(content)
            assert opened.gather(ids).tobytes() == pread_rows(table, ids).tobytes()


def test_a_mode_without_enough_memory_says_what_to_do(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from fast.rows import resident

    monkeypatch.setattr(resident, "available_bytes", lambda: 1000)
    with pytest.raises(
        InputError, match=r"mode resident needs 0\.00 GiB of memory, 0\.00 GiB are available: use mode auto"
    ):
        open_rows(table, "resident")


def test_settings_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="queue_depth is 0, expected at least 1; inline_rows is -1"):
        RowSettings(queue_depth=0, inline_rows=-1)


def test_a_failed_open_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fast.rows.tables import open_descriptors

    table = make_table(tmp_path)
    broken: Callable[..., Any] = lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))  # noqa: E731
    monkeypatch.setattr(table_files, "check_file_holds", broken)
    before = open_descriptors()
    for mode in ("direct", "uring", "direct-uncached", "uring-uncached", "auto"):
        with pytest.raises(OSError, match="broken"):
            open_rows(table, mode)
    assert open_descriptors() <= before + 1  # a ring of this thread may wait for the collector
