"""What drafts gain when so many guesses are right: `python measurements/drafts.py MODEL --mtp HEAD --right 0.8`.

Warm decoding of one sequence, plain and with guesses, in turns on the same text. The head makes its guesses as always,
and each is then made right with the chance that is asked for: what is timed is all that a head of that quality costs.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import locate_table, open_rows
from harness.cases.registry import drawn
from harness.synth import cache_folder, ensure_model
from model_file.gguf_file import open_gguf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="default: nano")
    parser.add_argument("--mtp", help="the file that holds the head; default: the model's own")
    parser.add_argument("--draft", type=int, default=4, help="guesses before each check")
    parser.add_argument("--right", type=float, default=0.8, help="chance of a guess to be right")
    parser.add_argument("--depth", type=int, default=512, help="tokens before the first that is timed")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a turn")
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    with ExitStack() as stack:
        file = stack.enter_context(open_gguf(given.model or ensure_model("nano")))
        reader = stack.enter_context(open_rows(locate_table(file), "auto"))
        room = given.depth + given.tokens + 1
        plain = EngineSettings(context=room, chunk=min(512, room), cache_dir=cache_folder() / "programs")
        both = (plain, replace(plain, draft=given.draft, mtp=given.mtp))
        engines = [stack.enter_context(FastEngine(file, reader, settings)) for settings in both]
        for engine in engines:
            engine.warm_up(with_logits=False)
        measure(engines, given)


def measure(engines: list[FastEngine], given: argparse.Namespace) -> None:
    """Print tokens/s of each, and the ratios of the turns."""
    prompt, draw = list(drawn("drafts", given.depth, engines[0].config.vocab)), Random("drafts")
    saved = []
    for engine in engines:
        sequence = engine.new_sequence()
        sequence.feed(prompt, last_only=True)
        saved.append(sequence.save())
    first = engines[0].new_sequence()
    first.restore(saved[0])
    text = [*prompt, *first.greedy(given.tokens)]

    def planted(known: list[int], guesses: list[int]) -> list[int]:
        truth = text[len(known) : len(known) + len(guesses)]
        return [token if draw.random() < given.right else (token + 1) % engines[0].config.vocab for token in truth]

    engines[1].planted = planted
    seconds: list[list[float]] = [[], []]
    for _ in range(given.turns):
        for engine, state, times in zip(engines, saved, seconds, strict=True):
            sequence = engine.new_sequence()
            sequence.restore(state)
            started = perf_counter()
            found = sequence.greedy(given.tokens)
            times.append(perf_counter() - started)
            assert [*prompt, *found] == text, "the ids of plain decoding"
    timings = engines[1].timings
    ratios = sorted(one / other for one, other in zip(*seconds, strict=True))
    for name, times in zip(("plain", f"draft {given.draft}"), seconds, strict=True):
        print(f"{name}: {given.tokens / median(times):.1f} tokens/s")
    print(f"{timings.accepted} of {timings.drafted} guesses accepted; a guess is right with chance {given.right}")
    print(f"drafts / plain: {median(ratios):.2f} [{ratios[0]:.2f}..{ratios[-1]:.2f}] over {given.turns} turns")


if __name__ == "__main__":
    main()
