"""Runs a command with one system call refused by seccomp: `python -m tests.hostile.seccomp RULE -- COMMAND`.

RULE is `name:ERRNO`, or `name:ERRNO:argument:mask` to refuse the call only where that argument has one of the mask's
bits. The filter is made here, of six instructions; no library is needed.

Source: seccomp(2), and the kernel's linux/filter.h and linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_WORD, _JUMP_EQUAL, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_ARGUMENTS_AT = 16  # in struct seccomp_data: number, architecture, instruction pointer, then six 64-bit arguments

# x86-64, arm64. Calls since Linux 5.1 have the same number everywhere.
_NUMBERS = {
    "clone": (56, 220),
    "fadvise64": (221, 223),
    "fstat": (5, 80),
    "fsync": (74, 82),
    "getrusage": (98, 165),
    "lseek": (8, 62),
    "newfstatat": (262, 79),
    "sched_getaffinity": (204, 123),
    "io_destroy": (207, 1),
    "io_getevents": (208, 4),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "madvise": (28, 233),
    "mincore": (27, 232),
    "mmap": (9, 222),
    "openat": (257, 56),
    "prctl": (157, 167),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "preadv2": (327, 286),
    "readlink": (89, 78),
    "readlinkat": (267, 78),
    "statx": (332, 291),
}
_NEW = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "pidfd_open": 434,
    "clone3": 435,
    "process_madvise": 440,
    "cachestat": 451,
}
_COLUMN = {"x86_64": 0, "aarch64": 1}
SUPPORTED = sys.platform == "linux" and platform.machine() in _COLUMN


def number_of(name: str) -> int:
    """The number of a system call on this machine."""
    return _NEW[name] if name in _NEW else _NUMBERS[name][_COLUMN[platform.machine()]]


def program(rule: str) -> bytes:
    """The filter of a rule, as the kernel reads it: instructions of code, jump if true, jump if false, operand."""
    name, code, *rest = rule.split(":")
    steps = [(_LOAD_WORD, 0, 0, 0), (_JUMP_EQUAL, 0, 3 if rest else 1, number_of(name))]
    if rest:
        steps += [(_LOAD_WORD, 0, 0, _ARGUMENTS_AT + 8 * int(rest[0])), (_JUMP_BITS, 0, 1, int(rest[1], 0))]
    steps += [(_RETURN, 0, 0, _ERRNO | getattr(errno, code)), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def refuse(rule: str) -> None:
    """Install the filter for this process and all that it starts. Raises: OSError."""
    code = program(rule)
    memory = ctypes.create_string_buffer(code)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(memory)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Install the filter and become the command."""
    rule, _, *command = sys.argv[1:]
    refuse(rule)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
