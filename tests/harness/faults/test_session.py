"""The mutation session judges itself rightly; its planted faults run in `nox -s mutation`, two of them here too."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.faults import session
from harness.faults.faults import FAULTS, Fault
from harness.faults.planting import CannotPlant, replace_function, rewrite
from harness.faults.trial import Caught, TrialResult
from harness.gate.checks import CHECKS

ROOT = Path(__file__).parents[3]
FAULT = FAULTS[0]
STORY = "first difference in packed rows: token 6, head 2, byte 11 of the row"
RIGHT = Caught("packed rows", "rows", STORY, 1.0)
NOTHING = Caught(None, None, "", 1.0)
NEEDED = (
    "flipped bit",
    "stale row cache entry",
    "off-by-one row",
    "lost EOS reset",
    "history lost at a chunk boundary",
    "float32-rounded multiplier",
    "reversed multiplier order",
    "tail block dropped",
    "tie rule changed",
    "silent fallback",
)


def test_session_has_the_ten_faults_and_proves_every_check() -> None:
    assert set(NEEDED) <= {fault.name for fault in FAULTS}
    assert session.unproven(FAULTS) == []
    assert session.unproven(FAULTS[1:2]) == [name for name in CHECKS if name != "row cache"]


@pytest.mark.parametrize(
    ("whole", "without", "problem"),
    [
        (RIGHT, NOTHING, None),
        (RIGHT, replace(RIGHT, check="row cache"), None),
        (NOTHING, NOTHING, "slipped through, expected 'packed rows'"),
        (
            replace(RIGHT, check="tokens", level="tokens"),
            NOTHING,
            "caught by 'tokens' (tokens), expected 'packed rows' (rows)",
        ),
        (
            replace(RIGHT, story="something differs"),
            NOTHING,
            "its story lacks ['token 6, head 2', 'byte 11 of the row']",
        ),
        (RIGHT, RIGHT, "still caught by 'packed rows' although that check was taken out"),
    ],
)
def test_judge_names_what_is_wrong_with_a_proof(whole: Caught, without: Caught, problem: str | None) -> None:
    found = session.judge(FAULT, TrialResult(whole, without))
    assert (found is None) == (problem is None)
    assert problem is None or problem in (found or "")


def test_judge_wants_silence_where_nothing_is_planted() -> None:
    assert session.judge(None, TrialResult(NOTHING, NOTHING)) is None
    assert "found without any fault: packed rows" in (session.judge(None, TrialResult(RIGHT, RIGHT)) or "")


def _session(only: list[str], without: list[str]) -> tuple[int, str]:
    text = io.StringIO()
    code = session.run_session(only, without, Console(file=text, width=200))
    return code, text.getvalue()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs of these tests stay out of the user's cache."""
    monkeypatch.setenv("PLEGATE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "plegate-cache"))


def test_session_fails_without_the_check_that_catches() -> None:
    """Here for one check; `nox -s mutation` does it for every check, without restarting the session for each."""
    code, output = _session(["golden of another file"], ["golden file"])
    assert code == 1
    assert "slipped through, expected 'golden file' to catch it" in output


def test_faults_that_run_no_token_are_proven() -> None:
    """They take a second each; the others take `nox -s mutation`."""
    cheap = [fault.name for fault in FAULTS if fault.rows_only]
    assert len(cheap) >= 5
    code, output = _session(cheap, [])
    assert code == 0, output


def test_a_trial_that_hangs_is_a_problem_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [fault.name for fault in FAULTS if fault.rows_only][:2]
    real = subprocess.run

    def hang(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if first not in command:
            return real(command, **options)
        return real([sys.executable, "-c", "import time; time.sleep(600)"], **{**options, "timeout": 0.1})

    monkeypatch.setattr(subprocess, "run", hang)
    code, output = _session([first, second], [])
    assert code == 1
    assert f"{first}: the trial was stopped after 600 s, expected it to end by itself" in output
    assert f"{second}: proven" in output
    assert "1 of 2 proofs hold" in output


class _Victim:
    def double(self, value: int) -> int:
        return value * 2


def test_planting_changes_exactly_what_it_says() -> None:
    rewrite(_Victim, "double", "value * 2", "value * 2 + 1")
    assert _Victim().double(4) == 9
    replace_function(_Victim, "double", lambda original: lambda self, value: original(self, value) * 0)
    assert _Victim().double(4) == 0


@pytest.mark.parametrize("text", ["value * 3", "value"])
def test_planting_fails_where_the_code_is_another(text: str) -> None:
    class Other:
        def double(self, value: int) -> int:
            return value * 2

    with pytest.raises(CannotPlant, match="adapt the fault to the code"):
        rewrite(Other, "double", text, "0")
    with pytest.raises(CannotPlant, match="has no triple"):
        replace_function(Other, "triple", lambda original: original)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_names_a_check_and_words(fault: Fault) -> None:
    assert fault.check in CHECKS
    assert fault.named
    assert len(fault.about) > 10


def test_every_fault_can_be_planted_in_the_code_as_it_is() -> None:
    """In a process of its own: a fault whose code has changed shows here, not an hour later in the session."""
    script = (
        "import tempfile, pathlib\n"
        "from harness.answers.store import read_golden\n"
        "from harness.faults.faults import FAULTS\n"
        "from harness.faults.plants import Trial\n"
        "for fault in FAULTS:\n"
        "    with tempfile.TemporaryDirectory() as scratch:\n"
        "        golden = read_golden(fault.case)\n"
        "        fault.plant(Trial(fault.case, [fault.mode], golden, pathlib.Path(scratch)))\n"
        "print(len(FAULTS))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(FAULTS))]
