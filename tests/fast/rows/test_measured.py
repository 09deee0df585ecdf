"""The speed that is claimed, measured: `pytest -m slow tests/fast/rows/test_measured.py`.

Needs a large table: the file named by PLEGATE_LARGE_TABLE, else 6 GiB made in the temporary folder (40 s, removed
after). Run it with nothing else on the machine: the bounds are shares of what the device does in the same run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fast.rows import locate_table
from model_file.gguf_file import open_gguf
from tests.fast.rows.measure import measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    given = os.environ.get("PLEGATE_LARGE_TABLE")
    folder = tmp_path_factory.mktemp("large")
    path = Path(given) if given else folder / "table.gguf"
    if not given:
        if shutil.disk_usage(folder).free < 8 << 30:
            pytest.skip("needs 8 GiB of disk, or PLEGATE_LARGE_TABLE")
        from typer.testing import CliRunner

        from harness.cli import app

        made = CliRunner().invoke(app, ["synth", "table", "--gib", "6", "--out", str(path)])
        assert made.exit_code == 0, made.output
    with open_gguf(path) as opened:
        table = locate_table(opened)
    yield measure(table, rows=32_768, repeats=5, seed=int.from_bytes(os.urandom(3), "little"))
    if not given:
        path.unlink()


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@pytest.mark.parametrize(("mode", "share"), [("uring", 0.85), ("auto", 0.85), ("prefetch", 0.75), ("direct", 0.55)])
def test_cold_rate_is_a_share_of_the_devices(measured: dict[str, Any], mode: str, share: float) -> None:
    assert median(measured["cold"][mode]["ratios"]) >= share


def test_cold_order_is_the_one_of_the_page(measured: dict[str, Any]) -> None:
    """Plain mappings over-read; without over-read but serial is the losing half; all others are near the device."""
    cold = measured["cold"]
    rate = {mode: median(cold[mode]["rates"]) for mode in cold}
    assert max(rate["mmap"], rate["mmap-sequential"]) < rate["mmap-random"] < 0.6 * rate["prefetch"]
    assert median(cold["mmap"]["over_read"]) > 5
    assert all(
        median(cold[mode]["over_read"]) <= 1.05 for mode in cold if not mode.startswith("mmap") or "random" in mode
    )


def test_warm_rates(measured: dict[str, Any]) -> None:
    warm = measured["warm_rows_per_s"]
    assert warm["auto"]["packed"] >= 4e6
    assert warm["auto"]["f32"] >= 2.5e6


def test_decode_step(measured: dict[str, Any]) -> None:
    decode = measured["decode"]
    best = min(values["cold_s"] for mode, values in decode.items() if "cold_s" in values and mode != "auto")
    assert decode["auto"]["cold_s"] <= 1.4 * best
    assert decode["auto"]["warm_s"] <= 25e-6
    assert decode["auto+cache"]["warm_s"] <= 15e-6
