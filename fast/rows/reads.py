"""A batch of positional reads as arrays, and what becomes of each one: done, short, to be repeated, or an error."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fast.rows.reader import REFUSED, ModeUnavailable
from model_file.errors import InputError

_AGAIN = (-errno.EAGAIN, -errno.EINTR)
MAX_ROUNDS = 10_000  # repeats of reads that make no progress before the batch is given up


@dataclass
class Reads:
    """Read `lengths[i]` bytes at `offsets[i]` of descriptor `files[i]` to memory at `addresses[i]`.

    Units: bytes. `files` is one descriptor or one per read. `owner` is the array the addresses point into: whoever
    holds the reads keeps that memory alive. `needed[i]`, when given, is how many bytes must arrive: an aligned window
    may reach past the end of its file.
    """

    files: npt.NDArray[np.int32] | int
    offsets: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64] | int
    owner: npt.NDArray[np.uint8]
    needed: npt.NDArray[np.int64] | None = None

    @property
    def count(self) -> int:
        """Number of reads."""
        return int(self.offsets.size)

    @property
    def total_bytes(self) -> int:
        """Bytes asked for."""
        return self.lengths * self.count if isinstance(self.lengths, int) else int(self.lengths.sum())

    def subset(self, index: Any) -> Reads:
        """The reads of an index array or slice."""
        return Reads(
            self.files if isinstance(self.files, int) else self.files[index],
            self.offsets[index],
            self.addresses[index],
            self.lengths if isinstance(self.lengths, int) else self.lengths[index],
            self.owner,
            None if self.needed is None else self.needed[index],
        )


@dataclass
class ReadStats:
    """What a batch of reads took. `service_s` sums the seconds each read was in flight."""

    calls: int = 0
    bytes_asked: int = 0
    service_s: float = 0.0


class BatchReader(Protocol):
    """Something that carries out a batch of reads: an io_uring, kernel AIO, or a loop of preads."""

    def read(self, reads: Reads) -> ReadStats:
        """Carry out all of them. Raises: InputError for a file that ends early, OSError, ModeUnavailable."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


def unfinished(reads: Reads, results: npt.NDArray[np.int64]) -> Reads | None:
    """What is left to read after the kernel's results (bytes read, or minus an error number); None when all is there.

    Raises: InputError when a file ended early, OSError for any error but "again".
    """
    expected = reads.lengths if reads.needed is None else reads.needed
    if bool((results >= expected).all()):
        return None
    index = np.flatnonzero(results < expected)
    got = results[index]
    failed = (got < 0) & ~np.isin(got, _AGAIN)
    if failed.any():
        code = int(-got[failed][0])
        at = int(index[failed][0])
        raise OSError(code, f"{os.strerror(code)} reading at byte {int(reads.offsets[at])}", _path_of(reads, at))
    ended = got == 0
    if ended.any():
        at = int(index[ended][0])
        raise InputError(
            f"{_path_of(reads, at)}: a read at byte {int(reads.offsets[at])} found the end of the file, it has "
            f"{os.fstat(_file_of(reads, at)).st_size} bytes: truncated while it was open? "
            "compare its size with the publisher's"
        )
    rest = reads.subset(index)
    done = np.maximum(got, 0)
    rest.offsets = rest.offsets + done
    rest.addresses = rest.addresses + done
    rest.lengths = rest.lengths - done
    if rest.needed is not None:
        rest.needed = rest.needed - done
    return rest


def _file_of(reads: Reads, index: int) -> int:
    return reads.files if isinstance(reads.files, int) else int(reads.files[index])


def _path_of(reads: Reads, index: int) -> str:
    """The file behind a descriptor, by name where the kernel tells."""
    try:
        return str(Path(f"/proc/self/fd/{_file_of(reads, index)}").readlink())
    except OSError:
        return f"descriptor {_file_of(reads, index)}"


class PreadLoop:
    """One pread after the other from Python: works everywhere, 1 us of interpreter per read."""

    def read(self, reads: Reads) -> ReadStats:
        """Carry out all reads in order."""
        started = perf_counter()
        stats = ReadStats()
        left: Reads | None = reads
        rounds = 0
        while left is not None:
            results = np.empty(left.count, np.int64)
            lengths = np.broadcast_to(left.lengths, left.count)
            for i in range(left.count):
                buffer = (ctypes.c_char * int(lengths[i])).from_address(int(left.addresses[i]))
                try:
                    results[i] = os.preadv(_file_of(left, i), [buffer], int(left.offsets[i]))
                except OSError as error:
                    if error.errno in REFUSED:
                        raise ModeUnavailable(f"preadv: {error.strerror}") from error
                    results[i] = -(error.errno or errno.EIO)
            stats.calls += left.count
            stats.bytes_asked += left.total_bytes
            before = left.total_bytes
            left = unfinished(left, results)
            rounds = rounds + 1 if left is not None and left.total_bytes == before else 0
            if rounds > MAX_ROUNDS:
                raise OSError(errno.EAGAIN, "preadv: reads make no progress")
        stats.service_s = perf_counter() - started
        return stats

    def close(self) -> None:
        """Nothing is held."""
