"""Linux system calls that Python does not wrap, through ctypes: each one releases the GIL while it runs.

Every function takes its numbers as they are and returns the kernel's result, or `-errno`: nothing is raised here, so
that callers can tell "not this kernel" from "not this file". `call` is the single door, which tests replace to play a
kernel or a container that forbids something.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4096  # the unit of the counters; a larger kernel page is a multiple of it
LINUX = sys.platform.startswith("linux")

SyscallFunction = Callable[..., int]

# Calls added since 5.0 have one number on every architecture; the kernel AIO calls are older than that rule.
_AIO = {
    "x86_64": {"io_setup": 206, "io_destroy": 207, "io_getevents": 208, "io_submit": 209},
    "aarch64": {"io_setup": 0, "io_destroy": 1, "io_submit": 2, "io_getevents": 4},
    "riscv64": {"io_setup": 0, "io_destroy": 1, "io_submit": 2, "io_getevents": 4},
}
NUMBERS: dict[str, int] = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "pidfd_open": 434,
    "process_madvise": 440,
    "cachestat": 451,
    **_AIO.get(platform.machine(), {}),
}

if LINUX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _syscall = _libc.syscall
    _syscall.argtypes = [ctypes.c_long] * 7
    _syscall.restype = ctypes.c_long
    _madvise = _libc.madvise
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _mincore = _libc.mincore
    _mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def libc() -> ctypes.CDLL:
    """The C library this process runs on."""
    return _libc


def call(name: str, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
    """The system call `name`: its result, or minus the error number. A call this machine lacks is -ENOSYS."""
    number = NUMBERS.get(name) if LINUX else None
    if number is None:
        return -errno.ENOSYS
    result: int = _syscall(number, a, b, c, d, e, f)
    return -ctypes.get_errno() if result < 0 else result


def madvise(address: int, length_bytes: int, advice: int) -> int:
    """madvise(2) on a page-aligned address: 0 or minus the error number."""
    if not LINUX:
        return -errno.ENOSYS
    return -ctypes.get_errno() if _madvise(address, length_bytes, advice) else 0


def mincore(address: int, length_bytes: int, out: npt.NDArray[np.uint8]) -> int:
    """mincore(2): bit 0 of out[i] says whether page i is in memory. 0 or minus the error number."""
    if not LINUX:
        return -errno.ENOSYS
    return -ctypes.get_errno() if _mincore(address, length_bytes, address_of(out)) else 0


def address_of(array: npt.NDArray[Any]) -> int:
    """Address of the array's first byte; three times cheaper than `array.ctypes.data`."""
    address: int = array.__array_interface__["data"][0]
    return address


def explain(code: int) -> str:
    """A negative result as its name and text: `EPERM (Operation not permitted)`."""
    import os

    return f"{errno.errorcode.get(-code, str(-code))} ({os.strerror(-code)})"
