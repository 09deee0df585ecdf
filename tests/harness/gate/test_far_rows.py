"""The sparse table of more than 2^32 rows: what is written is read, what is not is zero, and no name is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fast.rows import open_rows
from harness.gate.far_rows import ROWS, far_rows
from harness.oracle import expected_packed


def test_far_rows_have_no_name_that_a_kill_could_leave(tmp_path: Path) -> None:
    with far_rows(tmp_path) as far:
        assert far.table.rows == ROWS > 1 << 32
        assert list(tmp_path.iterdir()) == []
    for segment in far.table.segments:
        with pytest.raises(FileNotFoundError):
            segment.path.stat()


@pytest.mark.parametrize("mode", ["mmap", "direct-uncached"])
def test_far_rows_are_what_plain_reads_find(tmp_path: Path, mode: str) -> None:
    with far_rows(tmp_path) as far:
        ids = np.append(far.ids, np.uint64(7))  # which nobody wrote
        right = expected_packed(far.table, ids)
        with open_rows(far.table, mode) as reader:
            assert reader.gather(ids).tobytes() == right.tobytes()
    assert right[:-1].any(axis=1).all() and not right[-1].any()
    assert len(np.unique(right, axis=0)) == len(ids)
