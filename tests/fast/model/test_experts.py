"""Routed experts against every expert for every token, in float64."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast.engine.settings import EngineSettings, plan_for
from fast.model.experts import DIRECT_TOKENS, experts
from fast.model.weights import Experts
from tests.fast.engines import shared


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
@pytest.mark.parametrize("taste", ["even", "all the same", "one of them", "even, tiles in groups of 2"])
def test_experts_equal_the_dense_sum_however_tokens_are_spread(
    tokens: int, taste: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "groups" in taste:
        monkeypatch.setattr("fast.model.experts.COPIED_FLOATS", 2 * 3 * 24 * 10)  # of two experts
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
    found = np.asarray(jax.jit(lambda *given: experts(*given, plan))(weights, jnp.asarray(x)))  # not from jit's cache
    expected = dense_experts(weights, x, 2)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()
