"""Decoding with drafts in the fast engine, against llama.cpp and against plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fast.engine.engine import FastEngine
from fast.rows import locate_table, open_rows
from model_file.gguf_file import open_gguf
from tests.conftest import FIXTURES
from tests.fast.engines import opened, shared

ANSWERS: dict[str, Any] = json.loads((FIXTURES / "tiny-mtp.json").read_text())
WAYS = (("mmap", 64), ("uring", 7), ("direct", 1), ("auto", 3))
"""Access modes, and pieces that the prompt is fed in."""


@pytest.mark.parametrize("most", sorted({run["n"] for run in ANSWERS["runs"]}))
def test_ids_and_counts_are_those_of_llama_cpp(most: int) -> None:
    runs = [run for run in ANSWERS["runs"] if run["n"] == most]
    assert len(runs) >= 2
    with opened("tiny-mtp", draft=most) as engine, open_gguf(FIXTURES / "tiny-mtp.gguf") as model:
        for mode, piece in WAYS:
            with open_rows(locate_table(model), mode) as engine.reader:
                for run in runs:
                    engine.timings.reset()
                    sequence, prompt = engine.new_sequence(), ANSWERS["prompts"][run["prompt"]]
                    for start in range(0, len(prompt), piece):
                        sequence.feed(prompt[start : start + piece], last_only=True)
                    assert sequence.greedy(len(run["tokens"])) == run["tokens"]
                    assert engine.timings.drafted == (run["draft_n"] or 0)
                    assert engine.timings.accepted == (run["draft_n_accepted"] or 0)


PROMPT: list[int] = ANSWERS["prompts"][0]
PLAIN: list[int] = ANSWERS["runs"][0]["tokens"]
KNOWN = [*PROMPT, *PLAIN]
MOST = 3


def planted(right: Callable[[int, int], bool]) -> Any:
    """Guesses of which those are right that `right` says, by the number of tokens fed and the place of the guess."""

    def guesses(known: list[int], given: list[int]) -> list[int]:
        truth = KNOWN[len(known) : len(known) + len(given)]
        return [token if right(len(known), place) else (token + 1) % 512 for place, token in enumerate(truth, start=1)]

    return guesses


SOURCES: dict[str, tuple[Callable[[int, int], bool], tuple[int, int]]] = {
    # 24 tokens after the first: with 3 guesses a step, all wrong, 21 steps of 3 and then 2, 1 and none.
    "always wrong": (lambda *_: False, (21 * 3 + 2 + 1, 0)),
    # 4 tokens a step.
    "always right": (lambda *_: True, (5 * 3 + 3, 18)),
    # 2 tokens a step.
    "right up to the first": (lambda _, place: place <= 1, (11 * 3 + 1, 12)),
    # 3 steps of 4 tokens, then one a step.
    "right up to token 10": (lambda fed, _: fed < len(PROMPT) + 10, (3 * 3 + 9 * 3 + 2 + 1, 9)),
}


def greedy_with(engine: FastEngine, source: Any, count: int) -> tuple[list[int], tuple[int, int]]:
    sequence = engine.new_sequence()
    sequence.feed(PROMPT, last_only=True)
    engine.timings.reset()
    engine.planted = source
    try:
        return sequence.greedy(count), (engine.timings.drafted, engine.timings.accepted)
    finally:
        engine.planted = None


@pytest.mark.parametrize("source", SOURCES)
def test_ids_are_those_of_plain_decoding_whatever_is_guessed(source: str) -> None:
    right, counts = SOURCES[source]
    assert greedy_with(shared("tiny-mtp", draft=MOST), planted(right), 25) == (PLAIN[:25], counts)


class Counting:
    """A reader that notes how many rows each gather asks for."""

    def __init__(self, reader: Any) -> None:
        self.reader, self.asked = reader, list[int]()

    def gather(self, ids: Any, out: Any = None) -> Any:
        self.asked.append(len(ids))
        return self.reader.gather(ids, out=out)


def test_rows_of_a_token_and_its_guesses_are_gathered_in_one_batch() -> None:
    with opened("tiny-mtp", draft=MOST) as engine:
        sequence = engine.new_sequence()
        sequence.feed(PROMPT, last_only=True)
        counting = engine.reader = Counting(engine.reader)
        engine.planted = planted(lambda *_: True)
        sequence.greedy(12)
        # Steps of 4 and 4 tokens, then 4 are left: the guess at the last is as good as known, so that two are made.
        assert counting.asked == [tokens * engine.config.ple.heads for tokens in (4, 4, 3, 1)]
        engine.planted = planted(lambda *_: False)
        counting.asked.clear()
        sequence.greedy(4)
        assert counting.asked == [tokens * engine.config.ple.heads for tokens in (3, 2, 1, 1)]


def test_stopping_among_accepted_guesses_leaves_the_sequence_where_it_was_stopped() -> None:
    engine = shared("tiny-mtp", draft=MOST)
    sequence = engine.new_sequence()
    sequence.feed(PROMPT, last_only=True)
    engine.planted = planted(lambda *_: True)
    try:
        steps = sequence.generate(20)
        found = [next(steps)[0] for _ in range(6)]
        assert sequence.position == len(PROMPT) + 8, "two steps of four tokens"
        steps.close()
        assert sequence.tokens == [*PROMPT, *found] == KNOWN[: len(PROMPT) + 6]
        assert len(sequence.margins) == 6
        assert sequence.greedy(10) == PLAIN[6:16]
    finally:
        engine.planted = None


def test_margins_are_those_of_plain_decoding() -> None:
    margins = []
    for settings in ({"draft": MOST}, {}):
        sequence = shared("tiny-mtp", **settings).new_sequence()
        sequence.feed(PROMPT, last_only=True)
        sequence.greedy(24)
        margins.append(sequence.margins)
    assert len(margins[0]) == len(margins[1]) == 24
    assert margins[0] == pytest.approx(margins[1], rel=1e-3, abs=1e-3)


def test_all_that_drafts_need_can_be_compiled_ahead() -> None:
    with opened("tiny-mtp", draft=2) as engine:
        engine.compile_ahead(lengths=(64,))()
        before = engine.compilations
        sequence = engine.new_sequence()
        sequence.feed(PROMPT, last_only=True)
        engine.timings.reset()
        assert sequence.greedy(8) == PLAIN[:8]
        assert engine.compilations == before
