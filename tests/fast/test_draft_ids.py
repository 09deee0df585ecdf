"""Ids with a draft head are those of the goldens, whatever else is chosen: every two choices meet at least once.

The heads are random, so that nearly every guess is wrong; every second row has some of them planted right.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import MODES, locate_table, open_rows
from harness.answers.record import GoldenPrompt
from harness.answers.store import read_golden
from harness.cases.models import model_path
from harness.cases.registry import case_by_id, cases, cases_of
from harness.synth import cache_folder
from model_file.gguf_file import open_gguf
from tests.fast.heads import head_for, pairwise

WHOLE = 1 << 20
AXES: dict[str, list[Any]] = {
    "golden": list(cases()),
    "mode": list(MODES),
    "piece": [1, 7, 64, WHOLE],
    "batch": [1, 3],
    "depth": [0, 7, 0.5],  # tokens of the answer that are fed before, or their share
    "draft": list(range(1, 9)),
}
ROWS = pairwise(AXES)
FEW = pairwise(
    {**AXES, "golden": ["pico-repeats", "pico-eos"], "mode": ["mmap", "auto"], "piece": [7, WHOLE], "draft": [3]}
)
TOKENS = 24  # of each answer, from where it is taken up: enough to reject and accept in every place of a step
LONG = 200  # a longer prompt is fed in whole pieces: one token at a time it would take minutes


def check_rows(rows: list[dict[str, Any]], folder: Path) -> None:
    """Run each row; all of one draft length."""
    for model in dict.fromkeys(case_by_id(row["golden"]).model for row in rows):
        path = model_path(model)
        context = max(case.tokens for case in cases_of(model))
        with ExitStack() as stack:
            file = stack.enter_context(open_gguf(path))
            settings = EngineSettings(
                context=context,
                chunk=64,
                buckets=(64,),
                draft=rows[0]["draft"],
                mtp=str(head_for(path, folder)),
                cache_dir=cache_folder() / "programs",
            )
            reader = stack.enter_context(open_rows(locate_table(file), "mmap"))
            engine = stack.enter_context(FastEngine(file, reader, settings))
            for row in (row for row in rows if case_by_id(row["golden"]).model == model):
                with open_rows(locate_table(file), row["mode"]) as engine.reader:
                    check_row(engine, row, planted=rows.index(row) % 2 == 1)


def check_row(engine: FastEngine, row: dict[str, Any], planted: bool) -> None:
    golden = read_golden(row["golden"])
    assert golden is not None
    every = [*golden.prompts] * row["batch"]
    prompts = every[-row["batch"] :]
    starts = [_start(prompt, row["depth"]) for prompt in prompts]
    fed = [[*prompt.ids, *prompt.generated[:start]] for prompt, start in zip(prompts, starts, strict=True)]
    sequences = [engine.new_sequence() for _ in prompts]
    piece = row["piece"] if max(map(len, fed)) <= LONG else WHOLE
    for at in range(0, max(map(len, fed)), piece):
        parts = [(one, ids[at : at + piece]) for one, ids in zip(sequences, fed, strict=True) if ids[at : at + piece]]
        engine.feed_batch(parts, last_only=True)
    for sequence, prompt, start in zip(sequences, prompts, starts, strict=True):
        expected = list(prompt.generated[start : start + TOKENS])
        known = [*prompt.ids, *prompt.generated]

        def mixed(tokens: list[int], guesses: list[int], known: list[int] = known) -> list[int]:
            right = known[len(tokens) : len(tokens) + len(guesses)]
            places = range(len(tokens), len(known))  # every fifth guess stays as it is
            return [ours if place % 5 else guess for place, ours, guess in zip(places, right, guesses, strict=False)]

        engine.timings.reset()
        engine.planted = mixed if planted else None
        assert sequence.greedy(len(expected)) == expected, (row, prompt.name)
        assert engine.timings.drafted
        assert engine.timings.accepted or not planted


def _start(prompt: GoldenPrompt, depth: float) -> int:
    return min(int(depth) if depth >= 1 else int(depth * len(prompt.generated)), len(prompt.generated) - 5)


@pytest.mark.slow
@pytest.mark.parametrize("draft", AXES["draft"])
def test_every_two_choices_give_the_goldens_ids(draft: int, tmp_path: Path) -> None:
    check_rows([row for row in ROWS if row["draft"] == draft], tmp_path)


def test_ids_are_the_goldens_on_a_small_model(tmp_path: Path) -> None:
    check_rows(FEW, tmp_path)


def test_every_two_choices_meet() -> None:
    for one, other in ((one, other) for one in AXES for other in AXES if one < other):
        met = {(row[one], row[other]) for row in ROWS}
        assert len(met) == len(AXES[one]) * len(AXES[other])
