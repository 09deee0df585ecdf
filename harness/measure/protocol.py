"""Strict cold and honest warm: make the state, prove it, and prove it again from what the device did meanwhile.

A cell whose state cannot be proven is invalid and says why. It is never given another name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import RowReader, Table, residency
from fast.rows.table import open_read_only
from harness.measure.cells import COLD

PAGE_BYTES = 4096
READ_SHARE = (
    0.9  # a cold cell must have read at least this share of the pages its rows lie on; at most 1% were in memory
)
WARM_SHARE = 0.99  # of a warm cell's rows, this share must be in memory before and after

# Modes whose rows do not come from the page cache: what a cold or warm page cache means to them.
OWN_MEMORY = ("resident",)
PAST_THE_CACHE = ("direct-uncached", "uring-uncached")


@dataclass(frozen=True)
class Kernel:
    """What the protocol asks of the kernel; tests put something else in its place."""

    make_cold: Callable[[Table, bool], residency.Eviction] = residency.make_cold
    resident_fraction: Callable[[Table], float] = residency.resident_fraction
    rows_resident: Callable[[Table, npt.NDArray[np.int64]], npt.NDArray[np.bool_]] = residency.rows_resident


@dataclass
class Proof:
    """What is known of a cell's cache state. Units: shares between 0 and 1; before and after are of the table's pages.

    rows_before, rows_after: the share of the cell's rows in memory, of a warm cell. reopened: the reader is a new one,
    without warm-up. reasons: why the cell is invalid.
    """

    state: str
    before: float = 1.0
    after: float = 1.0
    rows_before: float | None = None
    rows_after: float | None = None
    method: str = ""
    attempts: int = 0
    reopened: bool = False
    reasons: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(vars(self))


def make_cold(
    table: Table, reader: RowReader, reopen: Callable[[], RowReader], drop_caches: bool, kernel: Kernel
) -> Proof:
    """Evict the table and prove it. Where that fails the reader is closed, and `reopen` puts another in its place.

    The warm-up has filled the reader's pools and its mapping; only the mapping's pages are given up, so that no
    first-call cost comes back.
    """
    proof = Proof(COLD)
    try:
        reader.trim(0)
        eviction = kernel.make_cold(table, False)
        if not eviction.cold:
            reader.close()
            eviction = kernel.make_cold(table, drop_caches)
            reopen()
            proof.reopened = True
        proof.before = kernel.resident_fraction(table)
    except OSError as error:
        proof.reasons.append(f"not-verified: whether the table is cold cannot be verified here: {error.strerror}")
        return proof
    proof.method, proof.attempts = eviction.method, eviction.attempts
    if not (eviction.cold and proof.before <= residency.COLD_FRACTION):
        proof.reasons.append(
            f"eviction-failed: {proof.before:.1%} of the table's pages were still in memory after "
            f"{eviction.attempts} attempts ({eviction.method}), expected at most {residency.COLD_FRACTION:.0%}: does "
            "another process hold the file mapped, or is it on a file system in memory? As root, --drop-caches evicts "
            "harder"
        )
    return proof


def make_warm(table: Table, ids: npt.NDArray[np.int64], kernel: Kernel) -> Proof:
    """Read what the rehearsal did not leave in the page cache, alike for every mode, and prove that it is there."""
    proof = Proof("warm", method="rehearsal")
    unique = np.unique(ids)
    try:
        absent = unique[~kernel.rows_resident(table, unique)]
        if absent.size:
            read_rows(table, absent)
            proof.method = "rehearsal, then pread"
        proof.rows_before = float(kernel.rows_resident(table, unique).mean())
        proof.before = kernel.resident_fraction(table)
    except OSError as error:
        proof.reasons.append(f"not-verified: whether the rows are warm cannot be verified here: {error.strerror}")
        return proof
    if not proof.rows_before >= WARM_SHARE:
        proof.reasons.append(
            f"not-warm: only {proof.rows_before:.1%} of the rows were in memory, expected {WARM_SHARE:.0%}: is there "
            "too little memory, or a limit on it?"
        )
    return proof


def read_rows(table: Table, ids: npt.NDArray[np.int64]) -> None:
    """Bring rows into the page cache by plain reads, whatever the mode under test would do."""
    owners, offsets = table.segment_of(ids), table.offsets(ids)
    for index, segment in enumerate(table.segments):
        fd = open_read_only(segment.path)
        try:
            for offset in offsets[owners == index].tolist():
                os.pread(fd, table.row_bytes, offset)
        finally:
            os.close(fd)


def check_afterwards(
    proof: Proof,
    table: Table,
    ids: npt.NDArray[np.int64],
    pages: int,
    disk_bytes: int | None,
    mode: str,
    kernel: Kernel,
) -> None:
    """Look at the residency again, and at what the device did: reasons are added to the proof.

    pages: different pages under the cell's rows. disk_bytes: what the kernel says this process made the device read
    meanwhile; it does not come from where residency comes from, so that a wrong answer of one shows in the other.
    """
    unique = np.unique(ids)
    try:
        proof.after = kernel.resident_fraction(table)
        if proof.state != COLD:
            proof.rows_after = float(kernel.rows_resident(table, unique).mean())
    except OSError as error:
        proof.reasons.append(f"not-verified: residency cannot be verified after the measurement: {error.strerror}")
        return
    if proof.state == COLD:
        row_bytes = unique.size * table.row_bytes
        _check_cold(proof, row_bytes if mode in PAST_THE_CACHE else pages * PAGE_BYTES, disk_bytes, mode)
    elif proof.rows_after is not None and not proof.rows_after >= WARM_SHARE:
        proof.reasons.append(f"not-warm: {1 - proof.rows_after:.1%} of the rows left memory during the measurement")


def _check_cold(proof: Proof, least_bytes: int, disk_bytes: int | None, mode: str) -> None:
    if mode in OWN_MEMORY:
        return
    if disk_bytes is None:
        proof.reasons.append("not-verified: this machine has no /proc/self/io: what the device really read is unknown")
    elif not disk_bytes >= READ_SHARE * least_bytes:
        proof.reasons.append(
            f"warm-leak: the rows were said to be out of memory and take {least_bytes} bytes to read, but the device "
            f"read {disk_bytes}, expected at least {READ_SHARE:.0%}: they came from memory"
        )
