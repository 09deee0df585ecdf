"""The rounds of `nox -s bench` are proven after they ran too: a lie about the eviction does not become a baseline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fast.rows import Table, locate_table, open_rows, residency
from harness.measure import protocol
from harness.measure.rounds import ProvenRounds
from model_file.gguf_file import open_gguf

ROOT = Path(__file__).parents[3]
IDS = np.arange(0, 4000, 40)
PRETENDED = """
from fast.rows import residency
residency.make_cold = lambda *_: residency.Eviction(0.0, "pretended", 1)
"""
FORBIDDEN = """
from fast.rows.reader import ModeUnavailable
from fast.rows.uring import UringReader
def refuse(_):
    raise ModeUnavailable("a test forbids it")
UringReader._open = refuse
"""
SLOW_CHECK_S = 0.25
SLOW_CHECK = f"""
import time
from harness.measure.rounds import ProvenRounds
check = ProvenRounds.check
def slowly(self):
    time.sleep({SLOW_CHECK_S})
    check(self)
ProvenRounds.check = slowly
"""


def _rounds(table: Table, state: str, **changes: Any) -> ProvenRounds:
    kernel = replace(protocol.Kernel(), **changes)
    return ProvenRounds(table, IDS, state=state, mode="direct", name="the cell", kernel=kernel)


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_round_that_is_what_it_says_passes_again_and_again(table_file: Path, state: str) -> None:
    with open_gguf(table_file) as model, open_rows(locate_table(model), "direct") as reader:
        rounds = _rounds(locate_table(model), state)
        for _ in range(3):
            rounds.prepare([reader])
            reader.gather(IDS)
            rounds.check()


def test_cold_round_whose_rows_came_from_memory_fails(table_file: Path) -> None:
    with open_gguf(table_file) as model, open_rows(locate_table(model), "direct") as reader:
        table = locate_table(model)
        protocol.read_rows(table, IDS)
        rounds = _rounds(table, "cold", make_cold=lambda *_: residency.Eviction(0.0, "pretended", 1))
        rounds.prepare([reader])
        reader.gather(IDS)
        with pytest.raises(AssertionError, match="the cell: warm-leak"):
            rounds.check()


def test_warm_round_whose_rows_left_memory_fails(table_file: Path) -> None:
    with open_gguf(table_file) as model:
        rounds = _rounds(locate_table(model), "warm")
        rounds.prepare([])
        assert residency.make_cold(locate_table(model)).cold
        with pytest.raises(AssertionError, match="the cell: not-warm"):
            rounds.check()


def test_round_is_not_checked_with_the_counters_of_an_earlier_one(table_file: Path) -> None:
    with open_gguf(table_file) as model:
        rounds = _rounds(locate_table(model), "warm")
        rounds.prepare([])
        rounds.check()
        with pytest.raises(AssertionError, match="nothing was prepared"):
            rounds.check()


def _benchmark(table_file: Path, folder: Path, cell: str, planted: str) -> tuple[int, str, list[dict[str, Any]]]:
    """One cell of tests/bench as `nox -s bench` runs it, on the small table and with something planted in it.

    Returns the exit code, what was printed, and the benchmarks that would be kept.
    """
    small = "import harness.synth\nfrom pathlib import Path\n"
    small += f"harness.synth.ensure_model = lambda _: Path({str(table_file)!r})\n"
    (folder / "planted_in_bench.py").write_text(small + planted, encoding="utf-8")
    kept = folder / "run.json"
    command = [sys.executable, "-m", "pytest", "-p", "planted_in_bench", "tests/bench", "--confcutdir", "tests/bench"]
    command += ["-m", "slow", "-q", "-k", f"0-{cell}-gather512", f"--benchmark-json={kept}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(folder), "PLEGATE_CACHE_DIR": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    text = kept.read_text(encoding="utf-8") if kept.exists() else ""
    return done.returncode, done.stdout + done.stderr, json.loads(text)["benchmarks"] if text else []


def test_benchmark_of_a_mode_that_cannot_run_is_skipped_and_not_kept(table_file: Path, tmp_path: Path) -> None:
    """What ran in its place must not be kept under its name: the trend then says that the cell is missing."""
    _, output, kept = _benchmark(table_file, tmp_path, "uring-cold", FORBIDDEN)
    assert output.split()[0] == "s", output
    assert kept == []


def test_planted_slowdown_of_no_cell_is_refused() -> None:
    command = [sys.executable, "-m", "pytest", "tests/bench", "--confcutdir", "tests/bench", "-m", "slow", "-q"]
    command += ["--collect-only", "--plant-slowdown"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for given, code in (("uring-cold-gather512-d0=1.5", 0), ("urging-cold-gather512-d0=1.5", 4), ("uring-cold", 4)):
        done = subprocess.run([*command, given], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr


def test_benchmark_with_a_pretended_eviction_fails_and_is_not_kept(table_file: Path, tmp_path: Path) -> None:
    code, output, kept = _benchmark(table_file, tmp_path, "mmap-random-cold", PRETENDED)
    assert code == 1, output
    assert "warm-leak" in output
    assert kept == []


def test_proof_after_a_round_is_not_timed(table_file: Path, tmp_path: Path) -> None:
    code, output, kept = _benchmark(table_file, tmp_path, "direct-warm", SLOW_CHECK)
    assert code == 0, output
    assert len(kept) == 1
    assert kept[0]["stats"]["rounds"] == 8
    assert kept[0]["stats"]["min"] < SLOW_CHECK_S  # with the check in it, no round could be shorter
