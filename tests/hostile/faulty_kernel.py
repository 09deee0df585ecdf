"""A kernel that cuts reads short and fails them: real calls, changed on the way in and on the way out.

Reads are cut before they are submitted, so that the bytes behind the cut really do not come. Errors take the place of
results afterwards. It stands between the readers and the kernel as `RowSettings.syscall`, and in place of `os.preadv`.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fast.rows import syscalls
from fast.rows.io_uring import Ring
from fast.rows.kernel_aio import EVENT, IOCB

REAL_PREADV = os.preadv
AGAIN = (-errno.EINTR, -errno.EAGAIN)


class FaultyKernel:
    """`share` of the reads get a fault, drawn by the seed, until `most` were injected.

    cut(length): the bytes that a read of `length` is cut to, at least 1. results: what else a read may end with, minus
    an error number or 0. refused: calls that are answered with EPERM, so that another way of reading is taken.
    """

    def __init__(
        self,
        seed: int,
        share: float,
        cut: Callable[[int], int] | None = None,
        results: Sequence[int] = (),
        refused: Sequence[str] = (),
        most: int = 1 << 60,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._share, self._cut, self._results, self._refused, self._most = share, cut, results, refused, most
        self.injected = 0
        self._rings: dict[int, Ring] = {}

    def _fault(self) -> bool:
        if self.injected >= self._most or self._rng.random() >= self._share:
            return False
        self.injected += 1
        return True

    def _result(self) -> int:
        return int(self._rng.choice(list(self._results)))

    def _cuts(self) -> bool:
        return self._cut is not None and (not self._results or self._rng.random() < 0.5)

    def __call__(self, name: str, *arguments: int) -> int:
        """A system call, as `syscalls.call`."""
        if name in self._refused:
            return -errno.EPERM
        if name == "io_submit":
            self._cut_iocbs(arguments[1], arguments[2])
        if name == "io_uring_enter":
            return self._enter(*arguments)
        result = syscalls.call(name, *arguments)
        if name == "io_getevents" and result > 0 and self._results:
            events = np.frombuffer((ctypes.c_char * (result * EVENT.itemsize)).from_address(arguments[3]), EVENT)
            for index in range(result):
                if events["res"][index] > 0 and self._fault():
                    events["res"][index] = self._result()
        return result

    def _cut_iocbs(self, count: int, pointers: int) -> None:
        if self._cut is None:
            return
        for address in (ctypes.c_uint64 * count).from_address(pointers):
            iocb = np.frombuffer((ctypes.c_char * IOCB.itemsize).from_address(address), IOCB)
            if self._fault():
                iocb["nbytes"] = self._cut(int(iocb["nbytes"][0]))

    def _enter(self, descriptor: int, *rest: int) -> int:
        ring = self._rings.get(descriptor)
        if ring is None:
            found = [o for o in gc.get_objects() if isinstance(o, Ring) and o._fd == descriptor]
            ring = self._rings[descriptor] = found[0]
        if self._cut is not None:
            for place in range(int(ring._sq_head[0]), int(ring._sq_tail[0])):
                slot = place & ring._mask
                if self._fault():
                    ring._fill_len[slot] = self._cut(int(ring._fill_len[slot]))
        before = int(ring._cq_tail[0])
        result = syscalls.call("io_uring_enter", descriptor, *rest)
        if self._results:
            for place in range(before, int(ring._cq_tail[0])):
                slot = place & ring._cq_mask
                if ring._done_res[slot] > 0 and self._fault():
                    ring._done_res[slot] = self._result()
        return result

    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int, *flags: int) -> int:
        """In place of `os.preadv`, for one buffer."""
        if self._fault():
            if self._cuts():
                assert self._cut is not None
                view = memoryview(buffers[0]).cast("B")
                return REAL_PREADV(descriptor, [view[: self._cut(len(view))]], offset, *flags)
            if self._results and (result := self._result()) <= 0:
                if result == 0:
                    return 0
                raise OSError(-result, os.strerror(-result))
        return REAL_PREADV(descriptor, buffers, offset, *flags)
