"""What the kernel saw: advice that was taken and not only asked for, and what is said where it cannot be asked."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fast.rows import RowSettings, syscalls
from fast.rows.prefetch import Adviser
from harness.cases.case import parse_modes
from harness.cases.registry import case_by_id
from harness.cli import app
from harness.gate import rows
from harness.gate import run as gate
from harness.gate.advice import taken_ranges
from tests.conftest import FIXTURES

TINY_QUANT = FIXTURES / "tiny-quant.gguf"


def _refusing(*refused: str) -> RowSettings:
    """A kernel that refuses these calls."""
    inner = syscalls.call
    return RowSettings(syscall=lambda name, *rest: -errno.EPERM if name in refused else inner(name, *rest))


def _prefetch_evidence(settings: RowSettings) -> gate.ModeVerdict:
    case = dataclasses.replace(case_by_id("tiny-quant"), generate=0)
    options = gate.GateOptions(settings=settings)
    return gate.run_gate(TINY_QUANT, [case], parse_modes(["prefetch"]), options).modes[0]


@pytest.mark.parametrize("refused", [(), ("pidfd_open",), ("process_madvise",)])
def test_prefetch_is_equal_by_either_kind_of_advice(refused: tuple[str, ...]) -> None:
    found = _prefetch_evidence(_refusing(*refused))
    assert (found.verdict, found.findings) == ("equal", [])
    assert found.evidence is not None
    assert found.evidence["advised_pages"] == found.evidence["pages"] > 200


def test_prefetch_that_advises_nothing_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused calls are no advice, and neither is a fallback that calls nothing and says that it did."""
    monkeypatch.setattr(syscalls, "madvise", lambda *_: 0)
    found = _prefetch_evidence(_refusing("process_madvise"))
    assert found.verdict == "different"
    assert found.evidence is not None
    assert f"0 of {found.evidence['pages']} pages were advised" in found.findings[0].message


@pytest.mark.parametrize("refused", [(), ("pidfd_open",)])
def test_prefetch_that_advises_one_range_of_many_is_different(
    monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...]
) -> None:
    original = Adviser.willneed
    monkeypatch.setattr(Adviser, "willneed", lambda self, at, sizes: original(self, at[:1], sizes[:1]))
    found = _prefetch_evidence(_refusing(*refused))
    assert found.verdict == "different"
    assert found.findings[0].check == "mode evidence"
    assert "pages were advised before they were touched, expected all" in found.findings[0].message


def test_advice_of_another_kind_or_cut_short_is_not_counted() -> None:
    """process_madvise says how many bytes it took: of two ranges of 8192 bytes here all, one and a half, or none."""
    vectors = np.array([4096, 8192, 40960, 8192], np.int64)
    asked = (3, syscalls.address_of(vectors), 2, 3, 0)
    assert taken_ranges(16384, asked) == [(4096, 8192), (40960, 8192)]
    assert taken_ranges(12288, asked) == [(4096, 8192), (40960, 4096)]
    assert taken_ranges(8192, asked) == [(4096, 8192)]
    assert taken_ranges(-errno.EPERM, asked) == taken_ranges(16384, (*asked[:3], 4, 0)) == []


def test_gate_says_where_reading_cannot_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc nothing is known of the way: the verdict, the mode's line and the reports say so."""
    monkeypatch.setattr(rows, "look", lambda *_: None)
    out, junit, prompt = (tmp_path / name for name in ("result.json", "result.xml", "prompt.json"))
    prompt.write_text("[226, 320, 456]")
    arguments = [TINY_QUANT, "--tokens", prompt, "--mode", "prefetch", "--generate", 0, "--json", out, "--junit", junit]
    shown = CliRunner().invoke(app, ["gate", *map(str, arguments)])
    flat = " ".join(shown.output.split())
    words = "the rows were compared, how they were read could not be seen: no /proc"
    assert shown.exit_code == 0
    assert f"prefetch: {words}" in flat
    assert f"byte for byte. But {words}" in flat
    result = json.loads(out.read_text())
    assert words in result["verdict"]
    assert result["modes"][0]["unseen"] == words
    assert words in junit.read_text()
