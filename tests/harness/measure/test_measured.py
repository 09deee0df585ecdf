"""The speed that is claimed, measured: `pytest -m slow tests/harness/measure/test_measured.py`.

Needs a large table: the file named by PLEGATE_LARGE_TABLE, else 6 GiB made in the temporary folder (40 s, removed
after). Run it with nothing else on the machine: the bounds are shares of what the device does in the same blocks.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import app

pytestmark = pytest.mark.slow
ARMS = ("device", "auto", "uring", "prefetch", "direct", "mmap-random")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """By cache state and workload: what each arm did."""
    given = os.environ.get("PLEGATE_LARGE_TABLE")
    folder = tmp_path_factory.mktemp("large")
    path = Path(given) if given else folder / "table.gguf"
    if not given:
        if shutil.disk_usage(folder).free < 8 << 30:
            pytest.skip("needs 8 GiB of disk, or PLEGATE_LARGE_TABLE")
        made = CliRunner().invoke(app, ["synth", "table", "--gib", "6", "--out", str(path)])
        assert made.exit_code == 0, made.output
    arms = [part for arm in ARMS for part in ("--arm", arm)] + ["--arm", "cached=auto,cache=64MiB"]
    works = ["--workload", "gather:2048", "--workload", "steps:64", "--depth", "0"]
    options = ["--out", str(folder / "run"), "--json", str(folder / "summary.json"), "--repeats", "6"]
    done = CliRunner().invoke(app, ["bench", str(path), *arms, *works, *options])
    assert done.exit_code == 0, done.output
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for group in json.loads((folder / "summary.json").read_text())["groups"]:
        sides = {side["arm"]: side for side in group["arms"]}
        found[group["state"], group["workload"]["kind"]] = sides
    yield found
    if not given:
        path.unlink()


def speed(sides: dict[str, Any], arm: str) -> float:
    return float(sides[arm]["tokens_per_s"]["median"])


@pytest.mark.parametrize(("mode", "share"), [("uring", 0.85), ("auto", 0.85), ("prefetch", 0.75), ("direct", 0.55)])
def test_cold_rate_is_a_share_of_the_devices(measured: Any, mode: str, share: float) -> None:
    cold = measured["cold", "gather"]
    assert speed(cold, mode) >= share * speed(cold, "device")


def test_cold_order_is_the_one_of_the_page(measured: Any) -> None:
    """One fault after the other is the losing half; nothing here reads much more than it needs."""
    cold = measured["cold", "gather"]
    assert speed(cold, "mmap-random") < 0.6 * speed(cold, "prefetch")
    assert all(cold[arm]["over_read"] <= 1.05 for arm in ARMS if arm != "device")


def test_decode_step(measured: Any) -> None:
    cold, warm = measured["cold", "steps"], measured["warm", "steps"]
    best = max(speed(cold, arm) for arm in ARMS[2:])
    assert speed(cold, "auto") >= best / 1.4
    assert speed(warm, "auto") >= 1 / 25e-6
    assert speed(warm, "cached") >= 1 / 15e-6
