"""Which rows were asked for: the first one that is wrong is named by sequence, position and head."""

from __future__ import annotations

import numpy as np
import pytest

from harness.engines.tracing import WrongRow, first_wrong_row

ROWS = [np.arange(12, dtype=np.uint64).reshape(3, 4), np.arange(100, 120, dtype=np.uint64).reshape(5, 4)]
A, B = (rows.reshape(-1) for rows in ROWS)


@pytest.mark.parametrize(
    "calls",
    [
        [A, B],
        [B, A],
        [A[:4], B[:8], A[4:], B[8:]],  # a batch, step by step
        [np.concatenate([A[:4], B[:4]]), np.concatenate([A[4:], B[4:]])],  # one call for all of a batch
    ],
)
def test_rows_in_order_are_right_whatever_the_batches(calls: list[np.ndarray]) -> None:
    assert first_wrong_row(calls, ROWS) is None


def changed(ids: np.ndarray, place: int) -> np.ndarray:
    copy = ids.copy()
    copy[place] = 999
    return copy


@pytest.mark.parametrize(
    ("calls", "wrong"),
    [
        ([changed(A, 6), B], WrongRow(0, 1, 2, 999, 6)),
        ([A, B[:8], changed(B, 9)[8:]], WrongRow(1, 2, 1, 999, 109)),
        ([A[4:], B], WrongRow(0, 0, 0, 4, 0)),
        ([A, B[:16]], WrongRow(1, 4, 0, None, 116)),
        ([A[:8], B], WrongRow(0, 2, 0, None, 8)),
        ([A, B, A[:4]], WrongRow(0, 3, 0, 0, None)),
    ],
)
def test_the_first_wrong_row_is_named(calls: list[np.ndarray], wrong: WrongRow) -> None:
    assert first_wrong_row(calls, ROWS) == wrong
