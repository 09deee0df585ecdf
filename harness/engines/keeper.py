"""Keeps a server: starts it, and ends it with all that it started when plegate ends, however that comes about. Linux.

`python keeper.py FOLDER PROGRAM ARGUMENT...`: standard input is a pipe that plegate holds, and its end, also by a kill
of plegate, is the order to stop. Writes the server's process id, ends as the server does (128 + N by signal N), and
removes FOLDER, a place for the server's own files. It adopts what the server leaves behind (PR_SET_CHILD_SUBREAPER), so
that a child that outlives the server is found and ended too. Nothing of plegate is imported: it starts in 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 8.0
"""A server that is asked to end (SIGTERM) has this long before it is killed."""


def main(folder: str, command: list[str]) -> int:
    """Keep the server until it ends or plegate does; its exit code."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    waking, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # plegate's own end is what counts
    os.mkdir(folder, 0o700)  # noqa: PTH102  here, so that whoever is killed, this one removes it
    server = os.fork()
    if server == 0:
        _become(libc, command)
    os.write(1, b"%d\n" % server)
    os.close(1)
    status = None
    while status is None and 0 not in select.select([0, waking], [], [])[0]:
        with suppress(BlockingIOError):
            os.read(waking, 4096)
        status = _reaped(server)
    if status is None:
        status = _asked_to_end(server)
    _end_all()
    shutil.rmtree(folder, ignore_errors=True)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(libc: ctypes.CDLL, command: list[str]) -> None:
    """The server, which the kernel ends when the keeper is killed."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be run: {error.strerror}\n".encode())
    os._exit(127)


def _reaped(server: int) -> int | None:
    """Take note of every child that has ended; the server's wait status where it is among them."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == server else found
    return found


def _asked_to_end(server: int) -> int:
    os.kill(server, signal.SIGTERM)
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end:
        if (status := _reaped(server)) is not None:
            return status
        time.sleep(0.02)
    os.kill(server, signal.SIGKILL)
    return os.waitpid(server, 0)[1]


def _end_all() -> None:
    """Kill whatever has become our child, until there is none."""
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    mine, found = str(os.getpid()), []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            if file.read().rpartition(b")")[2].split()[1].decode() == mine:
                found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
