"""Arms judged through a stand-in server: equal ones pass, every planted fault is caught, by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from harness.cases.case import TokenPrompt
from harness.cli import app
from harness.engines.arms import Arm, parse_arm
from harness.engines.serving import Room, connect
from harness.gate.arm_verdicts import ArmsResult
from harness.gate.arms import ArmOptions, judge_arms
from harness.gate.choice import own_case
from harness.pages.arms_text import arms_as_json, details, summary
from tests.conftest import FIXTURES
from tests.servers import processes_with
from tests.servers import stand_in as stand_in

TINY = FIXTURES / "tiny.gguf"
PROMPTS = ([5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [100, 200, 300, 400, 12, 44, 17, 18])
COUNT = 12
SCHEMA = json.loads(resources.files("harness.schema").joinpath("gate.json").read_text())


@pytest.fixture
def no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own model is left out, which takes longest."""
    for package in ("gate", "diagnose"):
        monkeypatch.setattr(f"harness.{package}.arms.does_not_fit", lambda *_: "a test")


@pytest.fixture(autouse=True)
def nothing_left(stand_in: Path) -> Iterator[None]:
    yield
    assert not processes_with(str(stand_in.parent))


def judged(stand_in: Path, *arguments: str, arms: tuple[Arm, ...] = (), **options: Any) -> ArmsResult:
    """Arms a, b, ... of the stand-in with these arguments."""
    named = [parse_arm(f"{name}={stand_in} {text}") for name, text in zip("abcdef", arguments, strict=False)]
    prompts = [TokenPrompt(f"p{number}", tuple(ids)) for number, ids in enumerate(PROMPTS)]
    limits = {"start_limit_s": 60.0, "answer_limit_s": options.pop("answer_limit_s", 120.0)}
    case = own_case(TINY, prompts, options.pop("count", COUNT))
    options = {"restart": False, **options}
    result = judge_arms(TINY, [case], [*named, *arms], ArmOptions(limits=limits, **options), lambda _: None)
    jsonschema.validate(json.loads(json.dumps(arms_as_json(result), allow_nan=False)), SCHEMA)
    return result


def verdicts(result: ArmsResult) -> list[str]:
    return [arm.verdict for arm in result.arms]


def test_arms_that_are_equal_and_how_each_read_the_table(stand_in: Path, tmp_path: Path) -> None:
    (tokens := tmp_path / "p.json").write_text(json.dumps(PROMPTS))
    files = [tmp_path / name for name in ("out.json", "out.html", "out.md")]
    arguments = ["gate", str(TINY), "--tokens", str(tokens), "--generate", str(COUNT), "--common", "-ctk f32"]
    for name, mode in (("off", "off"), ("on", "on"), ("again", "on")):
        arguments += ["--arm", f"{name}={stand_in} --lazy-mode {mode}"]
    arguments += ["--arm", "prefetch", "--json", str(files[0]), "--html", str(files[1]), "--markdown", str(files[2])]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads(files[0].read_text())
    jsonschema.validate(content, SCHEMA)
    arms = {arm["name"]: arm for arm in content["arms"]}
    assert [arm["verdict"] for arm in arms.values()] == ["equal"] * 4
    assert [arm["tokens_compared"] for arm in arms.values()] == [0, 24, 24, 24]
    ways = {name: arm["evidence"]["way"] for name, arm in arms.items()}
    assert ways["off"] != ways["on"] == ways["again"]
    assert "the whole table in memory" in ways["off"]
    assert "advice plain" in ways["off"]
    assert "advice random" in ways["on"]
    assert len(content["alike"]) == 1
    assert content["alike"][0].startswith("on and again read the table alike")
    assert arms["on"]["strict"] == "their arguments differ only in how weights and table are read"
    assert arms["prefetch"]["strict"] is None
    assert "--lazy-mode on" in arms["on"]["command"]
    assert "-ctk f32" in arms["on"]["command"]
    assert arms["on"]["version"] == "version: stand-in 7 (build 42)"
    assert "listening" in arms["on"]["log"]
    for arm in arms.values():
        assert 0 <= arm["logprobs"]["ours"]["largest"] < 1e-4
    assert "verdict: equal on 72 tokens" in files[2].read_text()
    assert "What on printed" in files[1].read_text()


