"""Mode `resident`: the whole table in memory of our own, the baseline all others are compared with."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows.counters import GatherCounters
from fast.rows.reader import KernelView, ModeCannotRun, PackedRows, RowReader, unless_refused
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Segment, Table, check_file_holds, open_read_only
from model_file.errors import InputError

_PORTION_BYTES = 64 << 20  # per readinto, so that Ctrl-C is answered while a large table loads


class ResidentReader(RowReader):
    """Reads every row at open. Raises: ModeCannotRun when the table does not fit into the available memory."""

    name = "resident"
    alias = "off"
    own_memory = True
    kernel_view = KernelView("none", None, "faults")

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._rows: PackedRows | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        available = available_bytes()
        if available is not None and self.table.size_bytes > available:
            raise ModeCannotRun(
                f"{self.table.segments[0].path}: mode resident needs {self.table.size_bytes / 2**30:.2f} GiB of "
                f"memory, {available / 2**30:.2f} GiB are available: use mode auto, which reads rows when needed"
            )
        rows = np.empty((self.table.rows, self.table.row_bytes), np.uint8)
        for segment in self.table.segments:
            part = rows[segment.first_row : segment.first_row + segment.rows].reshape(-1)
            fd = open_read_only(segment.path)
            try:
                check_file_holds(self.table, segment, os.fstat(fd).st_size)
                done = 0
                while done < part.size:
                    got = self._portion(segment, fd, part, done)
                    if not got:
                        check_file_holds(self.table, segment, os.fstat(fd).st_size)
                        raise InputError(
                            f"{segment.path}: no bytes at {segment.offset_bytes + done}, expected table rows"
                        )
                    done += got
            finally:
                os.close(fd)
        self._rows = rows

    def _portion(self, segment: Segment, fd: int, part: npt.NDArray[np.uint8], done: int) -> int:
        """Read the next bytes of a segment; how many came."""
        offset = segment.offset_bytes + done
        with unless_refused("preadv", segment.path):
            try:
                return os.preadv(fd, [part[done : done + _PORTION_BYTES].data], offset)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} reading at byte {offset}", str(segment.path)) from None

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._rows is not None
        started = perf_counter()
        self._rows.take(ids, axis=0, out=out, mode="clip")
        counters.copy_s += perf_counter() - started

    def _close(self) -> None:
        self._rows = None


def available_bytes() -> int | None:
    """Memory the kernel says can be had without swapping; None where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
