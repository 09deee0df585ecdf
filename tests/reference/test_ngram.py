"""The hash against published vectors and against Python's big integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_file.hash_constants import HashConstants, offsets_of, prime_sizes
from reference.ngram import fresh_history, next_history, row_ids

SMALL = HashConstants((3, 5, 7), (101, 103), (0, 101), heads_per_ngram=1, eos=99)
FLASH_NEXT_SIZES = prime_sizes(20_000_003, 16)
FLASH_NEXT = HashConstants(
    (23703573157769, 20109073645365, 8052911324071), FLASH_NEXT_SIZES, offsets_of(FLASH_NEXT_SIZES), 8, eos=248044
)


def rows_by_hand(constants: HashConstants, tokens: list[int], past: list[int]) -> list[list[int]]:
    """The contract read literally, with Python integers, one token and one lag at a time."""
    rows = []
    for at in range(len(tokens)):
        older = (past + tokens[: at + 1])[::-1]
        context, ended = [older[0]], False
        for lag in range(1, constants.order):
            ended = ended or lag >= len(older) or older[lag] == constants.eos
            context.append(constants.eos if ended else older[lag])
        row, mix = [], context[0] * constants.multipliers[0] % 2**64
        for lag in range(1, constants.order):
            mix ^= context[lag] * constants.multipliers[lag] % 2**64
            for head in range((lag - 1) * constants.heads_per_ngram, lag * constants.heads_per_ngram):
                row.append(mix % constants.sizes[head] + constants.offsets[head])
        rows.append(row)
    return rows


def test_row_ids_small_vector() -> None:
    found = row_ids(SMALL, [7, 9, 11], fresh_history(SMALL))
    assert found.dtype == np.uint64
    assert found.tolist() == [[1, 124], [56, 136], [12, 162]]


def test_row_ids_flash_next_vector() -> None:
    expected = (
        "17238551 37786998 58085363 66530061 90936363 119077008 131292711 147589323 "
        "163669071 180711380 217289238 227679745 246259980 264845837 284375812 302034413"
    )
    found = row_ids(FLASH_NEXT, [1000, 2000, 3000], fresh_history(FLASH_NEXT))
    assert found[2].tolist() == [int(row) for row in expected.split()]


@pytest.mark.parametrize(
    "tokens",
    [
        [99, 1, 2, 3],  # EOS at every lag as the window moves on
        [1, 99, 2, 3, 4],
        [1, 2, 99, 99, 3, 4, 5],  # doubled
        [1, 2, 99],  # as the current token: does not cut its own context
        [99],
        [99, 99, 99],
    ],
)
def test_row_ids_eos_cuts_what_is_older(tokens: list[int]) -> None:
    assert row_ids(SMALL, tokens, fresh_history(SMALL)).tolist() == rows_by_hand(SMALL, tokens, [])


def test_eos_is_not_an_ordinary_predecessor() -> None:
    """The check above can fail: with another EOS the same tokens read other rows."""
    other = HashConstants(SMALL.multipliers, SMALL.sizes, SMALL.offsets, 1, eos=98)
    tokens = [1, 99, 2, 3]
    assert (
        row_ids(SMALL, tokens, fresh_history(SMALL)).tolist() != row_ids(other, tokens, fresh_history(other)).tolist()
    )


@st.composite
def hash_constants(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int]:
    order = draw(st.integers(2, 5))
    per_order = draw(st.integers(1, 4))
    heads = (order - 1) * per_order
    word = st.integers(0, 2**64 - 1)
    sizes = draw(st.lists(st.integers(1, 2**40), min_size=heads, max_size=heads))
    offsets = draw(st.lists(st.integers(0, 2**40), min_size=heads, max_size=heads))
    multipliers = draw(st.lists(word, min_size=order, max_size=order))
    return tuple(multipliers), tuple(sizes), tuple(offsets), per_order, draw(st.integers(0, 9))


@given(hash_constants(), st.lists(st.integers(0, 9) | st.integers(0, 2**31 - 1), min_size=1, max_size=30), st.data())
def test_row_ids_equal_big_integers_in_any_split(drawn: tuple, tokens: list[int], data: st.DataObject) -> None:
    constants = HashConstants(*drawn)
    expected = rows_by_hand(constants, tokens, [])
    history, found, at = fresh_history(constants), [], 0
    while at < len(tokens):
        chunk = tokens[at : at + data.draw(st.integers(1, 7))]
        found += row_ids(constants, chunk, history).tolist()
        history = next_history(constants, chunk, history)
        at += len(chunk)
    assert found == expected