def test_a_wrong_id_is_named_with_both_texts_and_all_margins(stand_in: Path) -> None:
    result = judged(stand_in, "", "--lazy-fault id=5")
    assert (result.exit_code, verdicts(result)) == (1, ["equal", "different"])
    (wrong,) = (arm for arm in result.arms if arm.clear)
    first = wrong.clear[0]
    assert (first.prompt, first.step) == ("p0", 5)
    assert first.found != first.expected == first.ours
    assert first.found_text != first.expected_text
    assert first.margin_found == pytest.approx(first.margin_expected)
    assert first.margin_ours == pytest.approx(first.margin_expected, abs=1e-4)
    assert [one.step for one in wrong.clear] == [5, 11, 5, 11]  # with the right id forced, to the end
    assert wrong.agreement == 1 - 4 / 24
    assert any("it must be equal to a" in line for line in details(wrong))
    assert summary(result).startswith("verdict: different")


def test_logprobs_of_float32_have_a_bound_against_ours(stand_in: Path) -> None:
    exact = "-ctk f32 -ctv f32 -fa off"
    result = judged(stand_in, f"{exact} --lazy-fault noise=0.002", "--lazy-fault noise=0.002", exact)
    assert [len(arm.findings) for arm in result.arms] == [1, 0, 0]
    assert "bound 0.001: weights and caches are float32 on both sides" in result.arms[0].findings[0]
    assert (result.exit_code, verdicts(result)[0]) == (1, "different")


@pytest.mark.usefixtures("no_view")
def test_differences_below_the_noise_are_close_calls_where_kinds_differ(stand_in: Path) -> None:
    """Noise on logprobs turns ids where margins are small: no clear difference, but too many of them decide nothing."""
    result = judged(stand_in, "--lazy-fault noise=0.1", arms=(parse_arm("prefetch"),), count=24)
    ours = result.arms[1]
    assert ours.close_calls
    assert ours.noise is not None
    assert all(one.margin is not None and one.margin < ours.noise for one in ours.close_calls)
    assert not ours.clear
    assert (result.exit_code, ours.verdict) == (3, "undecided")
    assert summary(result).startswith("verdict: undecided. 1 of 2 arms equal on ")
    strict = judged(stand_in, "", "--lazy-fault noise=0.1", count=24)
    assert strict.arms[1].clear and not strict.arms[1].close_calls  # one build: nothing may flip
    assert strict.exit_code == 1
    relaxed = judged(stand_in, "", "--lazy-fault noise=0.1", close_calls=True, count=24)
    assert [one.step for one in relaxed.arms[1].close_calls] == [one.step for one in strict.arms[1].clear]


@pytest.mark.usefixtures("no_view")
@pytest.mark.parametrize(
    ("fault", "message"),
    [("flaky=3", "the same request again differs: prompt p0"), ("restart", "the same request after a restart differs")],
)
def test_an_arm_that_differs_from_itself_is_unsteady(stand_in: Path, fault: str, message: str) -> None:
    result = judged(stand_in, f"--lazy-fault {fault}", "", restart=True)
    assert (result.exit_code, verdicts(result)[0]) == (1, "unsteady")
    assert message in result.arms[0].controls[0]


@pytest.mark.usefixtures("no_view")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("short", "answered 11 tokens, expected the 12 that were asked for"),
        ("vocab", "answered with id 1000000, expected 0.."),
        ("prompt_n=1", "says that its prompt had 11 tokens, expected the 10 that were sent"),
        ("die=2", "about to die of a planted fault"),
        ("hang=2", "no answer within 8 s"),
    ],
)
def test_a_server_that_fails_is_not_run_and_the_others_are_judged(stand_in: Path, fault: str, message: str) -> None:
    judged(stand_in, "")  # from now on its answers are kept, and come at once
    result = judged(stand_in, "", f"--lazy-fault {fault}", "", answer_limit_s=8.0 if "hang" in fault else 120.0)
    assert (result.exit_code, verdicts(result)) == (3, ["equal", "not run", "equal"])
    assert message in (result.arms[1].not_run or "")
    assert result.arms[2].steps == 2 * COUNT


