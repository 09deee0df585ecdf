"""Every table type: packed blocks that dequantize to finite, sane, varied rows."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from harness.synth.bits import BitStream
from harness.synth.table import TABLE_MASKS, row_bytes, table_blocks, table_type
from model_file.errors import InputError

TYPES = list(TABLE_MASKS)


def _rows(kind: gguf.GGMLQuantizationType, count: int = 3000) -> np.ndarray:
    raw = BitStream("table", 0, "rows").take(count * row_bytes(kind, 512))
    return gguf.dequantize(table_blocks(raw, kind).reshape(count, -1), kind)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_are_finite_and_near_one(kind: gguf.GGMLQuantizationType) -> None:
    rows = _rows(kind)
    assert rows.shape == (3000, 512)
    assert np.isfinite(rows).all()
    assert 0.5 <= np.sqrt((rows.astype(np.float64) ** 2).mean()) <= 1.5
    assert np.abs(rows).max() <= 8.0


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_differ_from_each_other(kind: gguf.GGMLQuantizationType) -> None:
    assert len({row.tobytes() for row in _rows(kind)}) == 3000


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_only_scale_words_are_touched(kind: gguf.GGMLQuantizationType) -> None:
    raw = BitStream("table", 0, "rows").take(1000 * row_bytes(kind, 512))
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    changed = (raw.copy().reshape(-1, block_bytes) != table_blocks(raw, kind).reshape(-1, block_bytes)).any(axis=0)
    scales = np.zeros(block_bytes, dtype=bool)
    for mask in TABLE_MASKS[kind]:
        scales[mask.offset_bytes : mask.offset_bytes + mask.width_bytes] = True
    assert not (changed & ~scales).any()
    assert changed.any()


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_the_finite_check_can_fail(kind: gguf.GGMLQuantizationType) -> None:
    """Unmasked bits of the same stream are not finite, or far from one: the masks are what makes them so."""
    raw = BitStream("table", 0, "rows").take(3000 * row_bytes(kind, 512))
    with np.errstate(all="ignore"):
        rows = gguf.dequantize(raw.reshape(3000, -1), kind)
    assert not (np.isfinite(rows).all() and np.abs(rows).max() <= 8.0)


def test_row_bytes_are_those_of_gguf() -> None:
    assert row_bytes(gguf.GGMLQuantizationType.IQ4_NL, 160) == 90
    assert row_bytes(gguf.GGMLQuantizationType.Q8_0, 160) == 170
    assert row_bytes(gguf.GGMLQuantizationType.F16, 160) == 320
    assert row_bytes(gguf.GGMLQuantizationType.Q6_K, 256) == 210


@pytest.mark.parametrize(("name", "width"), [("Q6_K", 160), ("IQ1_S", 160), ("Q8_0", 100), ("F32", 0), ("F32", -1)])
def test_row_bytes_refuses_a_width_that_does_not_fit(name: str, width: int) -> None:
    with pytest.raises(InputError, match=f"--type {name}: rows of {width} values.*--width"):
        row_bytes(table_type(name), width)


def test_table_type_takes_any_case_and_names_the_choice() -> None:
    assert table_type("iq4_nl") == gguf.GGMLQuantizationType.IQ4_NL
    with pytest.raises(InputError, match=r"--type Q3_K: .*IQ4_NL.*Q6_K"):
        table_type("Q3_K")
