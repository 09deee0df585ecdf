"""Faults in the engine: the hash, the layers, the choice of tokens, and what a sequence remembers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from harness.faults.fault import Trial, fault
from harness.faults.planting import replace_function


@fault("row ids", "position 64, head 0")
def lost_history(_: Trial) -> None:
    """Every chunk starts as if nothing had been fed before it."""
    from fast.engine.hashing import TokenHash

    replace_function(TokenHash, "many", lambda original: lambda self, tokens, _: original(self, tokens, []))


def with_multipliers(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    """Give the engine a configuration with other hash multipliers."""
    from fast.engine import engine

    def changed(original: Any) -> Any:
        def config_from(model: Any) -> Any:
            config = original(model)
            constants = replace(config.ple.hash, multipliers=change(config.ple.hash.multipliers))
            return replace(config, ple=replace(config.ple, hash=constants))

        return config_from

    replace_function(engine, "config_from", changed)


@fault("row ids", "position 0, head 0")
def float32_multiplier(_: Trial) -> None:
    """The multipliers pass through float32, which keeps 24 of their bits."""
    with_multipliers(lambda values: tuple(int(np.float32(value)) for value in values))


@fault("row ids", "position 0, head 0")
def reversed_multipliers(_: Trial) -> None:
    """The multipliers are taken oldest token first."""
    with_multipliers(lambda values: values[::-1])


@fault("tokens", "generated token", "the margin is large enough")
def rounded_choice(_: Trial) -> None:
    """The best token is chosen from logits rounded to quarters; the logits themselves stay right."""
    import jax.numpy as jnp

    from fast.engine import programs

    def rounding(original: Any) -> Any:
        return lambda logits: original(jnp.round(logits * 4) / 4)._replace(logits=logits)

    replace_function(programs, "outcome_of", rounding)


@fault("control tokens", "request 2 differs from request 1")
def leaking_history(trial: Trial) -> None:
    """A new request starts with the last tokens of the request before."""
    from fast.engine.chunks import ChunkMaker

    last: list[list[int]] = []

    def leaking(original: Any) -> Any:
        def cut(self: Any, before: list[list[int]], fed: list[list[int]]) -> Any:
            fresh = last and not any(before)
            yield from original(self, [list(last[0]) for _ in before] if fresh else before, fed)
            last[:] = [[*before[0], *fed[0]][-2:]]

        return cut

    replace_function(ChunkMaker, "cut", leaking)
    trial.begin = last.clear


@fault("row ids", "the engine asked for", "rows, expected")
def rows_read_in_vain(_: Trial) -> None:
    """After an answer the engine reads the rows of one token more, and uses them for nothing."""
    from fast.engine.engine import FastEngine

    def reading_on(original: Any) -> Any:
        def generate(self: Any, sequence: Any, count: int) -> Any:
            yield from original(self, sequence, count)
            self.reader.gather(np.zeros(len(self.config.ple.hash.sizes), np.uint64))

        return generate

    replace_function(FastEngine, "generate", reading_on)


@fault("logits", "position 3", "against an outside engine")
def logits_wrong_between_probes(_: Trial) -> None:
    """The fourth logits of a prompt are a thousandth too large: no token is chosen from them, no golden has them."""
    from fast.engine.engine import FastEngine

    def scaling(original: Any) -> Any:
        def feed_batch(self: Any, work: Any, last_only: bool = False) -> Any:
            found = original(self, work, last_only=last_only)
            if not last_only:
                found[0] = np.array(found[0])
                found[0][3:4] *= 1.001
            return found

        return feed_batch

    replace_function(FastEngine, "feed_batch", scaling)
