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

from . import tree

Ids = npt.NDArray[np.int64]
PAGE_BYTES = 4096
READ_SHARE = 0.9  # of the pages its rows lie on a cold cell must have read; at most 1% were in memory
WARM_SHARE = 0.99  # of a warm cell's rows, this share must be in memory before and after
COLD = "cold"

# Modes whose rows do not come from the page cache: what a cold or warm page cache means to them.
LOADED = "loaded"  # a server that has read the whole table when it is ready
OWN_MEMORY = ("resident", LOADED)
PAST_THE_CACHE = ("direct-uncached", "uring-uncached")


@dataclass(frozen=True)
class Kernel:
    """What the protocol asks of the kernel; tests put something else in its place."""

    make_cold: Callable[[Any, bool], Any] = tree.residency.make_cold
    resident_fraction: Callable[[Any], float] = tree.residency.resident_fraction
    rows_resident: Callable[[Any, Ids], npt.NDArray[np.bool_]] = tree.residency.rows_resident


@dataclass
class Proof:
    """What is known of a cell's cache state. Units: shares between 0 and 1; before and after are of the table's pages.

    rows_before, rows_after: the share of the cell's rows in memory, of a warm cell. holes: the share of the table that
    was never written. reopened: the reader is a new one, without warm-up. reasons: why the cell is invalid.
    """

    state: str
    before: float = 1.0
    after: float = 1.0
    rows_before: float | None = None
    rows_after: float | None = None
    holes: float = 0.0
    method: str = ""
    attempts: int = 0
    reopened: bool = False
    reasons: list[str] = field(default_factory=list)


def make_cold(table: Any, reader: Any, reopen: Callable[[], Any], drop_caches: bool, kernel: Kernel) -> Proof:
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
    proof.holes = hole_share(table)
    most = tree.residency.COLD_FRACTION
    if not (eviction.cold and proof.before <= most):
        proof.reasons.append(
            f"eviction-failed: {proof.before:.1%} of the table's pages were still in memory after "
            f"{eviction.attempts} attempts ({eviction.method}), expected at most {most:.0%}: does another process hold "
            "the file mapped, or is it on a file system in memory? As root, --drop-caches evicts harder"
        )
    return proof


def hole_share(table: Any) -> float:
    """The share of the table's bytes that were never written: holes, and what was only allocated (SEEK_HOLE).

    To be asked while the table is out of memory: a page that was read counts as written to some file systems.
    """
    holes = total = 0
    for segment in table.segments:
        start, end = segment.offset_bytes, segment.offset_bytes + segment.rows * table.row_bytes
        total += end - start
        fd = tree.open_read_only(segment.path)
        try:
            while start < end:
                hole = min(end, os.lseek(fd, start, os.SEEK_HOLE))
                try:
                    start = min(end, os.lseek(fd, hole, os.SEEK_DATA)) if hole < end else end
                except OSError:  # no data behind it
                    start = end
                holes += start - hole
        except OSError:
            return 0.0  # a file system that does not say
        finally:
            os.close(fd)
    return holes / total if total else 0.0


def make_warm(table: Any, ids: Ids, kernel: Kernel) -> Proof:
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


def read_rows(table: Any, ids: Ids) -> None:
    """Bring rows into the page cache by plain reads, whatever the mode under test would do."""
    owners, offsets = table.segment_of(ids), table.offsets(ids)
    for index, segment in enumerate(table.segments):
        fd = tree.open_read_only(segment.path)
        try:
            for offset in offsets[owners == index].tolist():
                os.pread(fd, table.row_bytes, offset)
        finally:
            os.close(fd)


def check_afterwards(
    proof: Proof, table: Any, ids: Ids, pages: int, disk_bytes: int | None, mode: str, kernel: Kernel
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
        cause = (
            f"holes: {proof.holes:.1%} of the table was never written (a download that is not finished, or space that "
            "was only allocated), so that nothing need be read there"
            if proof.holes
            else "warm-leak: they came from memory"
        )
        name, _, text = cause.partition(": ")
        proof.reasons.append(
            f"{name}: the rows were said to be out of memory and take {least_bytes} bytes to read, but the device "
            f"read {disk_bytes}, expected at least {READ_SHARE:.0%}: {text}"
        )
