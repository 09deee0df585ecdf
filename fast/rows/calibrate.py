"""How many reads in flight `direct` needs on a device: measured once in 0.25 s, remembered per device."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.reader import ModeUnavailable
from fast.rows.reads import PreadLoop, Reads
from fast.rows.settings import RowSettings
from fast.rows.table import Table
from fast.rows.table_files import TableFiles

DEFAULT_WORKERS = 64  # where nothing was measured; within 10% of the best on every device tried
CANDIDATES = (16, 32, 64, 128)
GOOD_ENOUGH = 0.95  # fewer threads are better company for the model: the smallest count within 5% of the best rate
MIN_TABLE_BYTES = 1 << 30  # a smaller table is read in less time than the calibration saves
_READS_PER_WORKER = 24
_known: dict[str, int] = {}


def worker_count(table: Table, settings: RowSettings) -> int:
    """Workers for `direct`: the setting, else what this device was found to want, else found now.

    A device without O_DIRECT cannot be measured past the page cache and gets the default.
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
        try:
            _known[key] = measure(table)
        except ModeUnavailable:
            return DEFAULT_WORKERS
        _save(_store(settings), key, _known[key])
    return _known[key]


def measure(table: Table) -> int:
    """Time random O_DIRECT reads with each candidate number of threads. Raises: ModeUnavailable without O_DIRECT.

    Threads call pread one read after the other, so that their number is the depth, as it is for buffered reads.
    """
    files = TableFiles(table, direct=True)
    size = files.align_bytes
    most = max(CANDIDATES)
    rng = np.random.default_rng()  # other blocks each time: the device may have a cache of its own
    segment = table.segments[0]
    first = segment.offset_bytes // size
    blocks = segment.rows * table.row_bytes // size
    rates: dict[int, float] = {}
    try:
        with mmap.mmap(-1, most * size) as memory, ThreadPoolExecutor(most, "plegate-calibrate") as pool:
            address = syscalls.address_of(np.frombuffer(memory, np.uint8))
            list(pool.map(abs, range(most)))  # threads exist before the clock runs

            def work(slot: int, offsets: npt.NDArray[np.int64]) -> None:
                place = np.full(offsets.size, address + slot * size)
                PreadLoop().read(Reads(files.descriptor(0), offsets, place, size))

            for workers in CANDIDATES:
                offsets = (rng.integers(0, blocks, (workers, _READS_PER_WORKER)) + first) * size
                started = perf_counter()
                list(pool.map(work, range(workers), offsets))
                rates[workers] = offsets.size / (perf_counter() - started)
    except OSError as error:
        raise ModeUnavailable(f"calibration reads failed: {error}") from error
    finally:
        files.close()
    best = max(rates.values())
    return min(workers for workers, rate in rates.items() if rate >= GOOD_ENOUGH * best)


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
