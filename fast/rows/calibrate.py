"""How many reads in flight a device wants: measured once, remembered per device."""

from __future__ import annotations

from fast.rows.settings import RowSettings
from fast.rows.table import Table

DEFAULT_WORKERS = 64


def worker_count(table: Table, settings: RowSettings) -> int:
    """Workers for `direct` on the table's device."""
    return settings.workers or DEFAULT_WORKERS
