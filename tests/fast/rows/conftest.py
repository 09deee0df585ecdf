"""Tables shared by the row tests: written once per session, never changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import gguf
import pytest

from fast.rows import MODES, ModeUnavailable, Table, open_rows
from fast.rows.io_uring import Ring
from tests.fast.rows.tables import make_table


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Table]:
    """tables(type, segments): a table in one file, or cut into three."""

    @lru_cache
    def make(type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.IQ4_NL, segments: int = 1) -> Table:
        folder: Path = tmp_path_factory.mktemp("table")
        return make_table(folder, type, (3000,) if segments == 1 else (1100, 1, 1899))

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where a mode falls back (a container without io_uring), its notice is no error: tests that need the mode skip."""
    for item in items:
        if "tests/fast/rows/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("default::fast.rows.FallbackNotice"))


@pytest.fixture
def real_ring() -> None:
    """For tests of the ring itself: skips where this machine has none."""
    try:
        Ring(8).close()
    except ModeUnavailable as reason:
        pytest.skip(f"needs io_uring: {reason}")


@pytest.fixture
def equal_code(table: Table) -> int:
    """The exit code of a run in which every mode that can run here is equal: 3 where one cannot."""
    for mode in MODES:
        with open_rows(table, mode) as reader:
            if reader.effective_mode != mode:
                return 3
    return 0


@pytest.fixture
def table(tables: Callable[..., Table]) -> Table:
    return tables()
