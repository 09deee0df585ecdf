"""Kernel AIO (io_submit): many positional reads in one system call, for where io_uring is forbidden.

For a buffered file io_submit performs the reads one after the other on the calling thread, exactly like a loop of
pread without the interpreter in between; for O_DIRECT it starts them all and returns. Containers that forbid io_uring
usually allow it.

Buffer lifetime: `read` returns only after every accepted read has completed. Raising, it destroys the context, which
waits for what is in flight: a signal may hit between a system call and the line that counts what it took, so that
nobody can say how many completions are still to come, and a context with some left over would mix up the next batch.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from queue import Empty, SimpleQueue
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.reader import REFUSED, ModeUnavailable
from fast.rows.reads import MAX_ROUNDS, Reads, ReadStats, unfinished

IOCB = np.dtype(
    {
        "names": ["data", "rw_flags", "opcode", "fd", "buf", "nbytes", "offset"],
        "formats": ["u8", "u4", "u2", "u4", "i8", "i8", "i8"],
        "offsets": [0, 12, 16, 20, 24, 32, 40],  # little endian: aio_key comes before aio_rw_flags
        "itemsize": 64,
    }
)
EVENT = np.dtype([("data", "u8"), ("obj", "u8"), ("res", "i8"), ("res2", "i8")])
RWF_NOWAIT = 8
CONTEXT_READS = 256  # reads per io_submit; the system allows 65536 over all contexts
_parked: list[npt.NDArray[np.uint8]] = []  # memory that the kernel may still write to, kept for the rest of the process


class KernelAio:
    """One AIO context; used by one thread at a time.

    Raises: ModeUnavailable when the kernel or a container refuses a context.
    """

    _context = 0
    _owner: npt.NDArray[np.uint8] | None = None  # the memory of the batch under way, None between batches

    def __init__(self, entries: int, call: syscalls.SyscallFunction = syscalls.call) -> None:
        self._call = call
        self.pid = os.getpid()
        self.entries = entries
        context = np.zeros(1, np.uint64)
        result = call("io_setup", entries, syscalls.address_of(context))
        if result < 0:
            raise ModeUnavailable(f"kernel AIO is not available: io_setup: {syscalls.explain(result)}")
        self._context = int(context[0])
        self._iocbs = np.zeros(entries, IOCB)
        self._pointers = syscalls.address_of(self._iocbs) + np.arange(entries, dtype=np.uint64) * IOCB.itemsize
        self._events = np.zeros(entries, EVENT)
        self._nowait = True

    @property
    def usable(self) -> bool:
        """Whether it can carry out another batch: one that was interrupted, or whose batch failed, cannot."""
        return self._context != 0 and self._owner is None

    def read(self, reads: Reads, nowait_first: bool = False) -> ReadStats:
        """Carry out all reads. With `nowait_first`, cached rows are copied and missing ones started in a first pass.

        RWF_NOWAIT does not wait for a page, but starts reading it ahead; the second pass then waits for reads that are
        already in flight together. Nothing depends on that for the bytes, only for the speed.
        `service_s` takes reads that were started together (all of an O_DIRECT batch, the missing ones of the first
        pass) as in flight for half of the time on average.
        """
        stats = ReadStats()
        started = perf_counter()
        left: Reads | None = reads
        rounds = together = 0
        self._owner = reads.owner
        try:
            while left is not None:
                flags = RWF_NOWAIT if nowait_first and self._nowait and not rounds else 0
                results = self._pass(left, flags, stats)
                left = unfinished(left, results)
                if rounds == 0:
                    together = left.count if flags and left is not None else 0 if nowait_first else reads.count
                rounds += 1
                if rounds > MAX_ROUNDS:
                    raise OSError(errno.EAGAIN, "kernel AIO reads make no progress")
        except BaseException:
            self.close()
            raise
        self._owner = None
        stats.service_s += max(1.0, together / 2) * (perf_counter() - started)
        return stats

    def _pass(self, reads: Reads, flags: int, stats: ReadStats) -> npt.NDArray[np.int64]:
        results = np.empty(reads.count, np.int64)
        for start in range(0, reads.count, self.entries):
            part = slice(start, min(start + self.entries, reads.count))
            self._portion(reads.subset(part), flags, results[part], stats)
        stats.bytes_asked += reads.total_bytes
        return results

    def _portion(self, reads: Reads, flags: int, results: npt.NDArray[np.int64], stats: ReadStats) -> None:
        """Submit up to `entries` reads and wait for them; a read the kernel does not take has its error as result."""
        count = reads.count
        iocbs = self._iocbs[:count]
        iocbs["data"] = np.arange(count)
        iocbs["rw_flags"] = flags
        iocbs["fd"] = reads.files
        iocbs["buf"] = reads.addresses
        iocbs["nbytes"] = reads.lengths
        iocbs["offset"] = reads.offsets
        at = flying = 0
        while at < count:
            taken = self._call("io_submit", self._context, count - at, syscalls.address_of(self._pointers) + 8 * at)
            stats.calls += 1
            if taken > 0:
                flying += taken
                at += taken
                if at < count:
                    self._collect(flying, results, stats)
                    flying = 0
                continue
            if -taken in REFUSED:
                raise ModeUnavailable(f"kernel AIO is not available: io_submit: {syscalls.explain(taken)}")
            if flags and -taken in (errno.EOPNOTSUPP, errno.EINVAL):
                self._nowait = False  # this file system cannot say "not cached": every read waits
                results[at:count] = -errno.EAGAIN
                break
            results[at] = taken or -errno.EAGAIN
            at += 1
        self._collect(flying, results, stats)

    def _collect(self, flying: int, results: npt.NDArray[np.int64], stats: ReadStats) -> None:
        """Wait for the reads in flight."""
        while flying:
            got = self._call("io_getevents", self._context, flying, self.entries, syscalls.address_of(self._events), 0)
            stats.calls += 1
            if got == -errno.EINTR:
                continue
            if -got in REFUSED:
                raise ModeUnavailable(f"kernel AIO is not available: io_getevents: {syscalls.explain(got)}")
            if got < 0:
                raise OSError(-got, f"io_getevents: {os.strerror(-got)}")
            if got > flying:
                raise OSError(errno.EIO, f"io_getevents: {got} reads completed, {flying} were in flight")
            flying -= got
            events = self._events[:got]
            results[events["data"]] = events["res"]

    def close(self) -> None:
        """Destroy the context; the kernel waits for what is in flight. A second call does nothing."""
        owner, self._owner = self._owner, None
        context, self._context = self._context, 0
        try:
            if context and self.pid == os.getpid() and self._call("io_destroy", context) < 0 and owner is not None:
                _parked.append(owner)  # nobody has waited for what is in flight
        except BaseException:  # another interrupt, before the call or after it: nobody knows
            if owner is not None:
                _parked.append(owner)
            raise

    def __del__(self) -> None:
        if self._owner is not None:  # interrupted on the way to `close`; idle ones go with the process
            self.close()


class ContextPool:
    """AIO contexts for as many threads as ever read at once, shared by all readers of the process.

    Destroying a context waits for the kernel's grace period (10 ms each), so they are kept until the process ends.
    """

    def __init__(self, call: syscalls.SyscallFunction = syscalls.call) -> None:
        self._call = call
        self._idle: SimpleQueue[KernelAio] = SimpleQueue()
        self._all: weakref.WeakSet[KernelAio] = weakref.WeakSet()
        _pools.add(self)

    def take(self) -> KernelAio:
        """A context nobody else uses; waits for one when the system's limit (fs.aio-max-nr) allows no more.

        Raises: ModeUnavailable when there can be none at all.
        """
        try:  # contextlib.suppress would take 1 us more of every gather
            return self._idle.get_nowait()
        except Empty:
            pass
        while True:
            try:
                context = KernelAio(CONTEXT_READS, self._call)
                self._all.add(context)
                return context
            except ModeUnavailable:
                if not self._all:
                    raise
            with contextlib.suppress(Empty):  # one that breaks is not given back, but makes room for a new one
                return self._idle.get(timeout=0.1)

    def give_back(self, context: KernelAio) -> None:
        """Let somebody else use it; one that cannot be used any more is forgotten."""
        if not context.usable:
            self._all.discard(context)
        elif context.pid == os.getpid():
            self._idle.put(context)

    def close(self) -> None:
        """Destroy the idle contexts; for pools that are not shared."""
        with contextlib.suppress(Empty):
            while True:
                self._idle.get_nowait().close()


_pools: weakref.WeakSet[ContextPool] = weakref.WeakSet()
SHARED = ContextPool()


def _after_fork() -> None:
    """Contexts do not survive a fork."""
    for pool in _pools:
        pool._idle, pool._all = SimpleQueue(), weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
