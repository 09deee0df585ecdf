"""The lazy table: packed rows by id, through any of the access modes, behind one interface.

`open_rows(locate_table(gguf_file), "auto")` gives a reader; `reader.gather(ids)` gives packed rows in order.

A new access mode is one file here with one subclass of `RowReader`, whose attributes state what must be known of it,
and one line in `_CLASSES`. May import `model_file` and nothing else of this project.
"""

from __future__ import annotations

from importlib import import_module

from fast.rows.cache import RowCache
from fast.rows.counters import GatherCounters
from fast.rows.reader import FallbackNotice, ModeCannotRun, ModeUnavailable, RowReader
from fast.rows.settings import RowSettings
from fast.rows.table import Segment, Table, locate_table
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

_CLASSES = (  # a line for each mode, in the order of every report
    "resident.ResidentReader",
    "mapped.MappedReader",
    "mapped.SequentialReader",
    "mapped.RandomReader",
    "prefetch.PrefetchReader",
    "direct.DirectReader",
    "direct.DirectUncachedReader",
    "uring.UringReader",
    "uring.UringUncachedReader",
    "auto.AutoReader",
)


def _modes() -> dict[str, type[RowReader]]:
    modes: dict[str, type[RowReader]] = {}
    for module, _, name in (entry.partition(".") for entry in _CLASSES):
        mode: type[RowReader] = getattr(import_module(f"fast.rows.{module}"), name)
        modes[mode.name] = mode
    return modes


MODES = _modes()
ALIASES = {mode.alias: name for name, mode in MODES.items() if mode.alias}  # llama.cpp's `auto` is ours


def canonical_mode(mode: str) -> str:
    """The registry's name of a mode, also for llama.cpp's spellings. Raises: InputError."""
    name = ALIASES.get(mode, mode)
    if name not in MODES:
        raise InputError(f"unknown row mode {mode!r}, expected one of {', '.join([*MODES, *ALIASES])}")
    return name


def open_rows(table: Table, mode: str = "auto", settings: RowSettings | None = None) -> RowReader:
    """Open the table in a mode, behind a row cache where the settings give it bytes.

    Close the reader, or use it as a context manager.
    Raises: InputError for an unknown mode, a file that cannot be read, or a cache too small for a row; ModeCannotRun,
    which is one too, for a mode that this machine cannot run and that has no fallback.
    """
    reader = MODES[canonical_mode(mode)](table, settings)
    if not reader.settings.cache_bytes:
        return reader
    try:
        return RowCache(reader, reader.settings.cache_bytes)
    except BaseException:
        reader.close()
        raise
