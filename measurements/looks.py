"""What `plegate bench` claims on this machine: of arms that are equal, and of one that a delay was planted in.

    python -m measurements.looks equal [MODEL] [--runs 20] [--minutes 2]
    python -m measurements.looks delay [MODEL] [--factor 1.33] [--minutes 10] [--busy 1]

equal: runs with an arm and the same arm under another name; at most a tenth of them may claim a difference, and 5 of 20
are what chance allows at most (99.8%). delay: an arm whose every block is made so much slower, with so many cores kept
busy by other processes; prints after how many minutes it was claimed. Exit code 1 where either is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.engines.arms import parse_arm
from harness.measure.cells import COLD, Cell, Workload
from harness.measure.machine import machine_facts, model_facts
from harness.measure.plan import MOST_REPEATS, Matrix, blocks_for
from harness.measure.runner import Runner
from harness.measure.statistics import summarise
from harness.measure.store import Results, RunPlan, Store
from harness.synth import cache_folder, ensure_model

MOST_OF_TWENTY = 5


def measure(model: Path, factor: float, minutes: float, workload: Workload) -> Results:
    """A run of two equal arms, the second one made slower by the factor."""
    arms = parse_arm("one=prefetch"), parse_arm("two=prefetch")
    matrix = Matrix(arms, (COLD,), (0,), (workload,), MOST_REPEATS, blocks_for(1))
    facts = model_facts(model, workload.needs_model)
    plan = RunPlan(matrix, facts, machine_facts(model), 0.5, budget_s=60 * minutes)

    def slower(cell: Cell) -> float:
        return factor if cell.arm == "two" else 1.0

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "run")
        store.create(plan)
        results = Runner(store, plan, model, cache_folder(), lambda *_: None, slower).run()
    if results.invalid:
        print(f"{len(results.invalid)} invalid cells: {next(iter(results.invalid.values()))['reasons'][0]}")
    return results


def looks(results: Results) -> list[str]:
    """The verdict after every repeat."""
    found = []
    for repeat in range(1, results.repeats + 1):
        cells = {name: cell for name, cell in results.cells.items() if cell["cell"]["repeat"] < repeat}
        summaries = summarise(replace(results, cells=cells))
        found.append(summaries[0].comparisons[0].verdict if summaries and summaries[0].comparisons else "nothing")
    return found


def describe(results: Results) -> str:
    """The ratio and the noise as one line."""
    summary = summarise(results)[0]
    ratio, twin = summary.comparisons[0].ratio, summary.twin_ratio
    return f"{results.repeats} repeats, two / one {ratio}, itself {twin}"


def equal(model: Path, runs: int, minutes: float, workload: Workload) -> int:
    """Of runs of equal arms, how many claim anything."""
    claimed = 0
    for number in range(runs):
        results = measure(model, 1.0, minutes, workload)
        said = looks(results)
        claimed += said[-1] in ("faster", "slower")
        ever = sum(word in ("faster", "slower") for word in said)
        print(f"{number + 1}: {said[-1]}; claimed at {ever} of {len(said)} looks; {describe(results)}", flush=True)
    print(f"{claimed} of {runs} runs of equal arms claim a difference")
    return int(claimed > MOST_OF_TWENTY * runs / 20)


def delay(model: Path, factor: float, minutes: float, workload: Workload, busy: int) -> int:
    """How long it takes until a planted delay is claimed."""
    spinning = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(busy)]
    for process in spinning:
        process.start()
    try:
        results = measure(model, factor, minutes, workload)
    finally:
        for process in spinning:
            process.kill()
    said, took = looks(results), results.timing["sessions"][0]["repeats_s"]
    first = next((number for number, word in enumerate(said) if word == "slower"), None)
    after = "never" if first is None else f"after {sum(took[: first + 1]) / 60:.1f} minutes, {first + 1} repeats"
    print(f"{factor}x with {busy} core(s) busy: claimed {after}; at the end: {said[-1]}; {describe(results)}")
    return int(first is None)


def _spin() -> None:
    while True:
        pass


def main() -> int:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("equal", "delay"))
    parser.add_argument("model", nargs="?", type=Path, help="left out: the small model nano")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--factor", type=float, default=1.33)
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("--rows-only", action="store_true", help="gather:512 instead of prefill:512")
    chosen = parser.parse_args()
    model = chosen.model or ensure_model("nano")
    workload = Workload("gather" if chosen.rows_only else "prefill", 512)
    if chosen.what == "equal":
        return equal(model, chosen.runs, chosen.minutes or 2.0, workload)
    return delay(model, chosen.factor, chosen.minutes or 10.0, workload, chosen.busy)


if __name__ == "__main__":
    sys.exit(main())
