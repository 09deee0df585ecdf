"""The trend on made-up runs: a planted slowdown is named, five equal runs say nothing, machines are not mixed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from harness.errors import CannotRun
from harness.trend.compare import compare
from harness.trend.machine import FACTS, differences, key_facts, machine_key
from harness.trend.runs import add_run, history, read_run
from harness.trend.text import markdown
from reference.errors import InputError

Run = Callable[..., Result]
MACHINE = {
    "cpu": "A processor @ 2.1GHz",
    "cores": 2,
    "ram_bytes": 25_000_000_000,
    "kernel": "6.1.2",
    "file_system": "ext4",
    "versions": {"jax": "0.6.0"},
}
MODES = ("prefetch", "mmap-random", "uring", "auto", "direct")


def file_of(
    path: Path,
    seed: int,
    *,
    slower: dict[str, float] | None = None,
    whole: float = 1.0,
    probes: float = 1.0,
    left_out: tuple[str, ...] = (),
    noise: float = 0.08,
    machine: dict[str, Any] = MACHINE,
    other_cpu: float = 0.1,
) -> Path:
    """A file as pytest-benchmark writes it: 20 cells and a probe in three passes, one of them often disturbed."""
    generator = random.Random(seed)
    benchmarks = []
    for number in range(3):
        for mode in (*MODES, "probe"):
            for state in ("cold", "warm"):
                for depth in (0, 4096):
                    name = f"{mode}-{state}-prefill512-d{depth}"
                    if name in left_out:
                        continue
                    factor = probes if mode == "probe" else whole * (slower or {}).get(name, 1.0)
                    # A neighbour makes everything slower for some minutes; every third pass or so.
                    disturbed = 1.6 if generator.random() < 0.3 and number != 1 else 1.0
                    base = 0.1 * factor * disturbed * (2 if state == "cold" else 1)
                    data = [base * generator.uniform(1, 1 + noise) for _ in range(5)]
                    workload = "probe" if mode == "probe" else "prefill512"
                    info = {
                        "cell": name,
                        "mode": mode,
                        "state": state,
                        "depth": depth,
                        "workload": workload,
                        "pass": number,
                    }
                    statistics = {
                        "min": min(data),
                        "max": max(data),
                        "median": sorted(data)[2],
                        "rounds": 5,
                        "data": data,
                    }
                    benchmarks.append(
                        {"name": f"test[{name}]", "fullname": "/a/folder", "extra_info": info, "stats": statistics}
                    )
    content = {
        "machine_info": {"node": "a-host-name", "plegate": key_facts(machine, "cpu"), "other_cpu": other_cpu},
        "commit_info": {"id": f"{seed:040x}", "dirty": False, "project": "a-folder", "branch": "a-branch"},
        "benchmarks": benchmarks,
        "datetime": f"2026-01-{seed % 28 + 1:02d}T00:00:00",
        "version": "5.2.0",
    }
    path.write_text(json.dumps(content))
    return path


def verdict_of(tmp_path: Path, new: Path, *old: Path) -> Any:
    for path in (*old, new):
        add_run(tmp_path / "kept", path)
    runs = history(tmp_path / "kept", machine_key(read_run(new).facts))
    return compare(runs[-1], runs[:-1])


def test_round_of_many_calls_counts_as_the_time_of_one(tmp_path: Path) -> None:
    path = file_of(tmp_path / "run.json", 1)
    name = "prefetch-warm-prefill512-d0"
    before = read_run(path).cells[name].value
    content = json.loads(path.read_text())
    for benchmark in content["benchmarks"]:
        if benchmark["extra_info"]["cell"] == name:
            benchmark["extra_info"]["calls"] = 20
    path.write_text(json.dumps(content))
    assert read_run(path).cells[name].value == pytest.approx(before / 20)


@pytest.mark.parametrize("seed", range(10))
def test_planted_slowdown_is_reported_and_nothing_else(tmp_path: Path, seed: int) -> None:
    cell = "uring-cold-prefill512-d0"
    old = [file_of(tmp_path / f"old{i}.json", seed * 10 + i) for i in range(1 + seed % 3)]
    verdict = verdict_of(tmp_path, file_of(tmp_path / "new.json", seed * 10 + 9, slower={cell: 1.5}), *old)
    assert [change.cell.name for change in verdict.slower] == [cell]
    assert 1.35 <= verdict.slower[0].factor <= 1.65
    assert verdict.regressed
    assert cell in markdown(verdict)


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
    assert "taken out of every factor" in markdown(verdict)


def test_whole_run_that_is_slower_alone_is_a_regression(tmp_path: Path) -> None:
    old = file_of(tmp_path / "old.json", 1)
    verdict = verdict_of(tmp_path, file_of(tmp_path / "new.json", 2, whole=1.5), old)
    assert verdict.regressed
    assert verdict.everything_slower
    assert "the whole run is" in markdown(verdict)


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


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Another processor"},
        {"cores": 4},
        {"ram_bytes": 50_000_000_000},
        {"kernel": "6.2.0"},
        {"file_system": "xfs"},
        {"versions": {"jax": "0.7.0"}},
    ],
)
def test_machines_are_never_compared(tmp_path: Path, change: dict[str, Any]) -> None:
    one = read_run(file_of(tmp_path / "one.json", 1))
    other = read_run(file_of(tmp_path / "other.json", 2, machine=MACHINE | change))
    assert machine_key(one.facts) != machine_key(other.facts)
    assert len(differences(one.facts, other.facts)) == 1
    with pytest.raises(CannotRun, match="another machine"):
        compare(one, [other])


def test_busy_machine_is_not_judged(tmp_path: Path) -> None:
    quiet = read_run(file_of(tmp_path / "quiet.json", 1))
    busy = read_run(file_of(tmp_path / "busy.json", 2, whole=2.0, other_cpu=1.4))
    with pytest.raises(CannotRun, match=r"1\.4 cores busy"):
        compare(busy, [quiet])
    with pytest.raises(CannotRun, match="made while the machine was busy"):
        compare(quiet, [busy])
    other = read_run(file_of(tmp_path / "other.json", 3))
    verdict = compare(other, [quiet, busy])
    assert not verdict.regressed
    assert verdict.earlier == [quiet]
    assert "1 earlier runs are left out" in markdown(verdict)
    assert compare(busy, [quiet], busy_too=True).everything_slower


def test_memory_of_the_same_machine_may_differ_a_little() -> None:
    facts = [key_facts(MACHINE | {"ram_bytes": size}, "cpu") for size in (25_100_000_000, 24_900_000_000)]
    assert machine_key(facts[0]) == machine_key(facts[1])


def test_kept_run_names_no_host_folder_or_branch(tmp_path: Path) -> None:
    kept = add_run(tmp_path / "kept", file_of(tmp_path / "new.json", 1))
    text = kept.read_text()
    for name in ("a-host-name", "a-folder", "a-branch", "/a/folder", str(tmp_path)):
        assert name not in text
    assert set(json.loads(text)["machine_info"]["plegate"]) == set(FACTS)
    assert read_run(kept).cells.keys() == read_run(tmp_path / "new.json").cells.keys()


def test_files_are_numbered_and_kept_in_order(tmp_path: Path) -> None:
    for seed in (5, 3, 9):
        add_run(tmp_path / "kept", file_of(tmp_path / "new.json", seed))
    key = next((tmp_path / "kept").iterdir()).name
    assert [int(run.commit, 16) for run in history(tmp_path / "kept", key)] == [5, 3, 9]


def test_command_reports_with_its_exit_codes(tmp_path: Path, run_command: Run) -> None:
    kept = tmp_path / "kept"
    assert run_command("trend", kept).exit_code == 3
    first = file_of(tmp_path / "first.json", 1)
    assert run_command("trend", kept, "--add", first, "--keep-only").exit_code == 0
    lonely = run_command("trend", kept)
    assert lonely.exit_code == 3
    assert "expected two" in lonely.output
    assert run_command("trend", kept, "--add", file_of(tmp_path / "second.json", 2)).exit_code == 0
    page, text = tmp_path / "trend.html", tmp_path / "trend.md"
    cell = "direct-warm-prefill512-d4096"
    third = file_of(tmp_path / "third.json", 3, slower={cell: 1.5})
    result = run_command("trend", kept, "--add", third, "--html", page, "--markdown", text)
    assert result.exit_code == 1
    assert f"slower: {cell}" in result.output
    assert cell in page.read_text()
    assert cell in text.read_text()
    assert page.read_text().count("<figure>") == 5  # two states, two depths, and the probes
    other = file_of(tmp_path / "other.json", 4, machine=MACHINE | {"cores": 64})
    assert run_command("trend", kept, "--add", other).exit_code == 3
    assert run_command("trend", kept, "--against", first, "--key", machine_key(read_run(other).facts)).exit_code == 3


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"machine_info": {}, "benchmarks": []}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(InputError):
        add_run(tmp_path / "kept", path)
    assert not (tmp_path / "kept").exists()
