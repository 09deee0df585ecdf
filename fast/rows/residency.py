"""What is in memory: page cache residency, eviction with proof, and the size of a mapping in memory."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.table import Ids, Segment, Table, open_read_only

COLD_FRACTION = 0.01  # the protocol's bound: a table counts as cold with at most this share of its pages in memory
_FOLIO_BYTES = 2 << 20
_OVERFLOW_UID = 65_534  # what stat says of owners outside of a container's user namespace
_MINCORE_BYTES = 1 << 30  # pages are asked for in portions of this many mapped bytes: 256 KiB of answers


@dataclass(frozen=True)
class Eviction:
    """How an attempt to make a table cold ended. `resident` is the fraction of its pages in memory afterwards."""

    resident: float
    method: str
    attempts: int

    @property
    def cold(self) -> bool:
        """Whether the strict-cold bound holds."""
        return self.resident <= COLD_FRACTION


def resident_pages(path: Path, start_bytes: int, end_bytes: int) -> npt.NDArray[np.bool_] | None:
    """For every page of the file that holds bytes [start, end): is it in the page cache? None where mincore cannot say.

    The file is mapped for the question; no page is touched, so asking changes nothing.
    """
    if hidden_from_us(path):
        return None
    page = mmap.PAGESIZE
    first, last = start_bytes // page, -(-end_bytes // page)
    answers = np.zeros(last - first, np.uint8)
    fd = open_read_only(path)
    try:
        for start in range(first * page, last * page, _MINCORE_BYTES):
            length = min(_MINCORE_BYTES, last * page - start)
            mapped_bytes = min(length, os.fstat(fd).st_size - start)
            if mapped_bytes <= 0:
                break
            with mmap.mmap(fd, mapped_bytes, prot=mmap.PROT_READ, offset=start) as view:
                address = syscalls.address_of(np.frombuffer(view, np.uint8))
                place = start // page - first
                if syscalls.mincore(address, mapped_bytes, answers[place : place + length // page]) < 0:
                    return None
    finally:
        os.close(fd)
    return (answers & 1).astype(np.bool_)


def hidden_from_us(path: Path) -> bool:
    """Whether mincore answers "in memory" for every page: it does so for a file that we neither own nor may write.

    Source: can_do_mincore in the kernel's mm/mincore.c, a rule against watching other users' programs.
    """
    owner = path.stat().st_uid
    return not (
        owner == os.geteuid()
        or os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        or (os.geteuid() == 0 and owner != _OVERFLOW_UID)  # may act as any owner that its user namespace knows
    )


def cached_pages(path: Path, start_bytes: int, end_bytes: int) -> int | None:
    """Pages of [start, end) in the page cache by one cachestat(2) call (Linux 6.5); None where the kernel refuses."""
    page = mmap.PAGESIZE
    first = start_bytes // page * page
    window = np.array([first, -(-end_bytes // page) * page - first], np.uint64)
    answer = np.zeros(5, np.uint64)
    fd = open_read_only(path)
    try:
        code = syscalls.call("cachestat", fd, syscalls.address_of(window), syscalls.address_of(answer))
    finally:
        os.close(fd)
    return None if code < 0 else int(answer[0])


def resident_fraction(table: Table) -> float:
    """Share of the table's pages in the page cache, by mincore; cachestat where mincore cannot say.

    Raises: OSError when neither can: then nothing may be called cold, or warm.
    """
    total = inside = 0
    for segment in table.segments:
        start, end = _byte_range(table, segment)
        total += -(-end // mmap.PAGESIZE) - start // mmap.PAGESIZE
        pages = resident_pages(segment.path, start, end)
        count = cached_pages(segment.path, start, end) if pages is None else int(np.count_nonzero(pages))
        if count is None:
            raise _not_verified(segment.path)
        inside += count
    return inside / total


def rows_resident(table: Table, ids: Ids) -> npt.NDArray[np.bool_]:
    """For each row: are all its pages in the page cache? One residency map of the table; for tests and reports."""
    answer = np.zeros(ids.size, np.bool_)
    owners = table.segment_of(ids)
    for index, segment in enumerate(table.segments):
        start, end = _byte_range(table, segment)
        pages = resident_pages(segment.path, start, end)
        if pages is None:
            raise _not_verified(segment.path)
        mine = np.flatnonzero(owners == index)
        offsets = table.offsets(ids[mine])
        base = start // mmap.PAGESIZE
        first = offsets // mmap.PAGESIZE - base
        last = (offsets + table.row_bytes - 1) // mmap.PAGESIZE - base
        before = np.concatenate([[0], np.cumsum(pages)])
        answer[mine] = before[last + 1] - before[first] == last + 1 - first
    return answer


def evict(table: Table, margin_bytes: int = 0) -> None:
    """Ask the kernel to drop the table's byte range, and nothing else, from the page cache.

    Pages that some process has mapped and touched, or that are dirty, stay: close readers (or `trim` them) first. A
    `margin_bytes` on both sides also drops large folios (up to 2 MiB) that only partly belong to the table.
    """
    for segment in table.segments:
        start, end = _byte_range(table, segment)
        # Only whole pages inside the range are dropped: widen to the pages that hold its first and last byte.
        start = max(0, start // mmap.PAGESIZE * mmap.PAGESIZE - margin_bytes)
        end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE + margin_bytes
        fd = open_read_only(segment.path)
        try:
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def make_cold(table: Table, drop_caches: bool = False, attempts: int = 3) -> Eviction:
    """The strict-cold protocol: evict, verify, evict again after a sync; then, only when allowed, drop all caches.

    The caller must not hold a touched mapping. The result says whether it worked: `cold` false means that nothing
    measured afterwards may be called cold.
    """
    resident = 1.0
    for attempt in range(1, attempts + 1):
        evict(table, 0 if attempt == 1 else _FOLIO_BYTES)
        resident = resident_fraction(table)
        if resident <= COLD_FRACTION:
            return Eviction(resident, "fadvise", attempt)
        gc.collect()  # a forgotten reader's mapping keeps pages
        for segment in table.segments:  # dirty pages cannot be dropped before they are written
            fd = open_read_only(segment.path)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        time.sleep(0.05 * attempt)
    if drop_caches:
        try:
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("1")
        except OSError:
            return Eviction(resident, "fadvise; drop_caches was refused", attempts)
        return Eviction(resident_fraction(table), "drop_caches", attempts + 1)
    return Eviction(resident, "fadvise", attempts)


def mapping_resident_bytes(address: int) -> int:
    """Rss of the mapping at an address, from `/proc/self/smaps`: what our page tables hold. 0 when absent."""
    inside = False
    with Path("/proc/self/smaps").open("rb") as lines:
        for line in lines:
            head = line.split(b" ", 1)[0]
            if b"-" in head and not head.endswith(b":"):
                start, _, end = head.partition(b"-")
                inside = int(start, 16) <= address < int(end, 16)
            elif inside and line.startswith(b"Rss:"):
                return int(line.split()[1]) * 1024
    return 0


def anonymous_bytes() -> int:
    """Anonymous memory of this process now (RssAnon)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _not_verified(path: Path) -> OSError:
    if hidden_from_us(path):
        owner, user = path.stat().st_uid, os.geteuid()
        return OSError(
            errno.EPERM,
            f"residency cannot be verified: the file belongs to user {owner}, and the kernel hides from user {user}, "
            "who may not write it, what is in memory; run as the file's owner, or on a copy of your own",
            str(path),
        )
    return OSError(
        errno.ENOSYS, "residency cannot be verified: mincore and cachestat are forbidden or missing here", str(path)
    )


def _byte_range(table: Table, segment: Segment) -> tuple[int, int]:
    return segment.offset_bytes, segment.offset_bytes + segment.rows * table.row_bytes
