"""Mixture of experts: the best few of many small networks for each token, and one shared network for all."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from model_file.config import ModelConfig
from reference.parameters import Experts
from reference.shapes import Array, Float, Record


def experts(weights: Experts, x: Float[Array, "t d"], config: ModelConfig, record: Record) -> Float[Array, "t d"]:
    """The weighted sum of each token's chosen experts, plus the gated shared expert."""
    shares = route(weights.ffn_gate_inp, x, config, record)

    def add_expert(total: Float[Array, "t d"], expert: tuple[Array, ...]) -> tuple[Float[Array, "t d"], None]:
        share, gate, up, down = expert
        return total + share[:, None] * feed_forward(gate, up, down, x), None

    # Every expert sees every token, with share 0 where it was not chosen: plain, and right for few experts.
    routed, _ = jax.lax.scan(
        add_expert,
        jnp.zeros_like(x),
        (shares.T, weights.ffn_gate_exps, weights.ffn_up_exps, weights.ffn_down_exps),
    )
    shared = feed_forward(weights.ffn_gate_shexp, weights.ffn_up_shexp, weights.ffn_down_shexp, x)
    return routed + jax.nn.sigmoid(x @ weights.ffn_gate_inp_shexp)[:, None] * shared


def route(
    router: Float[Array, "x d"], x: Float[Array, "t d"], config: ModelConfig, record: Record
) -> Float[Array, "t x"]:
    """Each token's share of each expert: a softmax over all, cut to the best few and brought back to sum 1."""
    chances = jax.nn.softmax(x @ router.T, axis=-1)
    record("expert_chances", chances)
    best, chosen = jax.lax.top_k(chances, config.experts_used)
    best = best / jnp.sum(best, axis=-1, keepdims=True) * (config.expert_weights_scale or 1.0)
    return jnp.zeros_like(chances).at[jnp.arange(x.shape[0])[:, None], chosen].set(best)


def feed_forward(
    gate: Float[Array, "f d"], up: Float[Array, "f d"], down: Float[Array, "d f"], x: Float[Array, "t d"]
) -> Float[Array, "t d"]:
    """The gated network that every expert is: down(silu(gate x) * up x)."""
    return (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T
