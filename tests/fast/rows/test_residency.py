"""Residency, eviction and trimming against each other: mincore, cachestat, smaps and what gathers read."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fast.rows import Table, open_rows, residency, syscalls
from tests.fast.rows.tables import make_table, pread_rows

PAGE = 4096
NOBODY = 65_534


@pytest.fixture
def large(tmp_path: Path) -> Table:
    table = make_table(tmp_path, rows=(60_000, 30_000))
    eviction = residency.make_cold(table)
    if not eviction.cold:
        pytest.skip(f"this file system keeps the file in memory ({eviction.resident:.0%} resident after eviction)")
    return table


def test_eviction_is_verified_and_a_gather_brings_back_only_its_pages(large: Table) -> None:
    assert residency.resident_fraction(large) <= residency.COLD_FRACTION
    ids = np.arange(0, 90_000, 900)
    assert not residency.rows_resident(large, ids).any()
    with open_rows(large, "uring") as reader:
        reader.gather(ids)
        assert residency.rows_resident(large, ids).all()
        assert round(residency.resident_fraction(large) * large.pages()) == reader.last.pages_unique
    residency.evict(large)
    assert not residency.rows_resident(large, ids).any()


def test_mincore_and_cachestat_agree(large: Table) -> None:
    with open_rows(large, "uring") as reader:
        reader.gather(np.arange(0, 60_000, 777))
    segment = large.segments[0]
    end = segment.offset_bytes + segment.rows * large.row_bytes
    pages = residency.resident_pages(segment.path, segment.offset_bytes, end)
    counted = residency.cached_pages(segment.path, segment.offset_bytes, end)
    assert pages is not None
    if counted is None:
        pytest.skip("this kernel has no cachestat (it came with Linux 6.5)")
    assert counted == np.count_nonzero(pages) > 0


def test_a_mapped_and_touched_table_is_not_called_cold(large: Table) -> None:
    """Eviction cannot drop pages that a mapping holds: the protocol must say so instead of pretending."""
    with open_rows(large, "mmap-random") as reader:
        reader.gather(np.arange(0, 90_000, 10))
        eviction = residency.make_cold(large, attempts=1)
        assert eviction.resident > 0.5
        assert not eviction.cold
        reader.trim()
        assert residency.make_cold(large).cold


def test_eviction_that_does_nothing_is_noticed(large: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_rows(large, "uring") as reader:
        reader.gather(np.arange(0, 90_000, 10))
    monkeypatch.setattr(residency.os, "posix_fadvise", lambda *_: None)
    assert not residency.make_cold(large, attempts=2).cold


def test_without_mincore_and_cachestat_nothing_is_called_cold(large: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "mincore", lambda *_: -38)
    with open_rows(large, "uring") as reader:
        reader.gather(np.arange(0, 90_000, 10))
    if residency.cached_pages(large.segments[0].path, 0, PAGE) is not None:
        assert residency.resident_fraction(large) > 0.5  # cachestat answers in its place
    monkeypatch.setattr(syscalls, "call", lambda *_: -38)
    with pytest.raises(OSError, match="residency cannot be verified"):
        residency.make_cold(large)


@pytest.mark.parametrize("mode", ["mmap", "mmap-random", "prefetch", "auto"])
def test_trim_drops_our_pages_and_changes_no_byte(large: Table, mode: str) -> None:
    ids = np.arange(0, 90_000, 10)
    with open_rows(large, mode) as reader:
        mapping = reader._mapping  # type: ignore[attr-defined]

        def in_page_table() -> int:
            return sum(residency.mapping_resident_bytes(part.address) for part in mapping.parts)

        wanted = pread_rows(large, ids).tobytes()
        for _ in range(3):  # auto maps rows at their second use
            reader.gather(ids)
        held = in_page_table()
        assert held > 4 << 20
        dropped = reader.trim(budget_bytes=2 << 20)
        assert 0 < in_page_table() <= 2 << 20
        assert dropped == held - in_page_table()
        reader.trim()
        assert in_page_table() == 0
        assert reader.gather(ids).tobytes() == wanted


def test_modes_without_a_mapping_have_nothing_to_trim(large: Table) -> None:
    for mode in ("direct", "uring", "uring-uncached"):
        with open_rows(large, mode) as reader:
            reader.gather(np.arange(100))
            assert reader.trim() == 0


def test_preload_makes_rows_resident_except_past_the_page_cache(large: Table) -> None:
    ids = np.arange(0, 90_000, 500)
    for mode, keeps in (("uring-uncached", 0), ("direct-uncached", 0), ("uring", ids.size), ("prefetch", ids.size)):
        assert residency.make_cold(large).cold
        with open_rows(large, mode) as reader:
            assert reader.preload(ids) == keeps
        assert residency.rows_resident(large, ids).all() == bool(keeps)


_AS_ANOTHER_USER = """
import os, pickle, sys
import numpy as np
from fast.rows import residency
table, user = pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2])
os.setgroups([])
os.setgid(user)
os.setuid(user)
for ask in (residency.make_cold, lambda table: residency.rows_resident(table, np.arange(0, 60_000, 100))):
    try:
        answer = ask(table)
        print(answer.resident if isinstance(answer, residency.Eviction) else answer.mean())
    except OSError as error:
        print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")
@pytest.mark.parametrize(
    ("mode", "owner", "told"),
    [(0o644, 0, False), (0o646, 0, True), (0o644, NOBODY, True)],
    ids=["closed", "writable", "own"],
)
def test_residency_of_somebody_elses_file_is_not_made_up(mode: int, owner: int, told: bool) -> None:
    """The kernel calls every page of such a file resident: that is no answer, and its real one is told from it."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o755)
        table = make_table(Path(folder), rows=(60_000,))
        table.segments[0].path.chmod(mode)
        os.chown(table.segments[0].path, owner, owner)
        if not residency.make_cold(table).cold:
            pytest.skip("this file system keeps the file in memory")
        done = subprocess.run(
            [sys.executable, "-c", _AS_ANOTHER_USER, pickle.dumps(table).hex(), str(NOBODY)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parents[3],
            check=True,
        )
        evicted, rows = done.stdout.splitlines()
        refusal = f"residency cannot be verified: the file belongs to user {owner}, and the kernel hides from user"
        if told:
            assert (float(evicted), float(rows)) == (0, 0)
        else:
            assert refusal in rows
            assert "run as the file's owner" in rows
            assert refusal in evicted or float(evicted) == 0  # cachestat told the truth to anybody before Linux 6.13
