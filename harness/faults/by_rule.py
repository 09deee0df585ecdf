"""The mutation session by rule: which share of the mutants the gate alone catches, what tests catch, who survives.

Each mutant is judged in a forked child (`harness.faults.child`). `mutmut` runs pytest only; `cosmic-ray` starts a
command for each mutant, 4 s of imports, in a tree that it edits in place. The parts of the gate that reach the changed
line, by coverage, run cheapest first until one finds something. Compiled programs are kept between mutants: their key
is the program itself, so that a mutant takes only those that it did not change.

Results are kept, a line each. One counts as long as the mutated file, the gate with its cases and, for survivors, the
tests are what they were; the rest of `fast/` is not looked at: `--fresh` judges everything again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harness.faults.child import ROOT, in_child, make_tree
from harness.faults.judged import STEPS
from harness.faults.mutants import Mutant, mutants_of, mutated, mutated_files, sample
from harness.pages.numbers import percent
from harness.pages.tables import Column, print_line, print_table, text_column
from model_file.errors import InputError

RESULTS = ROOT / "ci" / "mutants.jsonl"
EQUIVALENT = Path(__file__).with_name("equivalent.json")
SEED, COUNT, GOAL = "plegate", 150, 0.95
SLOWER = 6  # than without a change, plus PATIENCE_S: a mutant that takes longer is caught, by its time
PATIENCE_S = 60
TESTS_LIMIT_S = 1800
_BY_GATE = ("harness/gate", "harness/cases", "harness/engines", "harness/answers", "goldens", "tests/fixtures")
_WORK = ("harness.faults.judged", "say_steps")
_ROWS = [name for name, step in STEPS.items() if step.rows_only]


@dataclass
class Outcome:
    """What became of a mutant. by: the check that found it, error, crash or timeout; None: it survived there."""

    by: str | None
    step: str = ""
    message: str = ""
    wall_s: float = 0.0


@dataclass
class Baseline:
    """The steps without any change: seconds and lines of `fast/` that each runs."""

    wall_s: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)

    def steps_for(self, mutant: Mutant) -> list[str]:
        """The steps that may notice it, in order; rows are read by threads that are not traced, and always run."""
        changed = set(range(mutant.line, mutant.last_line + 1))
        reached = [name for name in STEPS if self.lines[name].get(mutant.file, set()) & changed]
        always = _ROWS if mutant.file.startswith("fast/rows") else []
        return [name for name in STEPS if name in reached or name in always]


def run_by_rule(count: int = COUNT, workers: int = 1, fresh: bool = False, results: Path = RESULTS) -> int:
    """Judge a sample, print the table and the survivors; 0 where the goal is met, else 1. Raises: InputError."""
    everything = [mutant for file in mutated_files() for mutant in mutants_of(file, _source(file))]
    why = equivalents(everything)
    chosen = [mutant for mutant in sample(everything, count, SEED) if not why.get(mutant.text)]
    store = Store(results, fresh)
    print_line(f"{len(everything)} mutants by rule, {count} asked for, {len(chosen)} of the chosen not equivalent")
    left = [mutant for mutant in chosen if store.of(mutant, "gate") is None]
    if left:
        baseline = measure()
        _each(left, workers, "gate", lambda mutant: judge(mutant, baseline), store)
    survivors = [mutant for mutant in chosen if (store.of(mutant, "gate") or Outcome("")).by is None]
    left = [mutant for mutant in survivors if store.of(mutant, "tests") is None]
    if left:
        for folder in sorted({Path(mutant.file).parent.as_posix() for mutant in left}):
            _require_green(folder)
        _each(left, workers, "tests", judge_by_tests, store)
    return report(chosen, [mutant for mutant in sample(everything, count, SEED) if why.get(mutant.text)], store)


def equivalents(mutants: Sequence[Mutant]) -> dict[str, str]:
    """Why a mutant gives the same rows and tokens, by its text. Raises: InputError for an entry that matches none."""
    found: dict[str, str] = {}
    for entry in json.loads(EQUIVALENT.read_text(encoding="utf-8")):
        same = [
            mutant.text
            for mutant in mutants
            if (mutant.file, mutant.original) == (entry["file"], entry["original"])
            and entry["changed"] in ("*", mutant.changed)
        ]
        if not same:
            raise InputError(
                f"{EQUIVALENT.name}: no mutant is {entry}: the code has changed, change or remove the entry"
            )
        found |= dict.fromkeys(same, entry["why"])
    return found


def measure() -> Baseline:
    """Every step without a change, its lines noted. Raises: InputError where the gate finds something already."""
    found = Baseline()
    for name in STEPS:
        print_line(f"without a change: {name}")
        with tempfile.TemporaryDirectory(prefix="plegate-mutants-") as scratch:
            *said, lines = in_child(_WORK, ([name],), 3600, Path(scratch), cover=True)
        if len(said) != 1 or said[0][1] is not None:
            raise InputError(f"{name}: found without any change: {[*said, lines]}; mend that first")
        found.wall_s[name] = said[0][3]
        found.lines[name] = {file: set(numbers) for file, numbers in lines.items()}
    return found


def judge(mutant: Mutant, baseline: Baseline) -> Outcome:
    """What the gate says of a mutant."""
    started = time.perf_counter()
    steps = baseline.steps_for(mutant)
    if not steps:
        return Outcome(None, "", "no part of the gate reaches it")
    limit_s = PATIENCE_S + SLOWER * max(baseline.wall_s[name] for name in steps)
    with _tree(mutant) as (tree, scratch):
        *said, last = in_child(_WORK, (steps,), limit_s, scratch, tree)
    if len(last) == 2:  # it did not come to its end: error, crash or timeout
        last = (steps[min(len(said), len(steps) - 1)], *last)
    return Outcome(last[1], last[0] if last[1] else "", last[2][:300], time.perf_counter() - started)


def judge_by_tests(mutant: Mutant) -> Outcome:
    """What the tests of its file say of a mutant."""
    started = time.perf_counter()
    with _tree(mutant) as (tree, _):
        by, message = run_tests(tree, mutant.file)
    return Outcome(by, "tests" if by else "", message[:300], time.perf_counter() - started)


def run_tests(tree: Path, file: str) -> tuple[str | None, str]:
    """The tests of a file of `fast/`, its own first, then those beside it: (what failed, or None; message)."""
    folder = Path("tests", file).parent
    wider = [] if file.startswith("fast/rows") else ["tests/fast", "--ignore=tests/fast/rows"]
    places = [str(path) for path in (folder / f"test_{Path(file).name}", folder) if (tree / path).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *places, *wider]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TESTS_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout", f"no end after {TESTS_LIMIT_S} s"
    if done.returncode == 0:
        return None, ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "tests", failed[0] if failed else f"pytest ended with {done.returncode}: {done.stdout[-300:]}"


def _require_green(folder: str) -> None:
    print_line(f"without a change: tests of {folder}")
    with _tree(None) as (tree, _):
        by, message = run_tests(tree, f"{folder}/.py")
    if by is not None:
        raise InputError(f"tests of {folder} fail without any change: {message}; mend them first")


@contextmanager
def _tree(mutant: Mutant | None) -> Iterator[tuple[Path, Path]]:
    """A tree with a change, and a folder for what runs in it."""
    changed = (mutant.file, mutated(_source(mutant.file), mutant)) if mutant else ("", "")
    with tempfile.TemporaryDirectory(prefix="plegate-mutant-", ignore_cleanup_errors=True) as folder:
        tree, scratch = Path(folder, "tree"), Path(folder, "scratch")
        tree.mkdir()
        scratch.mkdir()
        yield make_tree(tree, *changed), scratch


def _each(mutants: Sequence[Mutant], workers: int, stage: str, work: Callable[[Mutant], Outcome], store: Store) -> None:
    """Judge mutants, `workers` at a time; what is done is kept when this is interrupted."""
    started = time.perf_counter()
    pool = ThreadPoolExecutor(workers)
    try:
        outcomes = pool.map(work, mutants) if workers > 1 else map(work, mutants)
        for done, (mutant, outcome) in enumerate(zip(mutants, outcomes, strict=True), 1):
            store.add(mutant, stage, outcome)
            left_s = (time.perf_counter() - started) / done * (len(mutants) - done)
            said = outcome.by or "SURVIVES"
            print_line(
                f"{stage} {done}/{len(mutants)}, {left_s / 60:.0f} min left: {mutant.file}:{mutant.line} "
                f"{mutant.rule}: {said} ({outcome.wall_s:.0f} s)"
            )
    finally:
        pool.shutdown(cancel_futures=True)


class Store:
    """Results on disk, a line each; the last one of a mutant counts."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        self._known: dict[str, Outcome] = {}
        if path.exists() and not fresh:
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self._known[entry["key"]] = Outcome(**entry["outcome"])

    def of(self, mutant: Mutant, stage: str) -> Outcome | None:
        """What is known of a mutant, None where nothing is that still counts."""
        return self._known.get(_key(mutant, stage))

    def add(self, mutant: Mutant, stage: str, outcome: Outcome) -> None:
        """Keep a result."""
        self._known[_key(mutant, stage)] = outcome
        line = {"key": _key(mutant, stage), "mutant": vars(mutant), "stage": stage, "outcome": vars(outcome)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@cache
def _source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def _key(mutant: Mutant, stage: str) -> str:
    places = _BY_GATE if stage == "gate" else (*_BY_GATE, "tests/fast")
    return mutant.digest(_without_comments(mutant.file), *map(_digest, places))


@cache
def _without_comments(file: str) -> str:
    return ast.unparse(ast.parse(_source(file)))


@cache
def _digest(folder: str) -> str:
    """SHA-256 of what stands in a folder."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def report(chosen: Sequence[Mutant], equal: Sequence[Mutant], store: Store) -> int:
    """Print figures by file and every survivor; 0 where the goal is met and nothing survives the tests."""
    columns = [text_column("file"), *(Column(name) for name in _FIGURES)]
    rows = []
    total = dict.fromkeys(_FIGURES, 0)
    for file in sorted({mutant.file for mutant in (*chosen, *equal)}):
        figures = _figures([m for m in chosen if m.file == file], len([m for m in equal if m.file == file]), store)
        total = {name: total[name] + value for name, value in figures.items()}
        rows.append([file, *map(str, figures.values())])
    print_table(columns, [*rows, [], ["all", *map(str, total.values())]])
    for stage, title in (("gate", "survive the gate"), ("tests", "survive gate and tests")):
        here = [m for m in chosen if _survives(m, store) and (stage == "gate" or _survives(m, store, "tests"))]
        print_line(f"{title}: {len(here)}")
        for mutant in here:
            print_line(f"  {mutant.shown}")
    caught = total["by the gate"]
    share = caught / max(len(chosen), 1)
    print_line(f"the gate alone catches {caught} of {len(chosen)} that are not equivalent: {percent(share)}")
    return 0 if share >= GOAL and not total["survive both"] else 1


_FIGURES = ("chosen", "equivalent", "by the gate", "of them by error", "by tests", "survive both")


def _figures(chosen: Sequence[Mutant], equal: int, store: Store) -> dict[str, int]:
    gate = [outcome for mutant in chosen if (outcome := store.of(mutant, "gate")) and outcome.by]
    errors = [outcome for outcome in gate if outcome.by in ("error", "crash", "timeout")]
    left = [mutant for mutant in chosen if _survives(mutant, store)]
    both = [mutant for mutant in left if _survives(mutant, store, "tests")]
    counts = len(chosen) + equal, equal, len(gate), len(errors), len(left) - len(both), len(both)
    return dict(zip(_FIGURES, counts, strict=True))


def _survives(mutant: Mutant, store: Store, stage: str = "gate") -> bool:
    outcome = store.of(mutant, stage)
    return outcome is not None and outcome.by is None
