"""How many workers `direct` needs on a device: measured once in a fifth of a second, remembered per device."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from fast.rows.counters import GatherCounters, Meter
from fast.rows.reads import BatchReader, Reads
from fast.rows.settings import RowSettings
from fast.rows.syscalls import PAGE_BYTES, address_of
from fast.rows.table import Table
from fast.rows.table_files import TableFiles

DEFAULT_WORKERS = 32  # where nothing can be measured
CANDIDATES = (8, 16, 32, 64)
GOOD_ENOUGH = 0.95  # fewer threads are better company for the model: the smallest count within 5% of the best rate
MIN_TABLE_BYTES = 2 << 30  # a smaller table is read in less time than the calibration saves
# per candidate and round: 12 MiB in all, 0.6% of the smallest table, which stays cold by the protocol's 1%
_READS = 384
_CACHED_SHARE = 0.5  # with fewer pages than this share read from the device, the page cache would be measured
_known: dict[str, int] = {}

MakePool = Callable[[int], BatchReader]


def worker_count(table: Table, settings: RowSettings, make_pool: MakePool) -> int:
    """Workers for `direct`: the setting, else what this device was found to want, else found now by trying pools.

    A table that is in the page cache says nothing about its device: the default is taken, and nothing remembered.
    """
    if settings.workers is not None:
        return settings.workers
    if table.size_bytes < MIN_TABLE_BYTES:
        return DEFAULT_WORKERS
    key = device_key(table.segments[0].path)
    if key not in _known:
        remembered = _load(_store(settings)).get(key)
        if isinstance(remembered, int) and remembered > 0:
            _known[key] = remembered
    if key not in _known:
        found = measure(table, make_pool)
        if found is None:
            return DEFAULT_WORKERS
        _known[key] = found
        _save(_store(settings), key, found)
    return _known[key]


def measure(table: Table, make_pool: MakePool) -> int | None:
    """Time buffered reads of random pages with each candidate, up and down the list; None when the table is cached."""
    files = TableFiles(table, random=True)
    segment = table.segments[0]
    first = -(-segment.offset_bytes // PAGE_BYTES)
    pages = segment.rows * table.row_bytes // PAGE_BYTES - 1
    rng = np.random.default_rng()  # other pages each time
    buffer = np.zeros(_READS * 64, np.uint8)
    places = address_of(buffer) + np.arange(_READS, dtype=np.int64) * 64
    times = dict.fromkeys(CANDIDATES, 0.0)
    pools = {workers: make_pool(workers) for workers in CANDIDATES}
    try:
        with Meter() as meter:
            counters = GatherCounters()
            meter.start()
            for workers in CANDIDATES + CANDIDATES[::-1]:
                offsets = (np.sort(rng.integers(0, pages, _READS)) + first) * PAGE_BYTES
                started = perf_counter()
                pools[workers].read(Reads(files.descriptor(0), offsets, places, 64, buffer))
                times[workers] += perf_counter() - started
            meter.stop(counters)
        asked = 2 * len(CANDIDATES) * _READS * PAGE_BYTES
        if counters.bytes_device is not None and counters.bytes_device < _CACHED_SHARE * asked:
            return None
    finally:
        for pool in pools.values():
            pool.close()
        files.close()
    best = min(times.values())
    return min(workers for workers, seconds in times.items() if seconds * GOOD_ENOUGH <= best)


def device_key(path: Path) -> str:
    """A device by number and size: enough to notice another disk, the same after a reboot."""
    device = path.stat().st_dev
    blocks = os.statvfs(path).f_blocks
    return f"{os.major(device)}:{os.minor(device)}:{blocks}"


def _store(settings: RowSettings) -> Path:
    if settings.calibration_file is not None:
        return settings.calibration_file
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plegate" / "direct-workers.json"


def _load(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _save(path: Path, key: str, workers: int) -> None:
    """Remember, whole or not at all; a cache that cannot be written is not an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**_load(path), key: workers}, indent=1)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(text)
                file.flush()
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