@pytest.mark.usefixtures("no_view")
def test_the_first_arm_that_answers_is_right_where_the_first_cannot(stand_in: Path) -> None:
    result = judged(stand_in, "-lzm never", "", "", arms=(parse_arm("gone=/absent/server"),))
    assert verdicts(result) == ["not run", "equal", "equal", "not run"]
    assert result.arms[2].against == "b"
    assert "invalid choice" in (result.arms[0].not_run or "")
    assert "absent/server is no program" in (result.arms[3].not_run or "")


@pytest.mark.usefixtures("no_view")
def test_states_are_equal_and_each_fault_is_found_by_the_one_that_asks(stand_in: Path) -> None:
    names = ("together", "prefix", "rewind", "erase", "restore", "again")
    good = judged(stand_in, "", states=names)
    assert good.exit_code == 0
    assert list(good.arms[0].states) == list(names)
    assert all(found.startswith("equal: ") for found in good.arms[0].states.values())
    for name in ("prefix", "rewind", "restore", "again"):
        assert "tokens from the cache" in good.arms[0].states[name]
    slots = judged(stand_in, "--lazy-fault slot", states=names)
    assert list(slots.arms[0].wrong_states) == ["together", "restore"]
    assert "p1 in slot 1, step 2" in slots.arms[0].states["together"]
    assert slots.exit_code == 1
    stale = judged(stand_in, "--lazy-fault stale", states=names)
    assert list(stale.arms[0].wrong_states) == ["prefix", "rewind", "restore", "again"]


@pytest.mark.usefixtures("no_view")
def test_a_copy_is_looked_at_where_an_arm_names_one(stand_in: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(TINY.read_bytes())
    result = judged(stand_in, "-lzm on", f"-lzm on -m {copy}", f"-m {tmp_path}/none.gguf")
    assert verdicts(result) == ["equal", "equal", "not run"]
    assert result.arms[1].strict
    assert [arm.evidence and "advice random" in arm.evidence.way for arm in result.arms] == [True, True, None]
    assert "no such file" in (result.arms[2].not_run or "")


@pytest.mark.usefixtures("no_view")
def test_a_running_server_and_the_other_protocol(stand_in: Path) -> None:
    with connect(parse_arm(f"x={stand_in} -lzm on"), Room(TINY, 256)).server as server:
        arms = (parse_arm(f"native={server.address}"), parse_arm(f"v1=openai:{server.address}"))
        result = judged(stand_in, arms=arms, restart=True)
        assert (result.exit_code, verdicts(result)) == (0, ["equal", "equal"])
        assert result.arms[1].steps == 2 * COUNT
        assert result.arms[0].evidence is not None
        assert result.arms[0].command == server.address
    with connect(parse_arm(f"x={stand_in} --lazy-fault text"), Room(TINY, 256)).server as server:
        arms = (parse_arm(f"native={server.address}"), parse_arm(f"v1=openai:{server.address}"))
        text = judged(stand_in, arms=arms)
        assert (text.exit_code, verdicts(text)) == (0, ["equal", "equal"])
        assert any("ids are not told, compared as text" in note for note in text.arms[1].notes)


@pytest.mark.usefixtures("no_view")
def test_other_ids_of_a_text_are_said_first(stand_in: Path) -> None:
    result = judged(stand_in, "", texts={"p0": "ab"})
    assert details(result.arms[0])[0] == (
        "it makes other ids of the text of p0: token 0 is [50], ours [5]; ours were sent"
    )


@pytest.mark.usefixtures("no_view")
def test_a_model_that_is_written_to_meanwhile_is_no_verdict(stand_in: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(TINY.read_bytes())

    def tell(_: str) -> None:
        copy.write_bytes(copy.read_bytes())

    case = own_case(copy, [TokenPrompt("p", (5, 6, 7))], 2)
    result = judge_arms(copy, [case], [parse_arm(f"a={stand_in}")], ArmOptions(restart=False), tell)
    assert result.exit_code == 3
    assert "copy.gguf was written to while it was read" in summary(result)


def test_arguments_that_a_program_does_not_know_are_bad_input(stand_in: Path) -> None:
    result = CliRunner().invoke(app, ["gate", str(TINY), "--arm", f"a={stand_in} --lazy-mod on"])
    assert result.exit_code == 2
    assert "--lazy-mod is no argument of" in result.output + result.stderr
    alone = CliRunner().invoke(app, ["gate", str(TINY), "--golden", "x.json"])
    assert alone.exit_code == 2
    assert "are of arms: expected --arm or --arms too" in alone.stderr
