"""The choice of blocks against sorting all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.model.attention import GROUP_BLOCKS, _best_blocks, _score_widths

BUDGET = 16


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
