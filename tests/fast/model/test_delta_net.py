"""The delta net's matrix form against its recurrence, and the triangular inverse in it against NumPy's."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.model.delta_net import _many_tokens, _one_token, _unit_lower_inverse


def lower(rng: np.random.Generator, size: int, scale: float) -> np.ndarray:
    return np.tril(rng.uniform(-scale, scale, (3, 2, size, size)), -1).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 5, 8, 16, 48, 64])
def test_unit_lower_inverse_is_the_inverse(size: int) -> None:
    below = lower(np.random.default_rng(size), size, 0.3)
    exact = np.linalg.inv(below.astype(np.float64) + np.eye(size))
    found = np.asarray(jax.jit(_unit_lower_inverse)(below))
    assert np.abs(found - exact).max() <= 1e-6 * np.abs(exact).max()


def test_unit_lower_inverse_keeps_its_digits_for_repeated_keys() -> None:
    """All keys equal, beta 1, no decay: the inverse has entries of 1 and -1, while powers of the matrix reach 1e17."""
    below = np.tril(np.ones((1, 1, 64, 64), np.float32), -1)
    found = np.asarray(jax.jit(_unit_lower_inverse)(below))[0, 0]
    exact = np.eye(64) - np.eye(64, k=-1)
    assert np.abs(found - exact).max() <= 1e-6


@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 48, 64]), st.booleans(), st.sampled_from([0.0, 0.5, 30.0]))
@settings(max_examples=settings.default.max_examples // 4)
def test_matrix_form_of_the_delta_net_equals_its_recurrence(seed: int, piece: int, repeat: bool, fade: float) -> None:
    rng, length, keys, heads, width = np.random.default_rng(seed), 3 * 48 if piece == 48 else 128, 2, 4, 8
    key = rng.standard_normal((length, keys, width)).astype(np.float32)
    if repeat:
        key[:] = key[0]
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    query = rng.standard_normal((length, keys, width)).astype(np.float32)
    value = rng.standard_normal((length, heads, width)).astype(np.float32)
    beta = rng.uniform(0, 1, (length, heads)).astype(np.float32)
    decay = -fade * rng.uniform(0, 1, (length, heads)).astype(np.float32)
    memory = rng.standard_normal((heads, width, width)).astype(np.float32)
    read, after = jax.jit(_many_tokens, static_argnums=6)(query, key, value, beta, decay, memory, piece)
    expected, step = [], jax.jit(_one_token)
    for t in range(length):
        out, memory = step(query[t], key[t], value[t], beta[t], decay[t], memory)
        expected.append(out[0])
    # Both are float32 sums of the same products in another order; a piece sums up to 64 of them: 5e-7 measured.
    scale = float(np.abs(expected).max())
    assert np.abs(np.asarray(read) - np.stack(expected)).max() <= 5e-6 * scale
    assert np.abs(np.asarray(after) - np.asarray(memory)).max() <= 5e-6 * float(np.abs(memory).max())
