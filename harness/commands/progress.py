"""Progress on standard error: the stage, how much of it is done, and the time; a line a minute without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from harness.pages.numbers import seconds
from harness.pages.tables import printable, screen

LINE_EVERY_S = 60.0
_NARROWEST = 40  # a bar needs this much; a narrower terminal gets lines


class Report(Protocol):
    """What a long piece of work calls. total: 0 where it is not known. left_s: seconds that it will still take."""

    def __call__(self, text: str, done: float = 0, total: float = 0, left_s: float | None = None) -> None: ...


@contextmanager
def stages() -> Iterator[Report]:
    """A spinner or a bar that names what is going on and is gone when it is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = screen(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal or console.width < _NARROWEST:
        yield _lines()
        return
    text, left = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[left]}", markup=False)
    with Progress(
        SpinnerColumn(), text, BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), left,
        console=console, transient=True,
    ) as bars:  # fmt: skip
        task = bars.add_task("starting", total=None, left="")

        def report(text: str, done: float = 0, total: float = 0, left_s: float | None = None) -> None:
            bars.update(task, description=printable(text), completed=int(done), total=total or None, left=_left(left_s))

        yield report


def _left(left_s: float | None) -> str:
    return "" if left_s is None else f"{seconds(left_s)} left"


def _lines() -> Report:
    """Lines on standard error, none in the first minute: what is quick needs none."""
    last = time.monotonic()

    def report(text: str, done: float = 0, total: float = 0, left_s: float | None = None) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            of = f"{done:,.0f} of {total:,.0f}, " if total else ""
            print(
                f"{of}{printable(text)}{', ' if left_s is not None else ''}{_left(left_s)}", file=sys.stderr, flush=True
            )

    return report
