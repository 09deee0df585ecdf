"""The table's files opened for positional reads, buffered or past the page cache."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.reader import REFUSED, ModeUnavailable, unless_refused
from fast.rows.table import Ids, Table, check_file_holds, open_read_only

_STATX_DIOALIGN = 0x2000
_AT_EMPTY_PATH = 0x1000


class TableFiles:
    """One descriptor per segment. `align_bytes` is what offsets, lengths and memory must be multiples of (1: anything).

    `refused` says which advice was not taken, or which question not answered; reads give the same bytes without it.

    Raises: ModeUnavailable when `direct` is asked for and the file system refuses O_DIRECT; InputError for a short
    file.
    """

    def __init__(self, table: Table, random: bool = False, direct: bool = False) -> None:
        self.table = table
        self.align_bytes = 1
        self.refused: str | None = None
        self._descriptors: list[int] = []
        flags = getattr(os, "O_DIRECT", 0) if direct else 0
        if direct and not flags:
            raise ModeUnavailable("this platform has no O_DIRECT")
        try:
            for segment in table.segments:
                try:
                    fd = open_read_only(segment.path, flags)
                except OSError as error:
                    if direct and error.errno in (errno.EINVAL, errno.EOPNOTSUPP, *REFUSED):
                        raise ModeUnavailable(
                            f"{segment.path}: the file system refuses O_DIRECT at open: {error.strerror}"
                        ) from error
                    raise
                self._descriptors.append(fd)
                check_file_holds(table, segment, os.fstat(fd).st_size)
                if direct:
                    align_bytes, self.refused = direct_alignment(segment.path, fd)
                    self.align_bytes = max(self.align_bytes, align_bytes)
                elif random and hasattr(os, "posix_fadvise"):
                    self._advise_random(segment.path, fd)
        except BaseException:
            self.close()
            raise
        self._array = np.array(self._descriptors, np.int32)

    def _advise_random(self, path: Path, fd: int) -> None:
        try:
            with unless_refused("posix_fadvise(POSIX_FADV_RANDOM)", path):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        except ModeUnavailable as error:
            self.refused = f"{error}; the kernel may read more around each row than it needs"

    def of_rows(self, ids: Ids) -> npt.NDArray[np.int32] | int:
        """Descriptor of each row: one number when there is one segment."""
        return self._descriptors[0] if len(self._descriptors) == 1 else self._array[self.table.segment_of(ids)]

    def of_segments(self, segments: npt.NDArray[np.intp]) -> npt.NDArray[np.int32] | int:
        """Descriptor of each segment index."""
        return self._descriptors[0] if len(self._descriptors) == 1 else self._array[segments]

    def close(self) -> None:
        """Close every descriptor."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __del__(self) -> None:
        self.close()


def direct_alignment(path: Path, fd: int) -> tuple[int, str | None]:
    """The alignment O_DIRECT needs for this file: statx (Linux 6.1), else the device's logical block, else 4096.

    With it, why statx did not say. Raises: ModeUnavailable when the kernel says that the file cannot be read so.
    """
    refused = None
    if syscalls.LINUX and hasattr(syscalls.libc(), "statx"):
        answer = np.zeros(64, np.uint32)  # struct statx: 256 bytes, the two alignments are words 38 and 39
        place = ctypes.c_void_p(syscalls.address_of(answer))
        if syscalls.libc().statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, place):
            why = syscalls.explain(-ctypes.get_errno())
            refused = f"statx of {path.name}: {why}; the alignment of its reads is its device's block, not its own"
        elif int(answer[0]) & _STATX_DIOALIGN:
            if not answer[39]:
                raise ModeUnavailable(f"{path}: the file system does not support O_DIRECT for this file")
            return max(int(answer[38]), int(answer[39]), 512), None
    device = os.fstat(fd).st_dev
    queue = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for folder in (queue / "queue", queue.resolve().parent / "queue"):  # a partition has its disk's queue
        try:
            return max(512, int((folder / "logical_block_size").read_text())), refused
        except (OSError, ValueError):
            continue
    return syscalls.PAGE_BYTES, refused
