"""The gate above the rows, with an engine made by hand that answers as recorded but for one thing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from fast.rows import RowReader, locate_table, open_rows
from harness.answers.produce import fixture_answers
from harness.answers.store import read_golden
from harness.cases.registry import case_by_id
from harness.engines.protocol import LOGITS, ROWS
from harness.gate.tokens import OUTSIDE_BOUND, CaseRun, TokenJudge
from harness.gate.verdicts import ModeVerdict
from harness.oracle import HashOracle
from model_file.gguf_file import open_gguf
from tests.conftest import FIXTURES


class Recited:
    """Recorded answers, with the rows read that they need, `extra_rows` more, and logits `off` at position 3."""

    name, abilities = "recited", frozenset((ROWS, LOGITS))
    reader: RowReader

    def __init__(self, oracle: HashOracle, extra_rows: int, off: float) -> None:
        golden, answers = read_golden("tiny"), fixture_answers(case_by_id("tiny"))
        assert golden is not None and answers is not None
        self.golden, self.answers, self.oracle = golden, answers, oracle
        self.extra_rows, self.off = extra_rows, off

    def new_sequence(self) -> RecitedSequence:
        return RecitedSequence(self)


class RecitedSequence:
    """One answer."""

    def __init__(self, engine: Recited) -> None:
        self.engine, self.position, self.number = engine, 0, -1

    def feed(self, ids: Sequence[int]) -> None:
        self.number = [prompt.ids for prompt in self.engine.golden.prompts].index(tuple(ids))

    def logits(self, ids: Sequence[int]) -> Any:
        self.feed(ids)
        logits = self.engine.answers[f"logits_{self.number}"].copy()
        logits[3] *= 1 + self.engine.off
        return logits

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        prompt = self.engine.golden.prompts[self.number]
        tokens = [*prompt.ids, *prompt.generated[: count - 1]]
        self.position = len(tokens)
        self.engine.reader.gather(self.engine.oracle.rows(tokens).reshape(-1))
        self.engine.reader.gather(np.zeros(self.engine.extra_rows, np.uint64))
        yield from zip(prompt.generated[:count], prompt.margins[:count], strict=True)


def judged(extra_rows: int = 0, off: float = 0.0) -> ModeVerdict:
    verdict = ModeVerdict("resident")
    with open_gguf(FIXTURES / "tiny.gguf") as model, open_rows(locate_table(model), "resident") as reader:
        oracle = HashOracle(model)
        engine: Any = Recited(oracle, extra_rows, off)
        # Probes are another check's: without them the logits of an outside engine are all there is to compare with.
        prompts = tuple(dataclasses.replace(prompt, probes=()) for prompt in engine.golden.prompts)
        golden = dataclasses.replace(engine.golden, prompts=prompts)
        case = case_by_id("tiny")
        TokenJudge(engine, oracle, frozenset(), lambda _: None).judge(verdict, reader, CaseRun(case, golden))
    return verdict


def test_recorded_answers_are_equal() -> None:
    assert judged().findings == judged(off=OUTSIDE_BOUND / 2).findings == []


@pytest.mark.parametrize("extra_rows", [1, 4])
def test_rows_read_in_vain_are_found(extra_rows: int) -> None:
    (finding,) = judged(extra_rows=extra_rows).findings
    assert finding.check == "row ids"
    found, expected = finding.detail["found"], finding.detail["expected"]
    assert isinstance(found, int) and isinstance(expected, int)
    assert found == expected + extra_rows
    assert f"the engine asked for {found} rows, expected {expected}" in finding.message


@pytest.mark.parametrize("off", [2 * OUTSIDE_BOUND, float("nan")])
def test_logits_are_compared_with_an_outside_engine_at_every_position(off: float) -> None:
    (finding,) = judged(off=off).findings
    assert (finding.check, finding.detail["position"]) == ("logits", 3)
    assert "against an outside engine" in finding.message
