"""The formula of an engine's memory against the arrays themselves."""

from __future__ import annotations

from fast.engine.memory import memory_bytes
from fast.model.state import SequenceState, size_bytes
from tests.fast.engines import shared


def test_memory_is_what_the_formula_says() -> None:
    engine = shared("tiny")
    parts = memory_bytes(engine.plan, engine.settings, engine.step.weights_bytes)
    assert parts["total"] == sum(value for name, value in parts.items() if name != "total")
    state = SequenceState.fresh(engine.plan)
    assert parts["caches"] == size_bytes(state.caches)
    once = parts["recurrent"] // (1 + engine.settings.checkpoints)
    # The formula leaves out the last raw indexer keys, a few hundred bytes.
    assert abs(once - size_bytes(state.recurrent)) <= 0.02 * once
    assert engine.memory() == parts
    double = memory_bytes(engine.plan, engine.settings, engine.step.weights_bytes, sequences=2)
    assert double["caches"] == 2 * parts["caches"]
    assert double["weights"] == parts["weights"]
