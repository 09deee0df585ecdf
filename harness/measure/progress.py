"""Progress of a benchmark: what is measured and how long is left; a line now and then where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 60.0


def minutes(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def showing() -> Iterator[Callable[[str, int, int, float | None], None]]:
    """What a `Runner` tells goes to standard error: as a bar on a terminal, else as a line a minute."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
    )
    with bars:
        task = bars.add_task("starting", total=None, left="")

        def tell(text: str, done: int, total: int, left_s: float | None) -> None:
            left = "" if left_s is None else f"{minutes(left_s)} left"
            bars.update(task, description=text, completed=done, total=total, left=left)

        yield tell


def _lines() -> Callable[[str, int, int, float | None], None]:
    told = -LINE_EVERY_S

    def tell(text: str, done: int, total: int, left_s: float | None) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= LINE_EVERY_S:
            told = now
            left = "" if left_s is None else f", {minutes(left_s)} left"
            print(f"{done} of {total} cells{left}: {text}", file=sys.stderr, flush=True)

    return tell
