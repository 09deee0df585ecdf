"""Gated delta net, the linear token mixer: a matrix of state per head, decayed and corrected token by token."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from model_file.config import ModelConfig
from reference.layers import causal_conv, rms_norm
from reference.parameters import DeltaNet
from reference.shapes import Array, Float, Record


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeltaNetState:
    """What a delta net carries: the last K-1 convolution inputs and one w x w memory per value head."""

    conv: Float[Array, "q c"]
    memory: Float[Array, "b w w"]


def fresh_delta_net_state(config: ModelConfig) -> DeltaNetState:
    """The state before a sequence's first token: zeros."""
    width = config.delta_width
    return DeltaNetState(
        conv=jnp.zeros((config.delta_conv_kernel - 1, config.delta_channels), jnp.float32),
        memory=jnp.zeros((config.delta_value_heads, width, width), jnp.float32),
    )


def delta_net(
    weights: DeltaNet, x: Float[Array, "t d"], state: DeltaNetState, config: ModelConfig, record: Record
) -> tuple[Float[Array, "t d"], DeltaNetState]:
    """The mixer's output for a chunk, and the state after it.

    Source: gated delta networks (arXiv 2412.06464), with a sigmoid output gate and value heads tiled over key heads.
    """
    count, width, keys, values = x.shape[0], config.delta_width, config.delta_key_heads, config.delta_value_heads
    mixed, conv = causal_conv(x @ weights.attn_qkv.T, state.conv, weights.ssm_conv1d)
    query, key, value = jnp.split(jax.nn.silu(mixed), [keys * width, 2 * keys * width], axis=-1)
    query = _unit(query.reshape(count, keys, width), config.rms_eps) * width**-0.5
    key = _unit(key.reshape(count, keys, width), config.rms_eps)
    tile = (1, values // keys, 1)  # value head j uses key head j % keys
    beta = jax.nn.sigmoid(x @ weights.ssm_beta.T)
    decay = weights.ssm_a * jax.nn.softplus(x @ weights.ssm_alpha.T + weights.ssm_dt)
    memory, out = jax.lax.scan(
        _step,
        state.memory,
        (jnp.tile(query, tile), jnp.tile(key, tile), value.reshape(count, values, width), beta, decay),
    )
    record("memory_read", out)
    normed = (rms_norm(out, config.rms_eps) * weights.ssm_norm).reshape(count, -1)
    return (normed * jax.nn.sigmoid(x @ weights.attn_gate.T)) @ weights.ssm_out.T, DeltaNetState(conv, memory)


def _step(
    memory: Float[Array, "b w w"], token: tuple[Array, Array, Array, Array, Array]
) -> tuple[Float[Array, "b w w"], Float[Array, "b w"]]:
    """One token: forget, write what the memory did not already say for this key, read."""
    query, key, value, beta, decay = token
    memory = memory * jnp.exp(decay)[:, None, None]
    known = jnp.einsum("bkw,bk->bw", memory, key)
    update = beta[:, None] * (value - known)
    memory = memory + key[:, :, None] * update[:, None, :]
    return memory, jnp.einsum("bkw,bk->bw", memory, query)


def _unit(x: Float[Array, "t heads w"], eps: float) -> Float[Array, "t heads w"]:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)
