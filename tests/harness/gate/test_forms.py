"""Which form of a case each mode runs: whole in the main one, short or not at all beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.answers.store import read_golden
from harness.cases.case import parse_modes
from harness.cases.registry import case_by_id
from harness.engines.protocol import ROWS
from harness.gate import run as gate
from tests.conftest import FIXTURES


class Counting:
    """Answers as recorded, and notes of each answer the mode whose rows it would read, the prompt and its length."""

    name, reader, config = "counting", None, None

    def __init__(self, abilities: frozenset[str], ran: list[tuple[str, int, int]]) -> None:
        golden = read_golden("tiny")
        assert golden is not None
        self.abilities, self.ran, self.prompts = abilities, ran, [prompt.ids for prompt in golden.prompts]
        self.answers = [list(zip(prompt.generated, prompt.margins, strict=True)) for prompt in golden.prompts]
        self.number, self.position = -1, 0

    def new_sequence(self) -> Counting:
        return self

    def feed(self, ids: Sequence[int]) -> None:
        self.number = self.prompts.index(tuple(ids))

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        reader: Any = self.reader
        self.ran.append((reader.mode, self.number, count))
        yield from self.answers[self.number][:count]

    def close(self) -> None:
        pass


def run_in(modes: Sequence[str], abilities: frozenset[str], monkeypatch: pytest.MonkeyPatch, short: int) -> list[Any]:
    ran: list[Any] = []
    monkeypatch.setattr(gate, "load_engine", lambda *_: Counting(abilities, ran))
    case = replace(case_by_id("tiny"), everywhere=False, short=short, repeats=1, generate=12)
    options = gate.GateOptions(goldens={"tiny": read_golden("tiny")}, without={"row ids"})
    result = gate.run_gate(FIXTURES / "tiny.gguf", [case], parse_modes(modes), options)
    assert result.exit_code == 0
    return ran


def whole(mode: str) -> list[tuple[str, int, int]]:
    return [(mode, number, 12) for number in range(3)]


def test_the_main_mode_runs_all_and_the_others_the_short_form_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    short = [("mmap", 0, 5), ("mmap", 1, 5)]
    assert run_in(["mmap", "auto"], frozenset({ROWS}), monkeypatch, 5) == [*short, *short, *whole("auto")]


def test_without_auto_the_first_mode_is_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_in(["mmap", "direct"], frozenset({ROWS}), monkeypatch, 0) == whole("mmap")


def test_an_engine_that_reads_its_own_way_runs_all_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_in(["mmap", "auto"], frozenset(), monkeypatch, 5) == whole("mmap")
