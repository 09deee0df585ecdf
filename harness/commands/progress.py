"""Progress on standard error: a spinner with the stage and the time, or bars where a count is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """A spinner that names what is going on; call what it yields with each new stage."""
    with progress() as bars:
        task = bars.add_task("starting", total=None)
        yield lambda text: bars.update(task, description=text)


def progress() -> Progress:
    """Bars on standard error, gone when done, silent where there is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not Console(stderr=True).is_terminal,
    )
