"""The mutation session judges itself rightly; its planted faults run in `nox -s mutation`, the cheap ones here too."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.faults import session
from harness.faults.fault import Fault, faults
from harness.gate.checks import CHECKS

ROOT = Path(__file__).parents[3]
FAULTS = faults()
FAULT = FAULTS["flipped bit"]
MESSAGE = "first difference in packed rows: token 6, head 2, byte 11 of the row"
RIGHT = ("packed rows", MESSAGE, 1.0)
NOTHING = (None, "", 1.0)
NEEDED = (
    "flipped bit",
    "stale cache entry",
    "off by one row",
    "lost eos reset",
    "lost history",
    "float32 multiplier",
    "reversed multipliers",
    "tail block dropped",
    "tie rule changed",
    "silent fallback",
)
IN_BOTH_FORMS = (
    "eos cuts one lag",
    "cache tag of 16 bits",
    "second portion not copied",
    "first history on the wrong side",
    "past of padding",
    "blocks beyond the first width unscored",
    "row skipped after the first chunk",
    "one type unpacked wrongly",
    "attention scale of the file ignored",
    "expert scale of the file ignored",
)
COMPILED = ("programs.py", "layered.py")
NOT_FLIPPED = {
    "product": 1,  # a loop over groups of tiles, each of which gives rows of its own
    "_group": 1,  # the same over tiles
    "_add_experts": 2,  # a loop over tiles; and padding's shares of 0, which add nothing as long as experts are finite
    "grouped": 4,  # on the host, where coverage sees it
    "_finish": 1,  # a chunk without a token, which only compiles
    "outcome_of": 2,  # logits that are not finite: no case has any, tests/fast/engine/test_nonfinite.py has
    "marked": 1,  # the same
    "ple_gated": 1,  # a lower bound on a root, far below what any agreement comes to
    "_grouped": 1,  # experts so large that their tiles go through in groups: no small model has any
    "_block_scores": 1,  # a last tile that is no whole one is moved back
    "_each_token": 1,  # a loop over all tokens of a check of guesses; `[rollback]` plants what it keeps too much of
    "draft": 1,  # a loop over guesses, which decide no token: their counts are held to llama.cpp's
}


def test_session_has_the_ten_faults_and_proves_every_check() -> None:
    assert set(NEEDED) <= set(FAULTS)
    assert session.unproven(FAULTS.values()) == []
    assert session.unproven([FAULTS["stale cache entry"]]) == [name for name in CHECKS if name != "row cache"]


def test_faults_of_rare_places_must_be_found_by_both_forms_of_the_gate() -> None:
    both = {fault.name for fault in FAULTS.values() if fault.case is None}
    assert both == {*IN_BOTH_FORMS, *(name for name in FAULTS if name.startswith("branch: "))}


def test_every_branch_of_a_compiled_program_is_flipped() -> None:
    """Each function of the model's arithmetic that has one; how many of them, as the code has them now."""
    decides = ("where", "switch", "cond", "fori_loop", "while_loop", "scan", "map", "maximum", "minimum")
    found: Counter[str] = Counter()
    files = [*(ROOT / "fast/model").rglob("*.py"), *(ROOT / "fast/engine" / name for name in COMPILED)]
    for function in (node for file in files for node in ast.parse(file.read_text("utf-8")).body):
        if isinstance(function, ast.FunctionDef):
            calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            found[function.name] += sum(isinstance(call, ast.Attribute) and call.attr in decides for call in calls)
    branches = tomllib.loads((ROOT / "harness/faults/faults.toml").read_text("utf-8"))["branches"]
    flipped = Counter(function for _, function, _, _ in branches.values())
    missing = {name: count for name, count in found.items() if count > flipped[name] + NOT_FLIPPED.get(name, 0)}
    assert not missing, f"write a flip into harness/faults/faults.toml: {missing}"
    assert set(flipped) <= {name for name, count in found.items() if count}


@pytest.mark.parametrize(
    ("whole", "without", "problem"),
    [
        (RIGHT, NOTHING, None),
        (RIGHT, ("row cache", MESSAGE, 1.0), None),
        (NOTHING, NOTHING, "slipped through, expected 'packed rows'"),
        (("tokens", MESSAGE, 1.0), NOTHING, "caught by 'tokens' (tokens), expected 'packed rows' (rows)"),
        (("packed rows", "something differs", 1.0), NOTHING, "its message lacks ['token 6, head 2', 'byte 11 of the"),
        (RIGHT, RIGHT, "still caught by 'packed rows' although that check was taken out"),
        (RIGHT, ("crash", "the process ended with -11"), "the trial ended with crash: the process ended with -11"),
    ],
)
def test_judge_names_what_is_wrong_with_a_proof(whole: Any, without: Any, problem: str | None) -> None:
    found = session.judge(FAULT, [whole, without])
    assert (found is None) == (problem is None)
    assert problem is None or problem in (found or "")


@pytest.mark.parametrize(
    ("quick", "whole", "problem"),
    [
        (RIGHT, RIGHT, None),
        (NOTHING, RIGHT, "--quick: slipped through, expected 'packed rows'"),
        (RIGHT, NOTHING, "the whole gate: slipped through, expected 'packed rows'"),
    ],
)
def test_judge_wants_both_forms_of_the_gate_to_find_it(quick: Any, whole: Any, problem: str | None) -> None:
    found = session.judge(replace(FAULT, case=None), [quick, whole])
    assert (found is None) == (problem is None)
    assert problem is None or problem in (found or "")


def test_judge_wants_silence_where_nothing_is_planted() -> None:
    assert session.judge(None, [NOTHING]) is None
    assert "found without any fault: packed rows" in (session.judge(None, [RIGHT]) or "")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs of these tests stay out of the user's cache."""
    monkeypatch.setenv("PLEGATE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "plegate-cache"))


def _session(*options: str) -> tuple[int, str]:
    """In a process that has not used JAX: it forks."""
    command = [sys.executable, "-m", "harness.faults", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)
    return done.returncode, done.stdout + done.stderr


def test_session_fails_without_the_check_that_catches() -> None:
    """Here for one check; `nox -s mutation` does it for every check, without restarting the session for each."""
    code, output = _session("--only", "golden of another file", "--without", "golden file")
    assert code == 1
    assert "slipped through, expected 'golden file' to catch it" in output


def test_faults_that_run_no_token_are_proven() -> None:
    """They take a second each; the others take `nox -s mutation`."""
    cheap = [fault.name for fault in FAULTS.values() if fault.rows_only and fault.case]
    assert len(cheap) >= 5
    code, output = _session(*(part for name in cheap for part in ("--only", name)))
    assert code == 0, output


def test_a_trial_that_hangs_is_a_problem_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = [fault.name for fault in FAULTS.values() if fault.rows_only][:2]

    def in_child(_: Any, arguments: tuple[str, Any], *__: Any) -> list[Any]:
        right = (FAULTS[second].check, " ".join(FAULTS[second].named), 1.0)
        return [("timeout", "no answer after 900 s")] if arguments[0] == first else [right, NOTHING]

    monkeypatch.setattr(session, "in_child", in_child)
    assert session.run_session([first, second], []) == 1
    output = capsys.readouterr().out
    assert f"{first}: the trial ended with timeout: no answer after 900 s" in output
    assert f"{second}: proven" in output
    assert "1 of 2 proofs hold" in output


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_fault_names_a_check_and_words(fault: Fault) -> None:
    assert fault.check in CHECKS or fault.case is None
    assert fault.named or fault.name.startswith("branch: ")
    assert len(fault.about) > 10
