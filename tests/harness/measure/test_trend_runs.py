"""Runs that are kept, per machine, and the command that compares them: machines are not mixed, damage is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from harness.errors import CannotRun
from harness.measure.trend.compare import compare
from harness.measure.trend.runs import (
    FACTS,
    add_run,
    differences,
    history,
    key_facts,
    machine_key,
    read_run,
    times_of,
)
from harness.measure.trend.text import markdown
from model_file.errors import InputError
from tests.harness.measure.conftest import made_up, plan, steady, store_of
from tests.harness.measure.trend_runs import MACHINE, file_of

Run = Callable[..., Result]


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


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Another processor"},
        {"cores": 4},
        {"ram_bytes": 50_000_000_000},
        {"kernel": "6.2.0"},
        {"file_system": "xfs"},
        {"disk": "another"},
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


def test_busy_run_is_not_accepted_and_nothing_is_dropped_in_silence(tmp_path: Path, run_command: Run) -> None:
    kept = tmp_path / "kept"
    add_run(kept, file_of(tmp_path / "first.json", 1))
    busy = add_run(kept, file_of(tmp_path / "busy.json", 2, whole=1.5, other_cpu=1.4))
    before = busy.read_bytes()
    assert run_command("trend", kept, "--accept", "a reason").exit_code == 3
    result = run_command("trend", kept, "--accept", "a reason", "--busy-too")
    assert result.exit_code == 2
    assert "1.4 cores busy" in result.output
    assert busy.read_bytes() == before
    assert run_command("trend", kept, "--keep-only").exit_code == 2
    again = ("--add", tmp_path / "first.json", "--keep-only", "--accept", "a reason")
    assert run_command("trend", kept, *again).exit_code == 2
    assert len(list(busy.parent.iterdir())) == 2
    slower = file_of(tmp_path / "slower.json", 3, whole=1.5)
    result = run_command("trend", kept, "--add", slower, "--accept", "a reason")
    assert result.exit_code == 0, result.output
    assert "Accepted: a reason" in result.output


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
    facts = tmp_path / "trend.json"
    result = run_command("trend", kept, "--add", third, "--html", page, "--markdown", text, "--json", facts)
    assert result.exit_code == 1
    assert f"\n{cell[:26]}" in result.output  # 80 columns: its end goes on in the next line
    assert cell in page.read_text()
    assert cell in text.read_text()
    content = json.loads(facts.read_text())
    assert (content["schema"], content["regressed"], content["slower"]) == ("plegate.trend/2", True, [cell])
    assert [c["cell"] for c in content["cells"] if c["factor"] > c["limit"]] == [cell]
    assert len(content["cells"]) == 20
    assert page.read_text().count("<figure>") == 5  # two states, two depths, and the probes
    other = file_of(tmp_path / "other.json", 4, machine=MACHINE | {"cores": 64})
    assert run_command("trend", kept, "--add", other).exit_code == 3
    assert run_command("trend", kept, "--against", first, "--key", machine_key(read_run(other).facts)).exit_code == 3


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("machine_info",), []),
        (("machine_info", "other_cpu"), "many"),
        (("benchmarks", 0), "no benchmark"),
        (("benchmarks", 0, "stats"), None),
        (("benchmarks", 0, "stats", "data", 0), "0.1"),
        (("benchmarks", 0, "stats", "data", 0), float("nan")),
        (("benchmarks", 0, "stats", "data", 0), 0),
        (("benchmarks", 0, "extra_info", "calls"), 0),
        (("benchmarks", 0, "extra_info"), {"cell": "alone"}),
        (("commit_info",), "text"),
    ],
)
def test_damaged_run_is_refused_and_nothing_is_kept(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    path = file_of(tmp_path / "run.json", 1)
    content = json.loads(path.read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"run\.json"):
        add_run(tmp_path / "kept", path)
    assert not (tmp_path / "kept").exists()


def test_kept_runs_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder"):
        add_run(tmp_path / "file", file_of(tmp_path / "run.json", 1))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"machine_info": {}, "benchmarks": []}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(InputError):
        add_run(tmp_path / "kept", path)
    assert not (tmp_path / "kept").exists()


def test_run_of_bench_goes_in_and_comes_out_as_pytest_benchmark(tmp_path: Path, run_command: Run) -> None:
    """A folder of `plegate bench` is a run of the trend: as it is, or as the file that `plegate report` writes."""
    changes = {"process": {"other_cpu": 0.1}, "device": {"kind": "cpu"}}
    for number, factor in enumerate((1.0, 1.0, 1.6)):
        results = made_up(plan(blocks=2), steady(0.01, uring=factor), **changes)
        store_of(results, tmp_path / f"run{number}")
    out = tmp_path / "out.json"
    assert run_command("report", tmp_path / "run0", "--pytest-benchmark", out).exit_code == 0
    content = json.loads(out.read_text())
    assert {benchmark["stats"]["rounds"] for benchmark in content["benchmarks"]} == {6}
    assert not any("#aa" in benchmark["name"] for benchmark in content["benchmarks"])
    kept = tmp_path / "kept"
    assert run_command("trend", kept, "--add", out, "--keep-only").exit_code == 0
    same = run_command("trend", kept, "--add", tmp_path / "run1")
    assert same.exit_code == 0, same.output
    slower = run_command("trend", kept, "--add", tmp_path / "run2")
    assert slower.exit_code == 1, slower.output
    rows = [line.split() for line in slower.output.splitlines() if "-prefill512-" in line]
    assert {row[0].partition("-")[0] for row in rows} == {"uring"}
    assert len(rows) == 6


def test_value_of_a_repeat_is_the_median_of_its_blocks() -> None:
    results = made_up(plan(blocks=3, depths=(0,)), lambda cell: 1.0 + cell.repeat + (10.0 if cell.block == 2 else 0.0))
    assert times_of(results)["uring-cold-prefill512-d0"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
