"""Tables shared by the row tests: written once per session, never changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import gguf
import pytest

from fast.rows import Table
from tests.rows.tables import make_table


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Table]:
    """tables(type, segments): a table in one file, or cut into three."""

    @lru_cache
    def make(type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.IQ4_NL, segments: int = 1) -> Table:
        folder: Path = tmp_path_factory.mktemp("table")
        return make_table(folder, type, (3000,) if segments == 1 else (1100, 1, 1899))

    return make


@pytest.fixture
def table(tables: Callable[..., Table]) -> Table:
    return tables()
