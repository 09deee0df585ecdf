"""What the trend reports, on made-up runs: a planted slowdown is named, equal runs say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measure.trend.compare import compare
from harness.measure.trend.runs import accept, add_run, history, machine_key, read_run
from harness.measure.trend.text import markdown
from model_file.errors import InputError
from tests.harness.measure.trend_runs import file_of, verdict_of


@pytest.mark.parametrize("seed", range(10))
def test_planted_slowdown_is_reported_and_nothing_else(tmp_path: Path, seed: int) -> None:
    cell = "uring-cold-prefill512-d0"
    old = [file_of(tmp_path / f"old{i}.json", seed * 10 + i) for i in range(1 + seed % 3)]
    verdict = verdict_of(tmp_path, file_of(tmp_path / "new.json", seed * 10 + 9, slower={cell: 1.5}), *old)
    assert [change.cell.name for change in verdict.slower] == [cell]
    assert 1.35 <= verdict.slower[0].factor <= 1.65
    assert verdict.regressed
    assert cell in markdown(verdict)


def test_regression_stays_reported_until_it_is_mended(tmp_path: Path) -> None:
    """It must not become what later runs are compared with."""
    cell = "uring-cold-prefill512-d0"
    runs = [read_run(file_of(tmp_path / f"{i}.json", i)) for i in range(2)]
    for number in range(2, 12):
        runs.append(read_run(file_of(tmp_path / f"{number}.json", number, slower={cell: 1.5})))
        assert [change.cell.name for change in compare(runs[-1], runs[:-1]).slower] == [cell], number
    assert not compare(read_run(file_of(tmp_path / "mended.json", 20)), runs).regressed


def test_whole_run_that_was_slower_is_not_compared_with(tmp_path: Path) -> None:
    """Each cell alone is within its limit: only the middle of all of them shows it, in every later run too."""
    runs = [read_run(file_of(tmp_path / f"{i}.json", i, noise=0.03)) for i in range(2)]
    for number in range(2, 10):
        runs.append(read_run(file_of(tmp_path / f"{number}.json", number, whole=1.2, noise=0.03)))
        verdict = compare(runs[-1], runs[:-1])
        assert not verdict.slower, number
        assert verdict.everything_slower, number


def test_cell_that_creeps_is_found_and_what_was_faster_once_is_not_held_against_it(tmp_path: Path) -> None:
    """A twentieth in each run: never much slower than the last runs, half as slow again in the end."""
    cell = "uring-cold-prefill512-d0"
    runs = [read_run(file_of(tmp_path / f"{i}.json", i, slower={cell: 1.05**i})) for i in range(12)]
    found = [compare(run, runs[:place]) for place, run in enumerate(runs) if place]
    assert not any(verdict.slower for verdict in found[:4])
    assert [change.cell.name for change in found[-1].slower] == [cell]
    first = next(verdict for verdict in found if verdict.slower)
    assert [(change.cell.name, change.crept) for change in first.slower] == [(cell, True)]
    assert f"Slower than in the first runs, little by little, and not than in the last: {cell}" in markdown(first)
    factors = (1.4, 1.4, 1.4, 1.4, 1.4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    runs = [read_run(file_of(tmp_path / f"{i}.json", 50 + i, slower={cell: f})) for i, f in enumerate(factors)]
    for place in range(1, len(runs)):
        assert not compare(runs[place], runs[:place]).regressed, place
    assert not compare(runs[-1], runs[:-1]).faster


def test_noisy_first_runs_do_not_hide_what_the_last_show(tmp_path: Path) -> None:
    """The first five differ so much that 1.4 lies within their limit; the last five do not."""
    cell = "auto-warm-prefill512-d0"
    factors = (1.0, 1.1, 0.9, 1.12, 0.92, 1.02, 1.02, 1.02, 1.02, 1.02)
    runs = [read_run(file_of(tmp_path / f"{i}.json", i, slower={cell: f})) for i, f in enumerate(factors)]
    verdict = compare(read_run(file_of(tmp_path / "new.json", 20, slower={cell: 1.4})), runs)
    assert [(change.cell.name, change.crept) for change in verdict.slower] == [(cell, False)]
    assert [run.path.name for run in verdict.slower[0].runs] == [f"{i}.json" for i in range(5, 10)]


@pytest.mark.parametrize("whole", [0.92, 0.95, 1.08])
def test_shift_of_all_cells_hides_no_single_one(tmp_path: Path, whole: float) -> None:
    """Too small a shift to be reported: it is no scatter either, under which one cell's 1.5 would hide."""
    cell = "uring-cold-prefill512-d0"
    old = read_run(file_of(tmp_path / "old.json", 1))
    verdict = compare(read_run(file_of(tmp_path / "new.json", 2, whole=whole, slower={cell: 1.5})), [old])
    assert [change.cell.name for change in verdict.slower] == [cell]
    assert not verdict.everything_slower


