"""Mutants by rule are judged in children, kept, taken up again, and reported with what is not equivalent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.faults import by_rule
from harness.faults.by_rule import Baseline, Outcome, Store
from harness.faults.child import ROOT, make_tree
from harness.faults.judged import STEPS
from harness.faults.mutants import Mutant, mutants_of, mutated, mutated_files
from model_file.errors import InputError

FILE = "fast/rows/cache.py"
MUTANTS = mutants_of(FILE, (ROOT / FILE).read_text(encoding="utf-8"))


def _mutant(original: str, changed: str) -> Mutant:
    return next(m for m in MUTANTS if original in m.original and changed in m.changed)


CHILD = """
import os, signal, sys, time
from pathlib import Path
from harness.faults.child import in_child, make_tree
scratch = Path(sys.argv[1])

def fine(send, value): send(value + 1); send(value + 2)
def raises(send): send(1); raise ValueError("no such row")
def dies(send): os.kill(os.getpid(), signal.SIGSEGV)
def hangs(send): send(1); time.sleep(60)
def changed(send):
    import fast.rows.settings
    send(fast.rows.settings.RowSettings().inline_rows)
def imports(send):
    import fast.rows.settings

if __name__ == "__main__":
    import fast.rows.settings
    sys.modules["work"] = sys.modules["__main__"]
    print(in_child(("work", "fine"), (1,), 30, scratch))
    print(in_child(("work", "raises"), (), 30, scratch))
    print(in_child(("work", "dies"), (), 30, scratch))
    print(in_child(("work", "hangs"), (), 0.5, scratch))
    (scratch / "tree").mkdir()
    file = "fast/rows/settings.py"
    text = Path(file).read_text().replace("inline_rows: int = 64", "inline_rows: int = 63")
    print(in_child(("work", "changed"), (), 30, scratch, make_tree(scratch / "tree", file, text)))
    print(fast.rows.settings.RowSettings().inline_rows)
    lines = in_child(("work", "imports"), (), 60, scratch, cover=True)[-1]
    print(1 in lines["fast/rows/settings.py"], len(lines["fast/rows/settings.py"]) > 8)
