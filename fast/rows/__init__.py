"""The lazy table: packed rows by id, through any of the access modes, behind one interface.

`open_rows(locate_table(gguf_file), "auto")` gives a reader; `reader.gather(ids)` gives packed rows in order.
"""

from __future__ import annotations

from fast.rows.auto import AutoReader
from fast.rows.cache import RowCache
from fast.rows.counters import GatherCounters
from fast.rows.direct import DirectReader, DirectUncachedReader
from fast.rows.mapped import MappedReader, RandomReader, SequentialReader
from fast.rows.prefetch import PrefetchReader
from fast.rows.reader import FallbackNotice, ModeCannotRun, ModeUnavailable, RowReader
from fast.rows.resident import ResidentReader
from fast.rows.settings import RowSettings
from fast.rows.table import Segment, Table, locate_table
from fast.rows.uring import UringReader, UringUncachedReader
from model_file.errors import InputError

__all__ = [
    "ALIASES",
    "MODES",
    "FallbackNotice",
    "GatherCounters",
    "ModeCannotRun",
    "ModeUnavailable",
    "RowCache",
    "RowReader",
    "RowSettings",
    "Segment",
    "Table",
    "canonical_mode",
    "locate_table",
    "open_rows",
]

MODES: dict[str, type[RowReader]] = {
    mode.name: mode
    for mode in (
        ResidentReader,
        MappedReader,
        SequentialReader,
        RandomReader,
        PrefetchReader,
        DirectReader,
        DirectUncachedReader,
        UringReader,
        UringUncachedReader,
        AutoReader,
    )
}
# llama.cpp's spellings of --lazy-mode; its `auto` is ours.
ALIASES = {"off": "resident", "on": "prefetch", "on-direct": "direct"}


def canonical_mode(mode: str) -> str:
    """The registry's name of a mode, also for llama.cpp's spellings. Raises: InputError."""
    name = ALIASES.get(mode, mode)
    if name not in MODES:
        raise InputError(f"unknown row mode {mode!r}, expected one of {', '.join([*MODES, *ALIASES])}")
    return name


def open_rows(table: Table, mode: str = "auto", settings: RowSettings | None = None) -> RowReader:
    """Open the table in a mode; close the reader, or use it as a context manager.

    Raises: InputError for an unknown mode or a file that cannot be read; ModeCannotRun, which is one too, for a mode
    that this machine cannot run and that has no fallback.
    """
    return MODES[canonical_mode(mode)](table, settings)
