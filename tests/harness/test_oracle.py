"""The oracle: its hash against the contract and against ours, and the search for the first tensor that differs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines import recorded
from harness.gate.place import first_place
from harness.oracle import HashOracle
from model_file.hash_constants import HashConstants
from reference import ngram


def oracle(
    multipliers: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], per_order: int, eos: int
) -> HashOracle:
    names = {
        "layer_multipliers": np.array(multipliers, np.uint64),
        "head_vocab_sizes": np.array(sizes, np.uint64),
        "head_offsets": np.array(offsets, np.uint64),
        "heads_per_ngram": per_order,
        "eos_token_id": eos,
    }
    return HashOracle(SimpleNamespace(metadata={f"qwen4exp.ple.{name}": value for name, value in names.items()}))  # type: ignore[arg-type]


def test_oracle_gives_the_contract_vectors() -> None:
    found = oracle([3, 5, 7], [101, 103], [0, 101], 1, 99).rows([7, 9, 11])
    assert found.tolist() == [[1, 124], [56, 136], [12, 162]]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.lists(st.integers(1, 2**64 - 1), min_size=3, max_size=3),
)
def test_oracle_and_hash_agree(tokens: list[int], multipliers: list[int]) -> None:
    """Two implementations with nothing in common, on short sequences full of EOS (1)."""
    sizes, offsets = [1009, 1013, 1019, 1021], [0, 1009, 2022, 3041]
    ours = HashConstants(tuple(multipliers), tuple(sizes), tuple(offsets), 2, 1)
    right = oracle(multipliers, sizes, offsets, 2, 1).rows(tokens)
    assert np.array_equal(ngram.row_ids(ours, tokens, ngram.fresh_history(ours)), right)


class _Recorded:
    """An engine whose recorded values are given: [t, 3] for each name."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self.values, self.at = values, 0

    def new_sequence(self) -> _Recorded:
        return _Recorded(self.values)

    def record(self, ids: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        part = slice(self.at, self.at + len(ids))
        self.at += len(ids)
        named: dict[str, Any] = {name: value[part] for name, value in self.values.items() if name != "logits"}
        return self.values["logits"][part], named


NAMES = ("blk.0.mixer", "blk.0.experts", "blk.0.streams", "blk.1.ple", "blk.1.mixer", "blk.10.streams", "logits")


@pytest.mark.parametrize("piece", [1, 2, 4])
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], None),
        ([("blk.1.ple", 5)], ("blk.1.ple", 5)),
        ([("blk.1.ple", 5), ("blk.0.mixer", 6)], ("blk.1.ple", 5)),  # the earlier position
        ([("logits", 5), ("blk.10.streams", 5), ("blk.1.mixer", 5)], ("blk.1.mixer", 5)),  # then the earlier tensor
        ([("blk.0.experts", 0), ("blk.0.mixer", 0)], ("blk.0.mixer", 0)),
    ],
)
def test_first_place_is_the_first_cause(
    monkeypatch: pytest.MonkeyPatch, piece: int, changed: list[tuple[str, int]], expected: tuple[str, int] | None
) -> None:
    monkeypatch.setattr(recorded, "PIECE", piece)
    rng = np.random.default_rng(3)
    right = {name: rng.normal(size=(8, 3)) for name in reversed(NAMES)}
    found = {name: value + 1e-7 for name, value in right.items()}
    for name, position in changed:
        found[name][position, 1] += 0.5
    place = first_place(_Recorded(found), _Recorded(right), range(8), 1e-3)  # type: ignore[arg-type]
    assert (None if place is None else (place.tensor, place.position)) == expected


def test_first_place_sees_values_that_are_no_numbers() -> None:
    right = {name: np.ones((4, 3)) for name in NAMES}
    found = {name: value.copy() for name, value in right.items()}
    found["blk.1.mixer"][2, 0] = np.nan
    place = first_place(_Recorded(found), _Recorded(right), range(4), 1e-3)  # type: ignore[arg-type]
    assert place is not None
    assert (place.tensor, place.position) == ("blk.1.mixer", 2)