"""


def test_a_child_sends_what_it_finds_and_how_it_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    fine, raises, dies, hangs, changed, own, covered = done.stdout.splitlines()
    assert fine == "[2, 3]"
    assert raises.startswith("[1, ('error', 'ValueError: no such row (")
    assert dies == "[('crash', 'the process ended with -11')]"
    assert hangs == "[1, ('timeout', 'no answer after 0 s')]"
    assert (changed, own) == ("[63]", "64")  # the child sees the change, nobody else does
    assert covered == "True True"  # what runs at import is seen too


def test_a_tree_has_everything_and_one_other_file(tmp_path: Path) -> None:
    mutant = MUTANTS[0]
    tree = make_tree(tmp_path, FILE, mutated((ROOT / FILE).read_text(encoding="utf-8"), mutant))
    assert (tree / FILE).read_text(encoding="utf-8") != (ROOT / FILE).read_text(encoding="utf-8")
    for path in ("fast/rows/plan.py", "fast/model/plan.py", "harness/cli.py", "tests/conftest.py", "pyproject.toml"):
        assert (tree / path).samefile(ROOT / path)


def test_steps_that_reach_the_line_run_in_order() -> None:
    mutant = MUTANTS[0]
    baseline = Baseline(dict.fromkeys(STEPS, 9.0), {name: {} for name in STEPS})
    assert baseline.steps_for(mutant) == ["rows"]  # always: threads are not traced
    baseline.lines["all tokens"] = {FILE: {mutant.line}}
    assert baseline.steps_for(mutant) == ["rows", "all tokens"]
    elsewhere = Mutant(**{**vars(mutant), "file": "fast/model/ple.py"})
    assert baseline.steps_for(elsewhere) == []
    baseline.lines = {name: {"fast/model/ple.py": {mutant.line}} for name in STEPS}
    assert baseline.steps_for(elsewhere) == list(STEPS)


def test_what_no_part_of_the_gate_reaches_survives_it() -> None:
    elsewhere = Mutant(**{**vars(MUTANTS[0]), "file": "fast/model/ple.py"})
    outcome = by_rule.judge(elsewhere, Baseline(dict.fromkeys(STEPS, 1.0), {name: {} for name in STEPS}))
    assert (outcome.by, outcome.message) == (None, "no part of the gate reaches it")


def test_results_are_kept_and_the_last_one_counts(tmp_path: Path) -> None:
    store, (first, second) = Store(tmp_path / "kept", False), MUTANTS[:2]
    store.add(first, "gate", Outcome(None))
    store.add(first, "gate", Outcome("row cache", "tiny: rows", "bytes differ", 1.5))
    again = Store(tmp_path / "kept", False)
    assert again.of(first, "gate") == Outcome("row cache", "tiny: rows", "bytes differ", 1.5)
    assert again.of(first, "tests") is None and again.of(second, "gate") is None
    assert Store(tmp_path / "kept", True).of(first, "gate") is None


@pytest.mark.parametrize("changed", ["_digest", "_without_comments"])
def test_results_do_not_count_where_the_gate_or_the_file_is_another(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "kept", False)
    store.add(MUTANTS[0], "gate", Outcome("row cache"))
    monkeypatch.setattr(by_rule, changed, lambda _: "another")
    assert Store(tmp_path / "kept", False).of(MUTANTS[0], "gate") is None


def _entries(path: Path, *entries: dict[str, str]) -> Path:
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def test_equivalent_ones_are_named_by_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = _mutant("_EMPTY = ", "_EMPTY = ")
    entry = {"file": FILE, "original": mutant.original, "changed": mutant.changed, "why": "any number below 0 will do"}
    monkeypatch.setattr(by_rule, "EQUIVALENT", _entries(tmp_path / "one.json", entry))
    assert by_rule.equivalents(MUTANTS) == {mutant.text: "any number below 0 will do"}
    monkeypatch.setattr(by_rule, "EQUIVALENT", _entries(tmp_path / "all.json", {**entry, "changed": "*"}))
    assert len(by_rule.equivalents(MUTANTS)) == 2
    monkeypatch.setattr(by_rule, "EQUIVALENT", _entries(tmp_path / "none.json", {**entry, "original": "_EMPTY = 3"}))
    with pytest.raises(InputError, match=r"no mutant is .* the code has changed"):
        by_rule.equivalents(MUTANTS)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ((("rows", ""),) * 20, 0),
        ((("rows", ""),) * 19 + ((None, "tests"),), 0),
        ((("rows", ""),) * 19 + ((None, None),), 1),  # one survives both
        ((("rows", ""),) * 18 + ((None, "tests"),) * 2, 1),  # the gate alone catches too few
    ],
)
def test_report_names_survivors_and_fails_below_the_goal(
    outcomes: Any, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, chosen, equal = Store(tmp_path / "kept", False), MUTANTS[:20], MUTANTS[20:22]
    for mutant, (gate, tests) in zip(chosen, outcomes, strict=True):
        store.add(mutant, "gate", Outcome(gate))
        if gate is None:
            store.add(mutant, "tests", Outcome(tests or None))
    assert by_rule.report(chosen, equal, store) == code
    output = capsys.readouterr().out
    last = chosen[-1]
    flat = "".join(output.split())
    assert ("".join(last.shown.split()) in flat) == (outcomes[-1][0] is None)
    caught = sum(gate is not None for gate, _ in outcomes)
    assert f"the gate alone catches {caught} of 20 that are not equivalent" in output


def test_the_equivalent_ones_are_mutants_of_the_code_as_it_is() -> None:
    files = {file: (ROOT / file).read_text(encoding="utf-8") for file in mutated_files()}
    found = by_rule.equivalents([mutant for file, source in files.items() for mutant in mutants_of(file, source)])
    assert found and all(len(why) > 10 for why in found.values())
