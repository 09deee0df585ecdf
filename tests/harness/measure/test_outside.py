"""Another engine as an arm, behind a stand-in server: what is asked of it, and what is done when it answers wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from harness.engines.arms import Arm, parse_arm
from harness.engines.protocol import Completion
from harness.engines.serving import Room
from harness.measure import outside
from harness.measure.caveats import caveats
from harness.measure.statistics import summarise
from tests.harness.measure.conftest import made_up, plan, steady

Run = Callable[..., Result]


class StandIn:
    """Answers as llama-server does: it remembers what it has seen, and computes the rest."""

    computes_more = 0

    def __init__(self, arm: Arm, room: Room) -> None:
        self.given, self.known, self.closed = (arm, room), 0, False
        self.server = self

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def complete(self, tokens: Sequence[int], count: int, remember: bool = False, **_: Any) -> Completion:
        computed = len(tokens) - (self.known if remember and self.known < len(tokens) else 0) + self.computes_more
        self.known = len(tokens)
        return Completion([7] * count, computed, 0.001 * computed, 0.01 * count)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "connect", StandIn)


def _run(run_command: Run, model: Path, folder: Path, *more: str) -> Result:
    sizes = ("--workload", "prefill:16", "--workload", "decode:8", "--depth", "0", "--depth", "20", "--blocks", "1")
    arms = ("--arm", "resident", "--arm", "llama=llama-server -t 1", "--repeats", "1", "--no-twin")
    return run_command("bench", model, "--preset", "speed", *arms, *sizes, "--out", folder / "run", *more)


def test_engine_beside_ours_on_the_same_ids(tiny_quant: Path, tmp_path: Path, run_command: Run) -> None:
    summary = tmp_path / "summary.json"
    result = _run(run_command, tiny_quant, tmp_path, "--json", str(summary))
    assert result.exit_code == 0, result.output
    content = json.loads(summary.read_text())
    assert len(content["groups"]) == 4
    for group in content["groups"]:
        sides = {side["arm"]: side for side in group["arms"]}
        kind = group["workload"]["kind"]
        assert sides["llama"]["tokens_per_s"]["median"] == pytest.approx(1000 if kind == "prefill" else 100)
        assert sides["llama"]["ran"] == "llama-server -t 1"
        assert sides["resident"]["tokens_per_s"]["median"] > 0
    names = {caveat["name"]: caveat["text"] for caveat in content["caveats"]}
    assert "an outside engine, by its own clock" in names["note"]
    assert "such as" in names["other-tokens"]  # the stand-in answers 7 whatever it is asked


def test_engine_that_computes_other_tokens_than_asked_is_not_timed(
    tiny_quant: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "computes_more", 40)
    result = _run(run_command, tiny_quant, tmp_path)
    assert result.exit_code == 3, result.output
    assert "it remembered more or less than that depth" in " ".join(result.output.split())


def test_arm_is_told_to_the_server(tmp_path: Path) -> None:
    arm = parse_arm("l=/opt/llama-server -t 3")
    engine = outside.Outside(arm, tmp_path / "m.gguf", 4096)
    server = engine._llama
    assert isinstance(server, StandIn)
    assert server.given == (arm, Room(tmp_path / "m.gguf", 4096))
    engine.close()
    assert server.closed


def test_same_first_tokens_are_no_caveat() -> None:
    for tokens, named in (((5, 5), False), ((5, 6), True)):
        results = made_up(plan(), steady(0.01))
        for cell in results.cells.values():
            cell["first_token"] = tokens[cell["cell"]["arm"] == "uring"]
        names = {caveat.name for caveat in caveats(results, summarise(results))}
        assert ("other-tokens" in names) == named
