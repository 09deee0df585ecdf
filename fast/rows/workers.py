"""Threads that work through numbered parts of a job, and stay consistent when Ctrl-C hits at any instruction.

The standard library's executors are not safe against that: an interrupt inside one of their semaphores leaves it locked
for good. Here threads meet only in C-implemented queues and list appends, which an interrupt cannot leave half done.
"""

from __future__ import annotations

import _thread
import itertools
import os
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class _Job:
    """One job: its parts are claimed by counting, its results arrive in a queue of its own."""

    def __init__(self, parts: int, work: Callable[[int], Any]) -> None:
        self.parts = parts
        self.work = work
        self.claim = itertools.count()
        self.results: SimpleQueue[Any] = SimpleQueue()
        self.cancelled = False
        self.entered: list[None] = []
        self.left: list[None] = []

    def help(self) -> None:
        """Work on parts until none is left. A thread that enters after `cancelled` was set touches nothing."""
        self.entered.append(None)
        try:
            while not self.cancelled and (part := next(self.claim)) < self.parts:
                try:
                    self.results.put(self.work(part))
                except BaseException as error:
                    self.results.put(_Failure(error))
        finally:
            self.left.append(None)

    def settle(self) -> None:
        """Let nobody start another part and wait until everybody is out."""
        self.cancelled = True
        while len(self.left) < len(self.entered):
            time.sleep(0.0002)


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Workers:
    """Up to `threads` threads, started when first needed, idle in between."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pid = os.getpid()
        self._last: _Job | None = None
        self._start_anew()

    def _start_anew(self) -> None:
        """A queue that no thread serves yet. Its threads will end when these workers are closed or dropped."""
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = 0
        self._end = weakref.finalize(self, self._queue.put, None)

    def run(self, parts: int, work: Callable[[int], Any]) -> list[Any]:
        """work(0..parts-1), spread over the threads; results in any order.

        Returns or raises only when no thread works for this job any more; the first error of a part is raised.
        """
        if self._pid != os.getpid():  # a forked child has none of the threads
            self._pid, self._last = os.getpid(), None
            self._end.detach()
            self._start_anew()
        if self._last is not None:
            self._last.settle()  # an interrupt may have ended even the wait below
        job = self._last = _Job(parts, work)
        try:
            for _ in range(min(parts, self.threads)):
                if self._started < self.threads:
                    # Not threading.Thread: starting one waits on an event, which an interrupt can leave locked.
                    _thread.start_new_thread(_serve, (self._queue,))
                    self._started += 1  # after it: a thread too many, by an interrupt, does no harm, a missing one does
                self._queue.put(job)
            results = [job.results.get() for _ in range(parts)]
        finally:
            job.settle()
        self._last = None
        for result in results:
            if isinstance(result, _Failure):
                raise result.error
        return results

    def close(self) -> None:
        """Let the threads end."""
        self._end()
        self._start_anew()


def _serve(queue: SimpleQueue[_Job | None]) -> None:
    while (job := queue.get()) is not None:
        job.help()
        del job  # an idle thread must not keep a job's memory alive
    queue.put(None)  # for the next thread
