"""Which pages of a table the kernel was told to read, as the results of the system calls say, not the mode.

Advice names addresses. /proc/self/smaps says which page of which file lies at an address, so that what was advised can
be compared with the pages that a batch's rows lie on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fast.rows import Table, syscalls
from fast.rows.mapped import MADV_WILLNEED
from fast.rows.syscalls import PAGE_BYTES

Range = tuple[int, int]
"""An address, and the bytes from there on that the kernel took the advice for."""
Page = tuple[str, int]
"""A file, and the number of one of its pages."""


@dataclass(frozen=True)
class Place:
    """A mapping of one of the table's files: addresses from start to end, which show the file from offset_bytes on."""

    path: str
    start: int
    end: int
    offset_bytes: int


def taken_ranges(result: int, arguments: Sequence[int]) -> list[Range]:
    """What one process_madvise did: of the ranges it was given, those that its result, a number of bytes, reaches."""
    _, vectors, count, advice, *_ = arguments
    if result <= 0 or advice != MADV_WILLNEED:
        return []
    numbers = (ctypes.c_int64 * (2 * count)).from_address(vectors)
    ranges = []
    for address, length in zip(numbers[::2], numbers[1::2], strict=True):
        ranges.append((address, min(length, result)))
        result -= length
        if result <= 0:
            break
    return ranges


@contextmanager
def watching_madvise(ranges: list[Range]) -> Iterator[None]:
    """Note in `ranges` what madvise is called for and takes, while this lasts.

    At the C library's own function, under everything that a mode could leave out.
    """
    if not syscalls.LINUX:
        yield
        return
    original = syscalls._madvise

    def noting(address: int, length_bytes: int, advice: int) -> int:
        result: int = original(address, length_bytes, advice)
        if result == 0 and advice == MADV_WILLNEED:
            ranges.append((address, length_bytes))
        return result

    syscalls._madvise = noting  # type: ignore[assignment]
    try:
        yield
    finally:
        syscalls._madvise = original


def pages_of(table: Table, rows: Iterable[int]) -> set[Page]:
    """The pages that hold a byte of these rows."""
    pages: set[Page] = set()
    for row in rows:
        segment, offset = table.place(row)
        last = (offset + table.row_bytes - 1) // PAGE_BYTES
        pages |= {(str(segment.path.resolve()), page) for page in range(offset // PAGE_BYTES, last + 1)}
    return pages


def advised_pages(ranges: Iterable[Range], places: Sequence[Place]) -> set[Page]:
    """The whole pages under these ranges; what lies in no mapping of the table is none of its pages."""
    pages: set[Page] = set()
    for address, length in ranges:
        place = next((place for place in places if place.start <= address < place.end), None)
        if place is not None:
            first = address - place.start + place.offset_bytes
            pages |= {(place.path, page) for page in range(first // PAGE_BYTES, (first + length) // PAGE_BYTES)}
    return pages
