"""Ctrl-C at any instruction, and forks: the reader, the kernel's contexts and the caller's memory stay usable."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fast.rows import MODES, RowSettings, Table, open_rows, syscalls
from fast.rows.io_uring import Ring
from fast.rows.kernel_aio import ContextPool, KernelAio
from fast.rows.reads import Reads
from tests.fast.rows.tables import open_mode, pread_rows

IDS = np.random.default_rng(9).integers(0, 3000, 500)


@pytest.mark.usefixtures("real_ring")
def test_ring_drains_before_an_interrupt_leaves(table: Table) -> None:
    """Ctrl-C between submission and completion: the buffer is not left to the kernel, the next batch is right."""
    armed = True

    def call(name: str, *arguments: int) -> int:
        nonlocal armed
        if name == "io_uring_enter" and armed:
            armed = False
            fd, to_submit, _, flags, *rest = arguments
            syscalls.call(name, fd, to_submit, 0, flags, *rest)
            raise KeyboardInterrupt
        return syscalls.call(name, *arguments)

    ring = Ring(64, call)
    out = np.zeros((50, 90), np.uint8)
    fd = os.open(table.segments[0].path, os.O_RDONLY)
    ids = IDS[:50]
    reads = Reads(fd, table.offsets(ids), syscalls.address_of(out) + np.arange(50) * 90, 90, out)
    with pytest.raises(KeyboardInterrupt):
        ring.read(reads)
    assert ring._flying() == 0
    assert out.tobytes() == pread_rows(table, ids).tobytes()  # every accepted read has completed
    out[:] = 0
    ring.read(reads)
    assert out.tobytes() == pread_rows(table, ids).tobytes()
    ring.close()
    os.close(fd)


@pytest.mark.parametrize(
    ("rows", "settings"),
    [(500, RowSettings(inline_rows=8, workers=2, slice_reads=16)), (48, RowSettings())],
    ids=["by workers", "by the calling thread"],  # only the main thread is interrupted, so both are needed
)
@pytest.mark.parametrize("mode", list(MODES))
def test_interrupts_at_any_moment_leave_a_usable_reader(
    table: Table, mode: str, rows: int, settings: RowSettings
) -> None:
    """A signal handler that raises, 25 times at odd moments of gathers: afterwards every byte is right."""
    ids = IDS[:rows]
    wanted = pread_rows(table, ids).tobytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with open_rows(table, mode, settings) as opened:
            reason = opened.fallback_reason
            interrupted = 0
            for attempt in range(25):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + 13 * attempt % 37))
                    for _ in range(200):
                        opened.gather(ids)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert opened.gather(ids).tobytes() == wanted
            assert interrupted > 10
            assert opened.fallback_reason == reason
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("second", [None, "before io_destroy", "after io_destroy"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["io_submit", "io_getevents"])
@pytest.mark.parametrize("mode", ["direct", "direct-uncached"])
def test_an_interrupt_around_a_kernel_aio_call_spoils_nothing(
    table: Table, mode: str, name: str, moment: str, second: str | None
) -> None:
    """Ctrl-C right before or after a call, and another one while the context is destroyed: the next batch is right."""
    armed: set[str] = set()

    def call(called: str, *arguments: int) -> int:
        if called in armed and (called != "io_destroy" or name not in armed):
            armed.remove(called)
            if (second if called == "io_destroy" else moment).startswith("after"):  # type: ignore[union-attr]
                syscalls.call(called, *arguments)
            raise KeyboardInterrupt
        return syscalls.call(called, *arguments)

    ids = IDS[:48]
    wanted = pread_rows(table, ids).tobytes()
    with open_mode(table, mode, RowSettings(syscall=call)) as opened:
        for _ in range(3):
            armed.update({name, "io_destroy"} if second else {name})
            with pytest.raises(KeyboardInterrupt):
                opened.gather(ids)
            assert not armed
            assert opened.gather(ids).tobytes() == wanted
        assert opened.fallback_reason is None


def test_a_broken_kernel_aio_context_makes_room_for_another() -> None:
    """At the system's limit a thread waits for a context; the one it waits for breaks and never comes back."""
    room = threading.Semaphore(1)

    def call(name: str, *arguments: int) -> int:
        if name == "io_setup" and not room.acquire(blocking=False):
            return -errno.EAGAIN
        result = syscalls.call(name, *arguments)
        if name == "io_destroy":
            room.release()
        return result

    pool = ContextPool(call)
    first = pool.take()
    taken: list[KernelAio] = []
    waiting = threading.Thread(target=lambda: taken.append(pool.take()), daemon=True)
    waiting.start()
    first.close()
    pool.give_back(first)
    waiting.join(timeout=10)
    assert len(taken) == 1
    assert taken[0].usable
    assert taken[0] is not first
    taken[0].close()


def _run_apart(script: str, table: Table) -> None:
    """In a process of its own: the test process has threads of other libraries that a fork would upset."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, pickle.dumps(table).hex()],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_readers_work_in_a_forked_child(table: Table) -> None:
    script = (
        "import os, sys, pickle, numpy as np\n"
        "from fast.rows import MODES, RowSettings, open_rows\n"
        "from tests.fast.rows.tables import pread_rows\n"
        "table = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "ids = np.arange(0, 3000, 5)\n"
        "readers = [open_rows(table, mode, RowSettings(workers=3, slice_reads=16, inline_rows=8)) for mode in MODES]\n"
        "right = lambda: [r.mode for r in readers for i in (ids, ids[:4])\n"
        "                 if r.gather(i).tobytes() != pread_rows(table, i).tobytes()]\n"
        "assert not right()\n"
        "child = os.fork()\n"
        "wrong = right()\n"
        "for r in readers: r.close()\n"
        "if child == 0: os._exit(len(wrong))\n"
        "assert not wrong and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    _run_apart(script, table)


@pytest.mark.parametrize("what", ["gather(ids)", "preload(ids)", "trim()", "close()"])
def test_a_child_forked_while_another_thread_reads_does_not_wait_for_it(table: Table, what: str) -> None:
    """The child has the reader's lock as the fork found it, held, and not the thread that would release it."""
    script = (
        "import os, pickle, sys, threading, time, numpy as np\n"
        "from fast.rows import MODES, RowCache, open_rows\n"
        "table = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "ids = np.arange(0, 3000, 5)\n"
        "readers = [open_rows(table, mode) for mode in MODES] + [RowCache(open_rows(table, 'auto'), 1 << 20)]\n"
        "held, end = threading.Semaphore(0), threading.Event()\n"
        "def hold(reader):\n"
        "    with reader._lock:\n"
        "        held.release()\n"
        "        end.wait()\n"
        "for r in readers: threading.Thread(target=hold, args=(r,)).start()\n"
        "for r in readers: held.acquire()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        f"    for r in readers: r.{what}\n"
        "    os._exit(0)\n"
        "deadline = time.monotonic() + 10\n"
        "while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline: time.sleep(0.01)\n"
        "if not ended[0]: os.kill(child, 9)\n"
        "end.set()\n"
        "sys.exit(ended != (child, 0))\n"
    )
    _run_apart(script, table)
