"""An io_uring driven by NumPy: submission entries are 64-byte records in shared memory, filled by array operations.

Memory ordering. Python cannot issue a barrier, so none may be needed:
- Submission. Without SQPOLL the kernel reads the tail and the entries inside our own io_uring_enter, on our thread; a
  thread sees its own stores in order on every architecture.
- Completion. With SINGLE_ISSUER and DEFER_TASKRUN (kernel 6.1) completions are posted by our own thread inside
  io_uring_enter, again program order. Older kernels post them from other contexts: x86-64 keeps stores, and loads, in
  order, so a tail we see implies its entries; on other architectures `_CQ_NEEDS_ORDER` makes us consume only
  what the kernel itself had counted before the enter that we returned from: the tail is read, then a second enter
  (which waits for nothing) separates that load from the loads of the entries. A compiler cannot reorder: each access is
  a NumPy call.

Buffer lifetime. The kernel writes to the buffers until a read's completion is posted. `read` therefore returns or
raises only after every submitted read has completed (`_drain`); the ring holds references to the caller's arrays
meanwhile, and if even the drain is interrupted (a second Ctrl-C) the ring keeps them, drains before its next batch, and
on `close` parks them for the rest of the process rather than free memory that may still be written to.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import threading
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.reader import REFUSED, ModeUnavailable
from fast.rows.reads import MAX_ROUNDS, Reads, ReadStats, unfinished

SQE = np.dtype(
    {
        "names": ["opcode", "flags", "ioprio", "fd", "off", "addr", "len", "rw_flags", "user_data"],
        "formats": ["u1", "u1", "u2", "i4", "i8", "i8", "u4", "u4", "u8"],
        "offsets": [0, 1, 2, 4, 8, 16, 24, 28, 32],
        "itemsize": 64,
    }
)
CQE = np.dtype([("user_data", "u8"), ("res", "i4"), ("flags", "u4")])
_PARAMS = np.dtype(
    [
        ("sq_entries", "u4"), ("cq_entries", "u4"), ("flags", "u4"), ("idle", "u4", 2),
        ("features", "u4"), ("wq", "u4", 4),
        ("sq", [("head", "u4"), ("tail", "u4"), ("mask", "u4"), ("entries", "u4"), ("flags", "u4"), ("dropped", "u4"),
                ("array", "u4"), ("resv", "u4"), ("user", "u8")]),
        ("cq", [("head", "u4"), ("tail", "u4"), ("mask", "u4"), ("entries", "u4"), ("overflow", "u4"), ("cqes", "u4"),
                ("flags", "u4"), ("resv", "u4"), ("user", "u8")]),
    ]
)  # fmt: skip
_OFF_SQES = 0x10000000
_ENTER_GETEVENTS = 1
_OP_READ = 22
_REGISTER_PROBE = 8
_FEAT_SINGLE_MMAP = 1
# Best first: SINGLE_ISSUER | DEFER_TASKRUN (6.1), COOP_TASKRUN (5.19), none (5.1). A kernel refuses flags it lacks by
# EINVAL.
_SETUP_FLAGS = ((1 << 12) | (1 << 13), 1 << 8, 0)
MAX_ENTRIES = 32_768
_CQ_NEEDS_ORDER = platform.machine() not in ("x86_64", "AMD64", "i686")
_parked: list[Any] = []


class Ring:
    """One io_uring for batches of reads, used by the thread that made it.

    Raises: ModeUnavailable when the kernel, a container or a limit refuses a ring or the read operation.
    """

    def __init__(self, entries: int, call: syscalls.SyscallFunction = syscalls.call) -> None:
        self._call = call
        self.thread = threading.get_ident()
        self.pid = os.getpid()
        self._fd = -1
        self._held: list[Any] = []
        entries = 1 << (min(entries, MAX_ENTRIES) - 1).bit_length()
        self._fd, params, self._deferred = self._setup(entries)
        try:
            self._check_operations()
            self._map(params)
        except BaseException:
            self.close()
            raise

    def _setup(self, entries: int) -> tuple[int, npt.NDArray[Any], bool]:
        result = -errno.EINVAL
        for flags in _SETUP_FLAGS:
            params = np.zeros(1, _PARAMS)
            params["flags"] = flags
            result = self._call("io_uring_setup", entries, syscalls.address_of(params))
            if result != -errno.EINVAL:
                break
        if result < 0:
            reason = {
                errno.ENOSYS: "this kernel has no io_uring",
                errno.EPERM: "io_uring is forbidden here (kernel.io_uring_disabled, or a container's seccomp profile)",
                errno.ENOMEM: "no memory for the ring (raise the memlock limit)",
            }.get(-result, "io_uring_setup failed")
            raise ModeUnavailable(f"{reason}: {syscalls.explain(result)}")
        return result, params, bool(flags & (1 << 13))

    def _check_operations(self) -> None:
        probe = np.zeros(16 + 8 * 64, np.uint8)
        result = self._call("io_uring_register", self._fd, _REGISTER_PROBE, syscalls.address_of(probe), 64)
        if -result in REFUSED:
            raise ModeUnavailable(f"io_uring_register is forbidden here: {syscalls.explain(result)}")
        if result < 0 or probe[0] < _OP_READ or not probe[16 + 8 * _OP_READ + 2] & 1:
            raise ModeUnavailable("this kernel's io_uring has no read operation (it came with Linux 5.6)")

    def _map(self, params: npt.NDArray[Any]) -> None:
        p = params[0]
        self.entries = int(p["sq_entries"])
        cq_entries = int(p["cq_entries"])
        if not int(p["features"]) & _FEAT_SINGLE_MMAP:
            raise ModeUnavailable("this kernel's io_uring maps its rings apart (before Linux 5.4)")
        sq, cq = p["sq"], p["cq"]
        size = max(int(sq["array"]) + 4 * self.entries, int(cq["cqes"]) + CQE.itemsize * cq_entries)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        try:
            self._rings = mmap.mmap(self._fd, size, flags, access)
            self._entries_map = mmap.mmap(self._fd, SQE.itemsize * self.entries, flags, access, offset=_OFF_SQES)
        except OSError as error:
            raise ModeUnavailable(f"the ring cannot be mapped: mmap: {error.strerror}") from error

        def word(offset: Any) -> npt.NDArray[np.uint32]:
            return np.frombuffer(self._rings, np.uint32, 1, int(offset))

        self._sq_head, self._sq_tail = word(sq["head"]), word(sq["tail"])
        self._cq_head, self._cq_tail = word(cq["head"]), word(cq["tail"])
        self._mask, self._cq_mask = self.entries - 1, cq_entries - 1
        # Slot i of the ring is entry i for good; the kernel takes entries in ring order.
        np.frombuffer(self._rings, np.uint32, self.entries, int(sq["array"]))[:] = np.arange(self.entries)
        self._sqes = np.frombuffer(self._entries_map, SQE, self.entries)
        self._sqes[:] = np.zeros((), SQE)
        self._sqes["opcode"] = _OP_READ
        self._cqes = np.frombuffer(self._rings, CQE, cq_entries, int(cq["cqes"]))
        # Field views made once: a structured field access costs as much as filling 16 entries.
        self._fill_fd, self._fill_off = self._sqes["fd"], self._sqes["off"]
        self._fill_addr, self._fill_len = self._sqes["addr"], self._sqes["len"]
        self._fill_user = self._sqes["user_data"]
        self._done_user, self._done_res = self._cqes["user_data"], self._cqes["res"]

    def read(self, reads: Reads, depth: int | None = None) -> ReadStats:
        """Carry out all reads, at most `depth` submitted at a time; short reads and EAGAIN are continued.

        Raises: InputError when a file ends early, OSError for another error of a read, ModeUnavailable when the kernel
        refuses the ring itself.
        """
        self._drain()
        stats = ReadStats()
        left: Reads | None = reads
        rounds = 0
        self._held.append(reads.owner)
        try:
            while left is not None:
                results = self._batch(left, min(depth or self.entries, self.entries), stats)
                before = left.total_bytes
                left = unfinished(left, results)
                rounds = rounds + 1 if left is not None and left.total_bytes == before else 0
                if rounds > MAX_ROUNDS:
                    raise OSError(errno.EAGAIN, "io_uring reads make no progress")
        finally:
            self._drain()
        self._held.clear()
        return stats

    def _batch(self, reads: Reads, depth: int, stats: ReadStats) -> npt.NDArray[np.int64]:
        """Submit every read once and collect its result, in waves refilled when half of the depth has completed."""
        count = reads.count
        results = np.empty(count, np.int64)
        filled = done = 0
        now = perf_counter()
        while done < count:
            room = min(depth - (filled - done), count - filled)
            if room > 0:
                self._fill(reads, filled, filled + room)
                filled += room
            flying = filled - done
            wanted = flying if filled == count else max(1, flying - depth // 2)
            self._enter(wanted, stats)
            completed = self._reap(results)
            done += completed
            then, now = now, perf_counter()
            # Little's law between two looks: on average half of what completed meanwhile was still in flight.
            stats.service_s += (flying - completed / 2) * (now - then)
        stats.bytes_asked += reads.total_bytes
        return results

    def _fill(self, reads: Reads, start: int, stop: int) -> None:
        """Write entries for reads[start:stop] behind the tail, in at most two runs around the end of the ring."""
        tail = int(self._sq_tail[0])
        at = tail & self._mask
        count = stop - start
        while start < stop:
            run = min(stop - start, self.entries - at)
            slots, source = slice(at, at + run), slice(start, start + run)
            self._fill_fd[slots] = reads.files if isinstance(reads.files, int) else reads.files[source]
            self._fill_off[slots] = reads.offsets[source]
            self._fill_addr[slots] = reads.addresses[source]
            self._fill_len[slots] = reads.lengths if isinstance(reads.lengths, int) else reads.lengths[source]
            self._fill_user[slots] = np.arange(start, start + run)
            start += run
            at = 0
        self._sq_tail[0] = (tail + count) & 0xFFFFFFFF

    def _enter(self, wanted: int, stats: ReadStats | None = None) -> None:
        """Submit what is filled and wait until `wanted` completions are there (fewer after a signal)."""
        to_submit = (int(self._sq_tail[0]) - int(self._sq_head[0])) & 0xFFFFFFFF
        result = self._call("io_uring_enter", self._fd, to_submit, wanted, _ENTER_GETEVENTS, 0, 8)
        if stats is not None:
            stats.calls += 1
        # EAGAIN, EBUSY: no memory for requests or completions now; reaping makes room. EINTR: a signal, handled by
        # Python.
        if result < 0 and -result not in (errno.EAGAIN, errno.EBUSY, errno.EINTR):
            if -result in (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EOPNOTSUPP):
                self._forget_unsubmitted()
                raise ModeUnavailable(f"io_uring_enter is forbidden here: {syscalls.explain(result)}")
            raise OSError(-result, f"io_uring_enter: {os.strerror(-result)}")

    def _reap(self, results: npt.NDArray[np.int64] | None) -> int:
        """Take every completion that is there; put each result at its read's place."""
        head, tail = int(self._cq_head[0]), int(self._cq_tail[0])
        count = (tail - head) & 0xFFFFFFFF
        if not count:
            return 0
        if _CQ_NEEDS_ORDER and not self._deferred:
            self._call("io_uring_enter", self._fd, 0, 0, 0, 0, 8)
        at = head & self._cq_mask
        run = min(count, self._cq_mask + 1 - at)
        if results is not None:
            results[self._done_user[at : at + run]] = self._done_res[at : at + run]
            if run < count:
                results[self._done_user[: count - run]] = self._done_res[: count - run]
        # The kernel may reuse the slots only after it sees the new head, which it loads inside our next enter.
        self._cq_head[0] = tail
        return count

    def _forget_unsubmitted(self) -> None:
        """Take back entries the kernel has not consumed: the tail is ours until an enter reads it."""
        self._sq_tail[0] = self._sq_head[0]

    def _flying(self) -> int:
        """Reads the kernel took and we have not reaped. Both counts live in the shared ring: an interrupt between two
        lines of Python cannot leave them apart. One entry makes one completion."""
        return (int(self._sq_head[0]) - int(self._cq_head[0])) & 0xFFFFFFFF

    def _drain(self) -> None:
        """Wait for every read the kernel has accepted; after this nobody writes to the caller's memory."""
        self._forget_unsubmitted()
        while flying := self._flying():
            self._enter(flying)
            self._reap(None)

    def close(self) -> None:
        """Wait for what is in flight and release the ring; memory the kernel may still write to is never freed."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        if self.pid == os.getpid() and "_sq_head" in vars(self) and self._flying():
            if self.thread == threading.get_ident():
                self._fd = fd
                self._drain()
                self._fd = -1
            else:  # only the ring's own thread may wait on it: keep the buffers for the rest of the process
                _parked.extend(self._held)
        self._held = []
        for name in [n for n, v in vars(self).items() if isinstance(v, np.ndarray)]:
            delattr(self, name)
        for name in ("_rings", "_entries_map"):
            mapping = vars(self).pop(name, None)
            if mapping is not None:
                with contextlib.suppress(BufferError):  # a traceback may hold a view: unmapped with that
                    mapping.close()
        os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()
