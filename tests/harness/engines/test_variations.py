"""Every variation feeds the prompt and nothing else that stays, on an engine that only remembers what it was fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cases.registry import cases
from harness.engines.protocol import ABILITIES, Run, run_of
from harness.engines.variations import VARIATIONS, Bench, Variation

PROMPTS = [list(range(100, 100 + length)) for length in (1, 2, 45, 300, 90)]


class Remembering:
    """A sequence whose answer tells all that it was fed."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.sizes: list[int] = []

    def feed(self, ids: Sequence[int]) -> None:
        self.tokens += ids
        self.sizes.append(len(ids))

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        for _ in range(count):
            self.tokens.append(sum(self.tokens) % 1000)
            yield self.tokens[-1], 1.0

    def save(self) -> list[int]:
        return list(self.tokens)

    def restore(self, saved: list[int]) -> None:
        self.tokens = list(saved)

    def truncate(self, position: int) -> None:
        del self.tokens[position:]


class Engine:
    """Sequences of it, and batches of them."""

    abilities = frozenset(ABILITIES)
    reader: Any = None

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def new_sequence(self) -> Remembering:
        return Remembering()

    def memory(self) -> dict[str, int]:
        return {"experts": 8, "total": 100}

    def feed_batch(self, work: Sequence[tuple[Remembering, Sequence[int]]]) -> None:
        for sequence, ids in work:
            sequence.feed(ids)
            assert len(sequence.tokens) <= self.settings["context"]

    def greedy_batch(self, sequences: Sequence[Remembering], count: int) -> list[Run]:
        assert all(len(one.tokens) + count <= self.settings["context"] for one in sequences)
        return [run_of(sequence.generate(count)) for sequence in sequences]


def bench(told: list[Any]) -> Bench:
    reader: Any = SimpleNamespace(table=SimpleNamespace(row_bytes=18, rows=100), settings=None, mode="fake")
    engine: Any = Engine()
    engine.reader = reader
    return Bench(engine, reader, lambda **changes: Engine(**changes), told.extend)  # type: ignore[arg-type,return-value]


def alone(ids: Sequence[int], count: int) -> Run:
    sequence = Remembering()
    sequence.feed(ids)
    return run_of(sequence.generate(count))


@pytest.mark.parametrize("variation", [one for one in VARIATIONS if one.feed], ids=lambda one: one.name)
def test_a_variation_feeds_the_prompt_and_nothing_else(variation: Variation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.engines.variations.RowCache", lambda reader, _: reader)
    assert variation.feed is not None
    for ids in PROMPTS:
        found: Any = variation.feed(bench([]), ids)
        assert found.tokens == ids


@pytest.mark.parametrize("variation", [one for one in VARIATIONS if one.together], ids=lambda one: one.name)
def test_a_batch_answers_every_prompt_and_tells_what_it_fed(variation: Variation) -> None:
    assert variation.together is not None
    told: list[Any] = []
    assert variation.together(bench(told), PROMPTS, 4) == [alone(ids, 4) for ids in PROMPTS]
    longest = max(PROMPTS, key=len)
    assert all([*ids, *alone(ids, 4).tokens] in told for ids in PROMPTS if ids is not longest)


def test_every_variation_has_a_case_and_a_name_of_its_own() -> None:
    assert {case.varied for case in cases().values()} == {"", "together", "alone"}
    assert len({one.name for one in VARIATIONS}) == len(VARIATIONS)
    assert all(one.needs <= ABILITIES.keys() and bool(one.feed) != bool(one.together) for one in VARIATIONS)