def test_cell_known_from_a_left_out_run_alone_is_new(tmp_path: Path) -> None:
    name = "auto-warm-prefill512-d4096"
    runs = [read_run(file_of(tmp_path / "0.json", 0, left_out=(name,)))]
    runs.append(read_run(file_of(tmp_path / "1.json", 1, whole=1.19)))
    assert compare(runs[1], runs[:1]).everything_slower
    assert compare(read_run(file_of(tmp_path / "2.json", 2)), runs).added == [name]


def test_machine_that_creeps_is_excused(tmp_path: Path) -> None:
    steps = [1.05**number for number in range(12)]
    runs = [read_run(file_of(tmp_path / f"{i}.json", i, whole=f, probes=f)) for i, f in enumerate(steps)]
    for place in range(1, len(runs)):
        assert not compare(runs[place], runs[:place]).regressed, place


def test_missing_cell_is_missed_in_every_later_run(tmp_path: Path) -> None:
    name = "auto-warm-prefill512-d4096"
    runs = [read_run(file_of(tmp_path / "0.json", 0))]
    for number in range(1, 9):
        runs.append(read_run(file_of(tmp_path / f"{number}.json", number, left_out=(name,))))
        assert compare(runs[-1], runs[:-1]).missing == [name], number


def test_hiccup_does_not_hide_a_later_regression(tmp_path: Path) -> None:
    cell = "uring-cold-prefill512-d0"
    factors = (1.0, 1.6, 1.0, 1.5)
    runs = [read_run(file_of(tmp_path / f"{i}.json", i, slower={cell: f})) for i, f in enumerate(factors)]
    assert compare(runs[1], runs[:1]).slower
    assert not compare(runs[2], runs[:2]).regressed
    assert [change.cell.name for change in compare(runs[3], runs[:3]).slower] == [cell]


def test_accepted_slowdown_is_what_later_runs_are_compared_with(tmp_path: Path) -> None:
    cell = "uring-cold-prefill512-d0"
    files = [file_of(tmp_path / f"{i}.json", i, slower={cell: 1.5} if i else {}) for i in range(4)]
    for file in files[:2]:
        kept = add_run(tmp_path / "kept", file)
    with pytest.raises(InputError, match="no reason"):
        accept(read_run(kept), " ")
    changed = accept(read_run(kept), "rows are checked now")
    runs = history(tmp_path / "kept", kept.parent.name)
    assert runs[-1] == changed
    verdict = compare(runs[-1], runs[:-1])
    assert verdict.slower
    assert not verdict.regressed
    assert "Accepted: rows are checked now" in markdown(verdict)
    assert not compare(read_run(files[2]), runs).slower
    slower = file_of(tmp_path / "again.json", 9, slower={cell: 1.5 * 1.5})
    assert [change.cell.name for change in compare(read_run(slower), runs).slower] == [cell]


