"""Compiling ahead: every program that cases will need, while something else is judged."""

from __future__ import annotations

from collections.abc import Sequence

from harness.cases.case import ROWS, TOKENS, Case
from harness.engines.fast import FastAdapter
from harness.engines.protocol import Engine


def warm_up(engine: Engine, cases: Sequence[Case]) -> None:
    """Feed prompts of every compiled length that the cases have, and decode; other engines have nothing to compile."""
    if not isinstance(engine, FastAdapter):
        return
    settings, eos = engine.settings, engine.config.ple.hash.eos
    pieces = [
        size
        for case in cases
        for prompt in case.prompts
        for whole, rest in (divmod(len(prompt.ids), settings.chunk),)
        for size in ([settings.chunk] if whole else []) + ([rest] if rest else [])
    ]
    for size in sorted({settings.bucket(size) for size in pieces}, reverse=True):
        engine.new_sequence().feed([eos] * min(size, settings.context))
    sequence = engine.new_sequence()
    sequence.feed([eos])
    for _ in sequence.generate(2):
        pass
    if any(case.levels != (ROWS, TOKENS) for case in cases):
        sequence.record([eos])
