"""Compiling ahead: every program that cases will need, while something else is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.cases.case import ROWS, TOKENS, Case
from harness.engines import recorded, variations
from harness.engines.fast import FastAdapter
from harness.engines.protocol import Engine


def compile_ahead(engine: Engine, cases: Sequence[Case], other: Callable[..., Engine]) -> None:
    """Compile what the cases need, the engine's own steps first; an engine that compiles nothing is left alone.

    other: the engine with other settings, which the variations ask for.
    """
    if not isinstance(engine, FastAdapter):
        return
    chunk = engine.settings.chunk
    sizes = [len(prompt.ids) for case in cases for prompt in case.prompts]
    lengths = {min(size, chunk) for size in sizes} | {size % chunk or chunk for size in sizes}
    wait = engine.inner.compile_ahead(lengths=None if any(case.varied == "alone" for case in cases) else [*lengths])
    if any(case.levels != (ROWS, TOKENS) for case in cases):
        engine.inner.compile_ahead(lengths=[recorded.PIECE], recorded=True)
    wait()
    for case in cases:
        if case.varied == "together":
            small = other(**variations.small_settings([prompt.ids for prompt in case.prompts]))
            if isinstance(small, FastAdapter):
                small.inner.compile_ahead((variations.BATCH,), [variations.PIECE])()