@pytest.mark.parametrize("seed", range(5))
def test_many_cells_that_changed_do_not_move_the_others(tmp_path: Path, seed: int) -> None:
    """The probes say how fast the machine was, not the cells themselves."""
    names = sorted(name for name in read_run(file_of(tmp_path / "old.json", seed)).cells if "probe" not in name)
    half = set(names[::2])
    old = read_run(tmp_path / "old.json")
    slower = compare(read_run(file_of(tmp_path / "new.json", 50 + seed, slower=dict.fromkeys(half, 1.45))), [old])
    assert {change.cell.name for change in slower.slower} == half
    most = set(names[: len(names) * 6 // 10])
    faster = compare(read_run(file_of(tmp_path / "new.json", 90 + seed, slower=dict.fromkeys(most, 0.6))), [old])
    assert {change.cell.name for change in faster.faster} == most
    assert not faster.regressed


def test_slow_device_is_no_regression_of_cold_gathers_and_nothing_else(tmp_path: Path) -> None:
    old = read_run(file_of(tmp_path / "old.json", 1, workload="gather512"))
    cold = {name: 1.5 for name in old.cells if "-cold-" in name and not name.startswith("probe")}
    slow = file_of(tmp_path / "slow.json", 2, slower=cold, device=1.5, workload="gather512")
    assert not compare(read_run(slow), [old]).regressed
    code = file_of(tmp_path / "code.json", 3, slower=cold, workload="gather512")
    assert {change.cell.name for change in compare(read_run(code), [old]).slower} == set(cold)


@pytest.mark.parametrize("moved", [0.7, 1.4])
def test_probe_that_moves_alone_accuses_no_cell(tmp_path: Path, moved: float) -> None:
    old = read_run(file_of(tmp_path / "old.json", 1, workload="gather512"))
    new = read_run(file_of(tmp_path / "new.json", 2, probes=moved, device=moved, workload="gather512"))
    verdict = compare(new, [old])
    assert not verdict.regressed
    assert not verdict.faster


def test_probe_that_moves_alone_hides_no_cell(tmp_path: Path) -> None:
    """Taken out in full, 1.25 of the probe would leave 1.2 of a cell's 1.5."""
    cell = "uring-cold-prefill512-d0"
    old = read_run(file_of(tmp_path / "old.json", 1, workload="gather512"))
    new = file_of(tmp_path / "new.json", 2, slower={cell: 1.5}, device=1.25, workload="gather512")
    assert [change.cell.name for change in compare(read_run(new), [old]).slower] == [cell]
    new = file_of(tmp_path / "faster.json", 3, slower={cell: 1 / 1.5}, device=1 / 1.25, workload="gather512")
    assert [change.cell.name for change in compare(read_run(new), [old]).faster] == [cell]


def test_run_whose_cells_scatter_reports_large_factors_only(tmp_path: Path) -> None:
    old = read_run(file_of(tmp_path / "old.json", 1))
    names = sorted(name for name in old.cells if not name.startswith("probe"))
    scattered = {name: (1.4, 0.95, 1.1, 0.8)[place % 4] for place, name in enumerate(names)}
    verdict = compare(read_run(file_of(tmp_path / "new.json", 2, slower=scattered)), [old])
    assert not verdict.regressed
    assert "Cells differ much in this run" in markdown(verdict)
    worst = file_of(tmp_path / "worst.json", 3, slower=scattered | {names[0]: 5.0})
    assert [change.cell.name for change in compare(read_run(worst), [old]).slower] == [names[0]]


def _with_times(path: Path, name: str, times: list[float]) -> Path:
    """The cell with these times alone, in one pass."""
    content = json.loads(path.read_text())
    found = next(benchmark for benchmark in content["benchmarks"] if benchmark["extra_info"]["cell"] == name)
    found["stats"]["data"] = times
    content["benchmarks"] = [b for b in content["benchmarks"] if b["extra_info"]["cell"] != name or b is found]
    path.write_text(json.dumps(content))
    return path


def test_factor_without_significance_is_not_reported(tmp_path: Path) -> None:
    """Half of the few times are as before: the middle is a third higher, the test of ranks sees nothing in it."""
    name = "auto-warm-prefill512-d0"
    old = read_run(_with_times(file_of(tmp_path / "old.json", 1), name, [0.1, 0.1001, 0.16, 0.17]))
    verdict = compare(read_run(_with_times(file_of(tmp_path / "new.json", 2), name, [0.1, 0.17, 0.171, 0.172])), [old])
    found = next(change for change in verdict.changes if change.cell.name == name)
    assert found.factor > found.limit
    assert not verdict.slower


def test_cell_that_always_differs_has_a_wider_limit(tmp_path: Path) -> None:
    name = "auto-warm-prefill512-d0"
    factors = (1.0, 1.1, 0.9, 1.12, 0.92)
    runs = [read_run(file_of(tmp_path / f"{i}.json", i, slower={name: f})) for i, f in enumerate(factors)]
    new = read_run(file_of(tmp_path / "new.json", 9, slower={name: 1.4}))
    assert not compare(new, runs).slower
    steady = [read_run(file_of(tmp_path / f"{i}.json", i)) for i in range(5)]
    assert [change.cell.name for change in compare(new, steady).slower] == [name]


def test_equal_runs_report_nothing_five_times_in_a_row(tmp_path: Path) -> None:
    for start in range(20):
        folder = tmp_path / str(start)
        folder.mkdir()
        files = [file_of(folder / f"{i}.json", 1000 + start * 10 + i) for i in range(6)]
        for number in range(1, 6):
            add_run(folder / "kept", files[number - 1])
            new = read_run(files[number])
            verdict = compare(new, history(folder / "kept", machine_key(new.facts)))
            assert not verdict.regressed, markdown(verdict)
            assert not verdict.faster


def test_whole_run_that_is_slower_on_a_slower_machine_is_no_regression(tmp_path: Path) -> None:
    old = file_of(tmp_path / "old.json", 1)
    verdict = verdict_of(tmp_path, file_of(tmp_path / "new.json", 2, whole=1.5, probes=1.5), old)
    assert not verdict.regressed
    assert all(0.8 < change.factor < 1.2 for change in verdict.changes)
    assert "what that explains is taken out of the factors" in markdown(verdict)


def test_whole_run_that_is_slower_alone_is_a_regression(tmp_path: Path) -> None:
    old = file_of(tmp_path / "old.json", 1)
    verdict = verdict_of(tmp_path, file_of(tmp_path / "new.json", 2, whole=1.5), old)
    assert verdict.regressed
    assert verdict.everything_slower
    assert "the middle of all cells is" in markdown(verdict)


def test_missing_and_new_cells_are_reported(tmp_path: Path) -> None:
    name = "auto-warm-prefill512-d4096"
    whole, part = file_of(tmp_path / "whole.json", 1), file_of(tmp_path / "part.json", 2, left_out=(name,))
    verdict = compare(read_run(part), [read_run(whole)])
    assert verdict.missing == [name]
    assert verdict.regressed
    assert name in markdown(verdict)
    verdict = compare(read_run(whole), [read_run(part)])
    assert verdict.added == [name]
    assert not verdict.regressed
    assert name in markdown(verdict)
