"""PLE: the rows that a token's hashed n-grams name, gated by the residual streams and smoothed over time."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from model_file.config import ModelConfig
from reference.layers import causal_conv, rms_norm
from reference.parameters import Ple
from reference.shapes import Array, Float, Record


def fresh_ple_state(config: ModelConfig) -> Float[Array, "q sd"]:
    """The convolution inputs before a sequence's first token: zeros, (K-1)*N columns of them."""
    past = (config.ple.conv_kernel - 1) * config.ple.hash.order
    return jnp.zeros((past, config.streams * config.width), jnp.float32)


def ple(
    weights: Ple,
    rows: Float[Array, "t ne"],
    streams: Float[Array, "t s d"],
    past: Float[Array, "q sd"],
    config: ModelConfig,
    record: Record,
) -> tuple[Float[Array, "t s d"], Float[Array, "q sd"]]:
    """What the layer adds to the streams for a chunk, and the convolution's past after it.

    Shapes: rows is each token's n table rows in head order, side by side.
    """
    count, eps = rows.shape[0], config.rms_eps
    key = rms_norm((rows @ weights.ple_key.T).reshape(streams.shape), eps) * weights.ple_norm_key
    query = rms_norm(streams, eps) * weights.ple_norm_query
    agreement = jnp.sum(key * query, axis=-1) * config.width**-0.5
    record("ple_agreement", agreement)
    # A signed square root, steep at zero: where |agreement| < 3e-5, correct engines may differ by 1e-3 in the gate.
    gate = jax.nn.sigmoid(jnp.sign(agreement) * jnp.sqrt(jnp.maximum(jnp.abs(agreement), 1e-6)))
    gated = gate[:, :, None] * (rows @ weights.ple_value.T)[:, None, :]
    normed = (rms_norm(gated, eps) * weights.ple_norm_conv).reshape(count, -1)
    smoothed, past = causal_conv(normed, past, weights.ple_conv1d, dilation=config.ple.hash.order)
    return gated + jax.nn.silu(smoothed).reshape(gated.shape), past
