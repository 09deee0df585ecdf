"""Reading rows through the page cache: each row straight to its place, rows deduplicated in large batches."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from fast.rows import syscalls
from fast.rows.counters import GatherCounters
from fast.rows.plan import GatherPlan
from fast.rows.reader import PackedRows
from fast.rows.reads import Reads, ReadStats
from fast.rows.table import Ids
from fast.rows.table_files import TableFiles


def read_buffered(
    files: TableFiles,
    ids: Ids,
    out: PackedRows,
    counters: GatherCounters,
    unplanned_rows: int,
    carry_out: Callable[[Reads], ReadStats],
) -> None:
    """Fill `out` by one read a row. A batch of `unplanned_rows` or fewer has no plan: its repeats are read again."""
    started = perf_counter()
    reads, plan = _row_reads(files, ids, out, unplanned_rows)
    planned = perf_counter()
    stats = carry_out(reads)
    read = perf_counter()
    if plan is not None:
        plan.fill_repeats(out)
    counters.plan_s += planned - started
    counters.read_s += read - planned
    counters.copy_s += perf_counter() - read
    counters.read_calls += stats.calls
    counters.bytes_asked += stats.bytes_asked
    counters.service_s = stats.service_s


def _row_reads(files: TableFiles, ids: Ids, out: PackedRows, unplanned_rows: int) -> tuple[Reads, GatherPlan | None]:
    row_bytes = files.table.row_bytes
    base = syscalls.address_of(out)
    if ids.size <= unplanned_rows:
        addresses = np.arange(base, base + ids.size * row_bytes, row_bytes, dtype=np.int64)
        return Reads(files.of_rows(ids), files.table.offsets(ids), addresses, row_bytes, out), None
    plan = GatherPlan(files.table, ids)
    addresses = plan.places * row_bytes
    addresses += base
    return Reads(files.of_segments(plan.segments), plan.offsets, addresses, row_bytes, out), plan
