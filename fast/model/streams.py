"""What every layer uses: normalisation, rotary positions, causal convolutions, and the residual streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fast.model.weights import HyperConnection
from model_file.config import ModelConfig
from reference.shapes import Array, Float, Int


def normalise(x: Float[Array, "... n"], eps: float) -> Float[Array, "... n"]:
    """Root mean square 1 over the last axis; gains are the caller's."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)


def rotations(positions: Int[Array, "t"], config: ModelConfig) -> tuple[Float[Array, "t o2"], Float[Array, "t o2"]]:
    """Cosines and sines of every position's rotary angles: computed once for all layers and heads of a chunk."""
    half = config.rope_width // 2
    powers = config.rope_base ** (np.arange(half, dtype=np.float64) / half)
    frequencies = jnp.asarray((1.0 / powers).astype(np.float32))
    angles = (positions.astype(jnp.float32) / config.rope_divisor)[:, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "t heads k"], turns: tuple[Float[Array, "t o2"], Float[Array, "t o2"]]
) -> Float[Array, "t heads k"]:
    """Turn the first dims of every head by its token's angles; dim i is paired with dim i + o/2."""
    cos, sin = turns[0][:, None, :], turns[1][:, None, :]
    half = cos.shape[-1]
    left, right = x[..., :half], x[..., half : 2 * half]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin, x[..., 2 * half :]], axis=-1)


def convolve(
    x: Float[Array, "t c"],
    past: Float[Array, "q c"],
    taps: Float[Array, "K c"],
    count: Int[Array, ""] | None,
    dilation: int,
) -> tuple[Float[Array, "t c"], Float[Array, "... c"]]:
    """Depthwise causal convolution over time; the last tap meets the current token.

    Shapes: past is the (K-1)*dilation inputs before x, oldest first. Of x, the first `count` rows are tokens, the rest
    is padding: the past that is returned ends with the last token. Without a count all inputs are returned.
    """
    length, kernel = x.shape[0], taps.shape[0]
    whole = jnp.concatenate([past, x])
    out = whole[:length] * taps[0]
    for tap in range(1, kernel):
        out += whole[tap * dilation : tap * dilation + length] * taps[tap]
    return out, whole if count is None else jax.lax.dynamic_slice_in_dim(whole, count, past.shape[0])


def read_streams(
    weights: HyperConnection, streams: Float[Array, "t s d"], config: ModelConfig
) -> tuple[Float[Array, "t d"], Float[Array, "t s"] | None]:
    """Mix the residual streams into a block's input; the second is how strongly each stream takes its output."""
    count, rank = streams.shape[0], weights.up.shape[0]
    normed = normalise(streams, config.rms_eps) * weights.norm
    read = (normed.reshape(count, -1) @ weights.read) / config.streams
    gate = jax.nn.sigmoid(jax.nn.silu(read[:, :rank]) @ weights.up).reshape(normed.shape)
    mixed = jnp.mean(gate * normed, axis=1)
    return mixed, 2 * jax.nn.sigmoid(read[:, rank:]) if read.shape[1] > rank else None


def write_streams(
    streams: Float[Array, "t s d"], inject: Float[Array, "t s"] | None, out: Float[Array, "t d"]
) -> Float[Array, "t s d"]:
    """Add a block's output to every stream, as strongly as `read_streams` said."""
    assert inject is not None
    return streams + inject[:, :, None] * out[:, None, :]
