"""Faults in the table's rows and how they are read, and in the goldens."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from harness.cases.models import model_path
from harness.faults.fault import Trial, fault
from harness.faults.planting import flipped_copy, replace_function


@fault("packed rows", "token 6, head 2", "byte 11 of the row")
def flipped_bit(trial: Trial) -> None:
    """The lowest bit of byte 11 of the row that token 6, head 2 of the first prompt reads."""
    from fast.rows import locate_table
    from harness.oracle import HashOracle
    from model_file.gguf_file import open_gguf

    path = model_path(trial.case)
    with open_gguf(path) as model:
        row = int(HashOracle(model).rows(trial.golden.prompts[0].ids)[6, 2])
        _, offset = locate_table(model).place(row)
    copy, _ = flipped_copy(path, trial.scratch, offset + 11)
    trial.modes = [f"mmap@{copy}"]


@fault("row cache", "through a row cache")
def stale_cache_entry(_: Trial) -> None:
    """A slot that is taken over gets the new row's tag and keeps the old row's bytes."""
    from fast.rows.cache import RowCache

    def stale(original: Any) -> Any:
        def insert(self: Any, ids: Any, slots: Any, rows: Any) -> None:
            taken = self._tags[slots] >= 0
            original(self, ids, slots, np.where(taken[:, None], self._rows[slots], rows))

        return insert

    replace_function(RowCache, "_insert", stale)


@fault("packed rows", "token 0, head 0", mode="direct")
def off_by_one_row(_: Trial) -> None:
    """Reads of the file start one row too far."""
    from fast.rows.table import Table

    def one_further(original: Any) -> Any:
        return lambda self, ids: original(self, np.minimum(ids + 1, self.rows - 1))

    replace_function(Table, "offsets", one_further)


@fault("mode evidence", "rows came by reads, expected ring", mode="uring")
def silent_fallback(_: Trial) -> None:
    """The ring mode reads row by row with preads and says that it used its ring."""
    from fast.rows.uring import UringReader

    def by_preads(_: Any) -> Any:
        def read(self: Any, ids: Any, out: Any, counters: Any) -> None:
            for place, row in enumerate(ids.tolist()):
                segment, start = self.table.place(row)
                with segment.path.open("rb", buffering=0) as file:
                    out[place] = np.frombuffer(os.pread(file.fileno(), self.table.row_bytes, start), np.uint8)
            counters.read_calls += 1

        return read

    replace_function(UringReader, "_read", by_preads)


@fault("f32 rows", "first difference in f32 rows")
def wrong_codebook(_: Trial) -> None:
    """One of the sixteen values of the table's type is off by one."""
    from fast.rows import dequantize

    values = tuple(int(value) + (place == 3) for place, value in enumerate(dequantize.IQ4_NL_VALUES))
    dequantize.IQ4_NL_VALUES = values  # type: ignore[assignment]


@fault("control rows", "two gathers of one batch differ")
def unsteady_mode(_: Trial) -> None:
    """Every other large gather has one wrong bit."""
    from fast.rows.resident import ResidentReader

    calls = [0]

    def unsteady(original: Any) -> Any:
        def read(self: Any, ids: Any, out: Any, counters: Any) -> None:
            original(self, ids, out, counters)
            if len(ids) > 64:
                calls[0] += 1
                out[7, 5] ^= calls[0] % 2

        return read

    replace_function(ResidentReader, "_read", unsteady)


@fault("golden file", "stale", case="tiny", rows_only=True)
def golden_of_another_file(trial: Trial) -> None:
    """The golden was recorded on a file with other bytes."""
    trial.golden = replace(trial.golden, model={**trial.golden.model, "sha256": "0" * 64})


@fault("row digests", "tokens 64 to 127", case="tiny", rows_only=True)
def golden_of_other_rows(trial: Trial) -> None:
    """The golden's second chunk of rows was recorded from another table."""
    first, *rest = trial.golden.prompts
    digests = (first.row_digests[0], "0" * 64, *first.row_digests[2:])
    trial.golden = replace(trial.golden, prompts=(replace(first, row_digests=digests), *rest))


@fault("mode evidence", "pages were advised before they were touched, expected all", mode="prefetch", rows_only=True)
def prefetch_of_one_range(_: Trial) -> None:
    """Of all page ranges of a batch only the first is advised."""
    from fast.rows.prefetch import Adviser

    replace_function(Adviser, "willneed", lambda original: lambda self, at, sizes: original(self, at[:1], sizes[:1]))


@fault("golden file", "the golden has no blk.1.ple at position", case="tiny", rows_only=True)
def golden_without_intermediates(trial: Trial) -> None:
    """The golden of a prompt lost what PLE layer and logits are judged by."""
    first, *rest = trial.golden.prompts
    trial.golden = replace(trial.golden, prompts=(replace(first, probes=()), *rest))
