"""`plegate advise`: what it recommends, only where it is clearly better, and what it cannot say."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from fast.rows import MODES, Table, residency
from harness.engines.arms import Arm
from harness.measure.advise import DEPTHS, MEASURED, STEPS, Advice, ModeSpeed, advice_of, sentences
from harness.measure.cells import Cell, Workload
from harness.measure.store import Results
from tests.fast.rows.commands import gemma
from tests.harness.measure.conftest import made_up, plan, steady

Run = Callable[..., Result]


@pytest.mark.parametrize("kind", ["another architecture", "qwen4exp"])
def test_advise_measures_and_says_what_to_use(tmp_path: Path, tiny_quant: Path, run_command: Run, kind: str) -> None:
    path = tiny_quant if kind == "qwen4exp" else gemma(tmp_path / "gemma.gguf", table_rows=20_000)
    done = run_command("advise", path, "--json", tmp_path / "a.json", "--seed", "3", "--depth", "64")
    result = json.loads((tmp_path / "a.json").read_text())
    assert done.exit_code == (3 if result["cold_problem"] else 0), done.output
    assert result["schema"] == "plegate.advise/2"
    assert result["rows_per_token"] == (4 if kind == "qwen4exp" else 1)
    assert "Use " in done.output
    assert result["recommended"] in MODES
    ran = [mode for mode in result["modes"] if not mode["problem"]]
    assert all(mode["warm"] > 0 and mode["decode_warm_s"] > 0 for mode in ran)
    assert [mode["mode"] for mode in result["modes"]] == list(MEASURED)


def test_advise_without_any_way_to_verify_cold_cannot_run(
    tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gemma(tmp_path / "gemma.gguf")

    def neither(_: Table) -> float:
        raise OSError(errno.ENOSYS, "residency cannot be verified")

    monkeypatch.setattr(residency, "resident_fraction", neither)
    done = run_command("advise", path)
    assert done.exit_code == 3
    assert "nothing measured here could be called cold" in " ".join(done.output.split())


def results_of(repeats: int = 6, **factors: float) -> Results:
    """A run of `advise` in which modes take a factor of `auto`'s time; all but the uncached are far faster warm."""
    arms = [Arm(mode, mode) for mode in MEASURED]
    arms += [Arm(f"device-{depth}", "device", (("queue_depth", depth),)) for depth in DEPTHS]
    works = Workload("gather", 512), Workload("steps", STEPS)
    made = replace(plan(arms=tuple(arms), depths=(0,), workloads=works, repeats=repeats), least_unique=0.0)
    noise = steady(0.01)

    def seconds(cell: Cell) -> float:
        warm = 0.05 if cell.state == "warm" and "uncached" not in cell.arm else 1.0
        return noise(cell) * warm * factors.get(cell.arm.replace("-", "_"), 1.0)

    return made_up(made, seconds, rows={"pages": 2048, "total": 2048})


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({}, "auto"),
        ({"uring": 0.95}, "auto"),  # claimed, and too little to be worth it
        ({"uring": 0.7}, "uring"),
        ({"uring": 0.7, "direct": 0.6}, "direct"),
        ({"uring_uncached": 0.6}, "auto"),  # keeps nothing warm
    ],
)
def test_advise_recommends_another_mode_only_where_it_is_clearly_better(
    factors: dict[str, float], expected: str
) -> None:
    advice = advice_of(results_of(**factors), 20 << 30, 50.0)
    assert advice.recommended == expected
    assert any(sentence.startswith(f"Use {expected}") for sentence in sentences(advice))


def test_advise_claims_nothing_from_one_repeat() -> None:
    assert advice_of(results_of(repeats=1, uring=0.3), 20 << 30, 5.0).recommended == "auto"


def test_advise_finds_the_depth_that_is_enough() -> None:
    advice = advice_of(results_of(device_1=10.0, device_16=1.5, device_64=1.0, device_256=1.0), 20 << 30, 50.0)
    assert advice.depth == 64
    assert list(advice.device) == list(DEPTHS)


def test_advise_names_fallbacks_and_what_was_not_cold() -> None:
    results = results_of()
    for cell in results.cells.values():
        if cell["cell"]["arm"] == "uring":
            reason = "fell-back: mode uring cannot run here, direct ran in its place: io_uring is forbidden here"
            cell |= {"valid": False, "reasons": [reason]}
    advice = advice_of(results, 1 << 20, 50.0)
    text = " ".join(sentences(advice))
    assert "mode uring cannot run here, direct ran in its place: io_uring is forbidden here." in text
    assert "do not use `resident`" in text
    assert advice.cold_problem is None
    for cell in results.cells.values():
        if cell["cell"]["arm"] == "auto":
            cell |= {"valid": False, "reasons": ["eviction-failed: 40% stayed"]}
    assert "Not everything cold was measured: eviction-failed" in " ".join(sentences(advice_of(results, None, 1.0)))


def test_advise_praises_no_table_of_holes() -> None:
    results = results_of()
    for cell in results.cells.values():
        cell["residency"] = {"holes": 0.5}
    assert "50.0% of the table was never written" in " ".join(sentences(advice_of(results, None, 1.0)))


@pytest.mark.parametrize(
    ("rows_per_page", "cold", "said"),
    [
        (1.0, 900.0, "no reader can prefill faster than about 62 tokens"),
        (4.2, 900.0, "4.2 of the rows drawn share a page."),
        (4.2, 3900.0, "4.2 of the rows drawn share a page, and prefetch got 390% of it."),
        (1.0, 1500.0, "This limit is none for this table: prefetch got 150% of it"),
    ],
)
def test_advise_claims_no_limit_that_its_own_numbers_exceed(rows_per_page: float, cold: float, said: str) -> None:
    modes = (ModeSpeed("prefetch", cold, 10 * cold, 3e-4, 2e-5),)
    advice = Advice(6 << 30, 16, 20 << 30, dict.fromkeys(DEPTHS, 1000.0), modes, rows_per_page)
    text = " ".join(sentences(advice))
    assert said in text
    assert ("no reader can prefill faster" in text) == (advice.limit_problem is None)
