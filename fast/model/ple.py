"""PLE: packed table rows become vectors here, inside the compiled program, and are added to the streams."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fast.model.plan import Plan
from fast.model.streams import convolve, normalise
from fast.model.weights import Ple
from model_file.config import ModelConfig
from reference.shapes import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PleState:
    """The last inputs of the layer's convolution, which is dilated by the hash's order."""

    past: Float[Array, "q sd"]

    @classmethod
    def fresh(cls, config: ModelConfig) -> PleState:
        """The state before a sequence's first token."""
        inputs = (config.ple.conv_kernel - 1) * config.ple.hash.order
        return cls(jnp.zeros((inputs, config.streams * config.width), jnp.float32))


def ple_gated(
    weights: Ple, rows: Float[Array, "t ne"], streams: Float[Array, "t s d"], plan: Plan
) -> Float[Array, "t s d"]:
    """The rows' values, gated by how well their keys agree with each stream."""
    config = plan.config
    projected = rows @ weights.project
    wide = config.streams * config.width
    key = normalise(projected[:, :wide].reshape(streams.shape), config.rms_eps) * weights.norm_key
    query = normalise(streams, config.rms_eps) * weights.norm_query
    agreement = jnp.sum(key * query, axis=-1) * config.width**-0.5
    root = jnp.sqrt(jnp.maximum(jnp.abs(agreement), 1e-6))  # steep at zero: below 3e-5 rounding decides
    gate = jax.nn.sigmoid(jnp.sign(agreement) * root)
    return gate[:, :, None] * projected[:, None, wide:]


def ple_smoothed(
    weights: Ple, gated: Float[Array, "t s d"], state: PleState, count: Int[Array, ""] | None, plan: Plan
) -> tuple[Float[Array, "t s d"], PleState]:
    """What one sequence adds to its streams, and the state after its first `count` tokens; open without a count."""
    config = plan.config
    normed = (normalise(gated, config.rms_eps) * weights.norm_conv).reshape(gated.shape[0], -1)
    smoothed, past = convolve(normed, state.past, weights.taps, count, dilation=config.ple.hash.order)
    return gated + jax.nn.silu(smoothed).reshape(gated.shape), PleState(past)
