"""The parts whose form differs most from their definition, each against the definition itself, in NumPy."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.engine.hashing import TokenHash
from fast.engine.settings import EngineSettings, plan_for
from fast.model.attention import GROUP_BLOCKS, _best_blocks, _score_widths
from fast.model.delta_net import _many_tokens, _one_token, _unit_lower_inverse
from fast.model.experts import DIRECT_TOKENS, experts
from fast.model.weights import Experts
from model_file.hash_constants import HashConstants
from reference import ngram
from tests.fast.engines import shared

BUDGET = 16


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


@given(st.integers(0, 2**32 - 1), st.integers(1, 24), st.sampled_from([256, 512, 640]))
@settings(max_examples=settings.default.max_examples // 2)
def test_best_blocks_are_the_best_and_the_lowest_among_equals(seed: int, budget: int, width: int) -> None:
    """Scores of few different values, most of them 0 as rectified scores are, and all depths."""
    rng = np.random.default_rng(seed)
    complete = rng.integers(0, width + 1, 9).astype(np.int32)
    wanted = rng.choice([0.0, 0.0, 0.0, 1.0, 2.0], (9, width)).astype(np.float32)
    # One head per query of which only one entry is not zero: a block's score is that entry of its key.
    asking = np.eye(9, dtype=np.float32)[:, None, :]
    blocks = wanted
    run = jax.jit(_best_blocks, static_argnums=(0, 1))
    found = np.asarray(run(budget, width, asking, blocks, complete))
    for row in range(9):
        scores = np.where(np.arange(width) < complete[row], wanted[row], -np.inf)
        order = np.lexsort((np.arange(width), -scores))[: min(budget, complete[row])]
        assert found[row, : order.size].tolist() == order.tolist()


def top_k_calls(budget: int, width: int) -> int:
    """How often `_best_blocks` chooses: once among all blocks, or twice, among groups and then inside the chosen."""
    args = (jnp.zeros((1, 1, 1)), jnp.zeros((1, width)), jnp.zeros(1, jnp.int32))
    return str(jax.make_jaxpr(_best_blocks, static_argnums=(0, 1))(budget, width, *args)).count("top_k[")


@pytest.mark.parametrize(("groups", "calls"), [(BUDGET - 1, 1), (BUDGET, 1), (BUDGET + 1, 2), (8 * BUDGET, 2)])
def test_best_blocks_keep_the_lowest_of_tied_blocks_in_groups_of_any_order(groups: int, calls: int) -> None:
    """Small whole numbers, most of them rare: the groups with the best maxima are in no order, their ties are many."""
    width, queries = groups * GROUP_BLOCKS, 64
    assert top_k_calls(BUDGET, width) == calls
    rng = np.random.default_rng(width)
    scores = np.floor(rng.exponential(0.6, (queries, width))).astype(np.float32)
    complete = rng.integers(width // 2, width + 1, queries).astype(np.int32)
    run = jax.jit(_best_blocks, static_argnums=(0, 1))
    found = np.asarray(run(BUDGET, width, np.eye(queries, dtype=np.float32)[:, None, :], scores, complete))
    # The product with one entry and the division by sqrt(64) are exact: equal scores stay equal.
    scores[np.arange(width) >= complete[:, None]] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :BUDGET]
    np.testing.assert_array_equal(found, expected)
    last = np.take_along_axis(scores, expected[:, -1:], axis=1)
    assert ((scores == last).sum(axis=1) > (scores[np.arange(queries)[:, None], expected] == last).sum(axis=1)).any()


def test_best_blocks_test_reaches_both_forms() -> None:
    assert top_k_calls(24, 256) == 1
    assert top_k_calls(24, 640) == 2
    assert _score_widths(3000, 16) == [512, 2048, 3000]
    assert _score_widths(100, 16) == [100]
    assert _score_widths(4000, 700)[0] == 704


def dense_experts(weights: Experts, x: np.ndarray, used: int) -> np.ndarray:
    """Every expert for every token, in float64."""
    read, gate_up, down, shared_down = (
        np.asarray(a, np.float64) for a in (weights.read, weights.gate_up, weights.down, weights.shared_down)
    )
    number, two = gate_up.shape[:2]
    silu = lambda a: a / (1 + np.exp(-a))  # noqa: E731
    all_read = x.astype(np.float64) @ read
    chances = np.exp(all_read[:, :number])
    chances /= chances.sum(axis=1, keepdims=True)
    out = np.zeros_like(x, dtype=np.float64)
    for t in range(x.shape[0]):
        best = np.argsort(-chances[t], kind="stable")[:used]
        for expert in best:
            hidden = gate_up[expert] @ x[t]
            fed = down[expert] @ (silu(hidden[: two // 2]) * hidden[two // 2 :])
            out[t] += chances[t, expert] / chances[t, best].sum() * fed
        gate, up = np.split(all_read[t, number + 1 :], 2)
        out[t] += (silu(gate) * up) @ shared_down / (1 + np.exp(-all_read[t, number]))
    return out


@pytest.mark.parametrize("tokens", [1, DIRECT_TOKENS, DIRECT_TOKENS + 1, 16, 48, 160])
@pytest.mark.parametrize("taste", ["even", "all the same", "one of them"])
def test_experts_equal_the_dense_sum_however_tokens_are_spread(tokens: int, taste: str) -> None:
    plan = shared("tiny").plan
    plan = plan_for(replace(plan.config, experts=8, experts_used=2), 0, EngineSettings(context=64, chunk=16))
    rng, width, hidden, shared_width = np.random.default_rng(tokens), 24, 10, 6
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape).astype(np.float32) / shape[-1] ** 0.5)  # noqa: E731
    read = normal(width, 8 + 1 + 2 * shared_width)
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    if taste == "all the same":
        x[:] = x[0]
    elif taste == "one of them":
        x[:-1] = x[0]
    weights = Experts(read, normal(shared_width, width), normal(8, 2 * hidden, width), normal(8, width, hidden))
    found = np.asarray(jax.jit(experts, static_argnums=2)(weights, jnp.asarray(x), plan))
    expected = dense_experts(weights, x, 2)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


numbers = st.integers(0, 2**64 - 1)


@given(st.data(), st.integers(2, 5), st.integers(1, 3), st.integers(0, 9))
def test_one_token_hashes_as_chunks_do(data: st.DataObject, order: int, per_order: int, eos: int) -> None:
    heads = (order - 1) * per_order
    draw = lambda low: tuple(data.draw(st.lists(st.integers(low, 2**63), min_size=heads, max_size=heads)))  # noqa: E731
    constants = HashConstants(
        multipliers=tuple(data.draw(st.lists(numbers, min_size=order, max_size=order))),
        sizes=draw(1),
        offsets=tuple(range(heads)),
        heads_per_ngram=per_order,
        eos=eos,
    )
    tokens = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    chunked, hashing = ngram.row_ids(constants, tokens, ngram.fresh_history(constants)), TokenHash(constants)
    for place, token in enumerate(tokens):
        np.testing.assert_array_equal(hashing.one(token, tokens[:place]), chunked[place])
        np.testing.assert_array_equal(hashing.many(tokens[place:], tokens[:place]), chunked[place:])
