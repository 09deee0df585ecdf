"""`plegate advise`: what it recommends, only where it is clearly better, and what it cannot say."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from fast.rows import MODES, RowSettings, Table, residency, syscalls
from fast.rows.probe import DeviceRate
from harness.measure import advise as harness_advise
from harness.measure.advise import Advice, ModeSpeed, advise_table, sentences
from tests.fast.rows.commands import gemma, run, table_of


def test_advise_measures_and_says_what_to_use(tmp_path: Path) -> None:
    path = gemma(tmp_path / "gemma.gguf", table_rows=20_000)
    done = run("advise", path, "--json", tmp_path / "a.json", "--seed", "3")
    result = json.loads((tmp_path / "a.json").read_text())
    assert done.exit_code == (3 if result["cold_problem"] else 0), done.output
    assert result["schema"] == "plegate.advise/1"
    assert result["rows_per_token"] == 1
    assert "Use " in done.output
    assert result["recommended"] in MODES
    assert all(mode["warm"] > 0 for mode in result["modes"])


def test_advise_without_any_way_to_verify_cold_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gemma(tmp_path / "gemma.gguf")

    def neither(_: Table) -> float:
        raise OSError(errno.ENOSYS, "residency cannot be verified")

    monkeypatch.setattr(residency, "resident_fraction", neither)
    done = run("advise", path)
    assert done.exit_code == 3
    assert "nothing measured here could be called cold" in " ".join(done.output.split())


def made_advice(**cold: list[float]) -> Advice:
    """Advice from made-up rounds of cold rates; every mode but the uncached ones is ten times faster warm."""
    advice = Advice(table_bytes=6 << 30, rows_per_token=16, available_bytes=20 << 30, fits=True)
    for name, rounds in cold.items():
        mode = name.replace("_", "-")
        middle = sorted(rounds)[1]
        warm = middle if "uncached" in mode else 10 * middle
        advice.modes.append(ModeSpeed(mode, mode, middle, rounds, warm, 3e-4, 2e-5))
    return advice


@pytest.mark.parametrize(
    ("cold", "expected"),
    [
        ({"auto": [80, 85, 90], "uring": [82, 84, 91]}, "auto"),
        ({"auto": [60, 62, 64], "uring": [80, 84, 91]}, "uring"),
        ({"auto": [60, 62, 85], "uring": [80, 84, 91]}, "auto"),  # the rounds overlap: noise
        ({"auto": [60, 62, 64], "uring_uncached": [80, 84, 91]}, "auto"),  # keeps nothing warm
    ],
)
def test_advise_recommends_another_mode_only_where_it_is_clearly_better(
    cold: dict[str, list[float]], expected: str
) -> None:
    advice = made_advice(**cold)
    assert advice.recommended == expected
    assert any(sentence.startswith(f"Use {expected}") for sentence in sentences(advice))


@pytest.mark.parametrize(
    ("rows_per_page", "cold", "said"),
    [
        (1.0, [900.0] * 3, "no reader can prefill faster than about 62 tokens"),
        (4.2, [900.0] * 3, "4.2 of the rows drawn share a page."),
        (4.2, [3900.0] * 3, "4.2 of the rows drawn share a page, and prefetch got 390% of it."),
        (1.0, [1500.0] * 3, "This limit is none for this table: prefetch got 150% of it"),
    ],
)
def test_advise_claims_no_limit_that_its_own_numbers_exceed(rows_per_page: float, cold: list[float], said: str) -> None:
    advice = made_advice(prefetch=cold)
    advice.device = [DeviceRate(1000, 4096, 1.0, depth, "uring") for depth in (1, 16, 64, 256)]
    advice.rows_per_page = rows_per_page
    text = " ".join(sentences(advice))
    assert said in text
    assert ("no reader can prefill faster" in text) == (advice.limit_problem is None)


def test_advise_counts_rows_that_share_a_page(tiny_quant: Path) -> None:
    table = table_of(tiny_quant)
    advice = advise_table(table, 4, RowSettings(), 1, lambda _: None)
    ids = np.arange(table.rows)
    places = [(table.place(row)[1], table.place(row)[1] + table.row_bytes - 1) for row in ids.tolist()]
    pages = {place // 4096 for ends in places for place in ends}
    assert harness_advise._pages(table, ids) == len(pages)
    assert advice.rows_per_page > 2
    assert advice.limit is None or "too small for this limit" in " ".join(sentences(advice))


def test_advise_names_fallbacks_and_tables_that_do_not_fit(tiny_quant: Path) -> None:
    def refuse(name: str, *arguments: int) -> int:
        return -errno.EPERM if name == "io_uring_setup" else syscalls.call(name, *arguments)

    advice = advise_table(table_of(tiny_quant), 4, RowSettings(syscall=refuse), 1, lambda _: None)
    advice.fits = False
    text = " ".join(sentences(advice))
    assert "uring ran as direct: io_uring is forbidden here" in text
    assert "do not use `resident`" in text
