"""Both forms of the hash against Python's integers, and faults in either seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.engine import hashing
from fast.engine.hashing import TokenHash
from harness.faults.planting import rewrite
from model_file.hash_constants import HashConstants

EOS = 2


def by_definition(constants: HashConstants, tokens: list[int], at: int) -> list[int]:
    """Rows of the token at a place: the last m tokens, EOS for all that an EOS before the token hides or that is not
    there; the exclusive or of their products with the multipliers, modulo 2^64."""
    rows = []
    for order in range(2, constants.order + 1):
        window = [tokens[at]]
        for lag in range(1, order):
            hidden = lag > at or constants.eos in tokens[at - lag : at]
            window.append(constants.eos if hidden else tokens[at - lag])
        mix = 0
        for token, multiplier in zip(window, constants.multipliers, strict=False):
            mix ^= token * multiplier % 2**64
        per_order = constants.heads_per_ngram
        heads = range((order - 2) * per_order, (order - 1) * per_order)
        rows += [mix % constants.sizes[head] + constants.offsets[head] for head in heads]
    return rows


@st.composite
def constants(draw: Any) -> HashConstants:
    order, per_order = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    heads = (order - 1) * per_order

    def many(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    return HashConstants(many(0, 2**64 - 1, order), many(1, 2**63, heads), many(0, 2**62, heads), per_order, EOS)


tokens = st.lists(st.sampled_from([0, 1, EOS, EOS, 3, 2**31 - 1]), min_size=1, max_size=14)


@given(constants(), tokens)
def test_rows_are_the_definitions(constants: HashConstants, tokens: list[int]) -> None:
    """EOS everywhere; one token, and every rest of the tokens, after every number of tokens before."""
    hashed = TokenHash(constants)
    expected = [by_definition(constants, tokens, at) for at in range(len(tokens))]
    for at, token in enumerate(tokens):
        alone, rest = hashed.one(token, tokens[:at]), hashed.many(tokens[at:], tokens[:at])
        assert (alone.dtype, rest.dtype) == (np.uint64, np.uint64)
        assert alone.tolist() == expected[at]
        assert rest.tolist() == expected[at:]
        # The last N-1 tokens before are enough.
        before = tokens[max(0, at - constants.order + 1) : at]
        assert hashed.one(token, before).tolist() == expected[at]
        assert hashed.many(tokens[at : at + 1], before).tolist() == expected[at : at + 1]


ONE, CONTEXT = (TokenHash, "one"), (hashing, "_context")


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (ONE, "cut = cut or lag > available", "cut = lag > available"),  # EOS cuts one lag
        (ONE, "lag > available or before", "before"),
        (ONE, "or before[-lag] == eos", ""),
        (ONE, "mix & _MASK64", "mix & (_MASK64 >> 1)"),
        (ONE, "before[-lag]) * constants.multipliers[lag]", "before[-lag]) * constants.multipliers[lag - 1]"),
        (CONTEXT, "cut = cut | (columns", "cut = (columns"),
        (CONTEXT, "cut | (columns[lag] == constants.eos)", "cut"),
        ((TokenHash, "many"), "history[keep - len(last) :] = last", "history[: len(last)] = last"),
    ],
)
def test_faults_of_the_hash_are_seen(
    place: tuple[Any, str], old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = place
    monkeypatch.setattr(owner, name, vars(owner)[name])  # taken back at the end
    function = inspect.unwrap(vars(owner)[name])
    monkeypatch.setattr(function, "__code__", function.__code__)  # a module's function is changed in place
    rewrite(owner, name, old, new)
    check: Callable[[], None] = test_rows_are_the_definitions
    with pytest.raises((AssertionError, IndexError)):
        check()
