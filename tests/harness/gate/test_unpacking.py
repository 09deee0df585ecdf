"""Unpacking of every table type in the gate."""

from __future__ import annotations

from typing import Any

import pytest

from fast.rows import dequantize
from harness.gate import unpacking
from harness.gate.checks import Finding
from harness.oracle import TABLE_TYPES


def found(without: frozenset[str] = frozenset()) -> list[Finding]:
    findings: list[Finding] = []
    unpacking.judge_types(findings, without)
    return findings


def test_every_type_is_unpacked_rightly() -> None:
    assert found() == []


@pytest.mark.parametrize("kind", TABLE_TYPES, ids=lambda kind: kind.name)
def test_a_wrong_value_of_any_type_is_found_and_named(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value of the last row, on the host; the device is proven by a planted fault."""
    right = dequantize.dequantize_numpy

    def wrong(packed: Any, type: Any) -> Any:
        values = right(packed, type).copy()
        values[-1, -1] += type is kind
        return values

    monkeypatch.setattr(dequantize, "dequantize_numpy", wrong)
    (finding,) = found()
    assert finding.check == "f32 rows"
    row = unpacking.MADE_ROWS - 1
    assert finding.message.startswith(f"{kind.name}, on the host: first difference in f32 rows: prompt made rows")
    assert f"row {row} " in finding.message and f"{kind.name}.table" in finding.message
    assert found(frozenset(["f32 rows"])) == []
