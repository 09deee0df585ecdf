"""Keys of indexer blocks, written chunk by chunk, for every ratio and lengths of chunks that it does not divide."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast.model.attention import IndexState, KeyValues, _extend_index
from fast.model.plan import shared_plan
from fast.model.streams import normalise, rotate, rotations
from fast.model.weights import Attention, load_weights
from model_file.config import ModelConfig, config_from
from model_file.gguf_file import open_gguf

TOKENS = 131


@pytest.fixture(scope="module")
def layer() -> tuple[Attention, ModelConfig]:
    with open_gguf(Path(__file__).parents[2] / "fixtures" / "tiny.gguf") as model:
        config = config_from(model)
        mixer = load_weights(model, config).layers[3].mixer
    assert isinstance(mixer, Attention)
    return mixer, config


def keys_at_once(raw: np.ndarray, ratio: int, mixer: Attention, config: ModelConfig) -> np.ndarray:
    """Of all complete blocks, from all raw keys. Shapes: [t, j] -> [y, j]."""
    blocks = len(raw) // ratio
    means = jnp.mean(jnp.asarray(raw[: blocks * ratio]).reshape(blocks, ratio, -1), axis=1)
    normed = (normalise(means, config.rms_eps) * mixer.indexer_k_norm)[:, None, :]
    return np.asarray(rotate(normed, rotations(jnp.arange(blocks) * ratio, config))[:, 0])


@pytest.mark.parametrize("ratio", range(2, 9))
@pytest.mark.parametrize("length", [1, 2, 16, 64])
def test_block_keys_are_those_of_the_whole_sequence(
    layer: tuple[Attention, ModelConfig], ratio: int, length: int
) -> None:
    """Chunks padded to `length`, of which all but the last token or two count, as when a prompt ends early."""
    mixer, config = layer
    plan = shared_plan(config, 0, 336 * 5, "highest")  # whole blocks of every ratio
    raw = np.random.default_rng(ratio).standard_normal((TOKENS, config.indexer_width)).astype(np.float32)
    asking = np.zeros((length, config.indexer_heads * config.indexer_width), np.float32)
    extend = jax.jit(lambda *a: _extend_index(mixer, *a, ratio, plan))
    state, cache, start = IndexState.fresh(ratio, plan), KeyValues.fresh(ratio, plan), 0
    while start < TOKENS:
        count = min(TOKENS - start, length if start % 3 else max(length - 1, 1))
        padded = np.full((length, config.indexer_width), 7, np.float32)
        padded[:count] = raw[start : start + count]
        index = jnp.concatenate([asking, padded], axis=1)
        state, cache = extend(index, jnp.int32(start), jnp.int32(count), state, cache)
        start += count
    expected = keys_at_once(raw, ratio, mixer, config)
    np.testing.assert_allclose(np.asarray(cache.blocks)[:, : len(expected)].T, expected, rtol=1e-5, atol=1e-5)
