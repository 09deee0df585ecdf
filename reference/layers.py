"""What every layer uses: normalisation, rotary positions, causal convolution, and the hyper-connection."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from model_file.config import ModelConfig
from reference.parameters import HyperConnection
from reference.shapes import Array, Float, Int


def rms_norm(x: Float[Array, "... width"], eps: float) -> Float[Array, "... width"]:
    """Divide by the root of the mean square over the last axis; the gain is applied by the caller, stored as it is."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def rotate(x: Float[Array, "t heads k"], positions: Int[Array, "t"], config: ModelConfig) -> Float[Array, "t heads k"]:
    """Rotary positions on the first `rope_width` dims of every head, dim i paired with dim i + rope_width/2.

    Interleaved M-RoPE of text equals this: all three axes have the token's position, and the configuration has made
    sure that every pair belongs to an axis.
    """
    half = config.rope_width // 2
    exponents = np.arange(half, dtype=np.float64) / half
    frequencies = jnp.asarray((1.0 / config.rope_base**exponents).astype(np.float32))
    angles = (positions.astype(jnp.float32) / config.rope_divisor)[:, None] * frequencies  # [t, half]
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def causal_conv(
    x: Float[Array, "t c"], past: Float[Array, "q c"], taps: Float[Array, "c K"], dilation: int = 1
) -> tuple[Float[Array, "t c"], Float[Array, "q c"]]:
    """Depthwise causal convolution over time, no bias; the last tap meets the current token.

    Shapes: past is the (K-1)*dilation inputs before x, oldest first. Returns the result and the past of what follows.
    """
    count, kernel = x.shape[0], taps.shape[1]
    whole = jnp.concatenate([past, x])
    out = sum(whole[tap * dilation : tap * dilation + count] * taps[:, tap] for tap in range(kernel))
    return jnp.asarray(out), whole[count:]


def read_streams(
    weights: HyperConnection, streams: Float[Array, "t s d"], config: ModelConfig
) -> tuple[Float[Array, "t d"], Float[Array, "t s"]]:
    """Mix the residual streams into one block input, and say how strongly each stream takes the block's output.

    Returns the input [t, d] and the injection [t, s]; the output's connection has none and gives zeros.
    Source: hyper-connections (arXiv 2409.19606) in the low-rank, input-dependent form of this architecture.
    """
    normed = rms_norm(streams, config.rms_eps) * weights.norm
    flat = normed.reshape(normed.shape[0], -1)
    low = jax.nn.silu(flat @ weights.down.T / config.streams)
    gate = jax.nn.sigmoid(low @ weights.up.T).reshape(normed.shape)
    mixed = jnp.mean(gate * normed, axis=1)
    if weights.inject is None:
        return mixed, jnp.zeros(streams.shape[:2])
    return mixed, 2 * jax.nn.sigmoid(flat @ weights.inject.T / config.streams)
