"""The real llama-server as arms, for `nox -s engine`. Where it is not installed, skipped with the reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.answers.store import read_golden
from harness.cases.case import TokenPrompt
from harness.engines.arms import Arm, parse_arms
from harness.engines.program import find_server
from harness.engines.serving import Room, connect
from harness.errors import CannotRun
from harness.gate.arm_states import STATES
from harness.gate.arm_verdicts import ArmsResult
from harness.gate.arms import ArmOptions, judge_arms
from harness.gate.choice import own_case
from harness.synth import ensure_model
from model_file.gguf_file import open_gguf
from tests.conftest import FIXTURES
from tests.servers import processes_with

pytestmark = pytest.mark.slow
EXACT = "-t 1 -tb 1 -ctk f32 -ctv f32 -fa off"
IDS = ([*range(5, 45)], [100, 200, 300, 400, 12, 44, 17, 18], [33, 44, 55, 66, 77, 88, 99, 111, 122, 133])
WEIGHT = "blk.0.hc_attn_down.weight"


@pytest.fixture(scope="module")
def server() -> Path:
    try:
        return find_server()
    except CannotRun as reason:
        pytest.skip(str(reason))


def judged(server: Path, model: Path, count: int, *arms: str, **options: Any) -> ArmsResult:
    """Arms of the server with these arguments; one without a dash is a mode of ours."""
    texts = [f"a{n}={server} {text}" if text.startswith("-") else text for n, text in enumerate(arms)]
    case = own_case(model, [TokenPrompt(f"p{n}", tuple(ids)) for n, ids in enumerate(IDS)], count)
    found = judge_arms(model, [case], parse_arms(texts, None, None, EXACT), ArmOptions(**options), lambda _: None)
    assert not processes_with(str(server))
    return found


def test_lazy_modes_of_nano_are_equal_and_are_seen(server: Path, tmp_path: Path) -> None:
    nano = ensure_model("nano")
    result = judged(server, nano, 24, "-lzm off", "-lzm on", "-lzm auto", "prefetch")
    assert (result.exit_code, [arm.verdict for arm in result.arms]) == (0, ["equal"] * 4)
    off, on, auto, _ = (arm.evidence for arm in result.arms)
    assert off and on and auto
    assert "the whole table in memory" in off.way and "advice plain" in off.way
    assert "the table not read" in on.way and "advice random" in on.way
    assert [line.partition(" read ")[0] for line in result.alike] == ["a0 and a2", "a1 and prefetch"]  # small for auto
    assert all(arm.ours is not None and arm.ours.largest < 1e-3 for arm in result.arms)

    shutil.copyfile(nano, changed := tmp_path / "changed.gguf")
    with open_gguf(nano) as model:
        place = model.tensors[WEIGHT].offset_bytes + model.tensors[WEIGHT].size_bytes // 2
    with changed.open("r+b") as file:
        file.seek(place)
        block = file.read(128)
        file.seek(place)
        file.write(bytes(byte ^ 0x3C for byte in block))
    wrong = judged(server, nano, 24, "-lzm on", f"-lzm on -m {changed}", restart=False)
    assert wrong.exit_code == 1
    first = wrong.arms[1].clear[0]
    assert first.expected == first.ours != first.found
    assert first.margin_expected is not None and first.margin_ours is not None


def test_drafts_slots_and_states_give_the_same_ids(server: Path) -> None:
    names = tuple(STATES)
    arms = ("-lzm on", "-lzm on --spec-type draft-mtp --spec-draft-n-max 3", "-lzm on --spec-type ngram-simple")
    result = judged(server, FIXTURES / "tiny-mtp.gguf", 24, *arms, states=names, restart=False)
    assert result.exit_code == 0
    for arm in result.arms:
        assert list(arm.states) == list(names)
        assert all(found.startswith("equal: ") for found in arm.states.values())
    assert 0 < result.arms[1].accepted < result.arms[1].drafted


def test_its_own_v1_gives_the_same_ids(server: Path) -> None:
    golden = read_golden("nano-texts")
    assert golden is not None
    arm = Arm("x", "llama-server", words=(str(server), *EXACT.split()))
    case = own_case(ensure_model("nano"), [TokenPrompt(p.name, p.ids) for p in golden.prompts[:2]], 24)
    with connect(arm, Room(ensure_model("nano"), 1024)).server as running:
        arms = parse_arms([f"native={running.address}", f"v1=openai:{running.address}"], None)
        result = judge_arms(ensure_model("nano"), [case], arms, ArmOptions(), lambda _: None)
    assert (result.exit_code, result.arms[1].steps) == (0, 48)
    assert list(result.answers[golden.prompts[0].name].tokens) == list(golden.prompts[0].generated[:24])
