"""Runs as people start, stop and go on with them: nothing is lost, measured twice, or half written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from harness.errors import CannotRun
from harness.measure.cell import PARENT, SCHEMA
from harness.measure.cells import Arm
from harness.measure.commits import resolve, tree_of
from harness.measure.memory_limit import limited
from harness.measure.store import Store
from model_file.errors import InputError
from tests.harness.measure.conftest import made_up, plan, steady, store_of

Run = Callable[..., Result]
ROOT = Path(__file__).parents[3]


def arguments_of(table_file: Path, folder: Path, *more: str | Path | int) -> list[str]:
    """A run of 12 cells that gather the rows of 64 tokens."""
    given = [
        "bench", table_file, "--arm", "prefetch", "--arm", "mmap-random", "--workload", "gather:64", "--depth", 0,
        "--repeats", 2, "--out", folder / "run", "--cache-dir", folder / "cache", *more,
    ]  # fmt: skip
    return [str(argument) for argument in given]


def start(arguments: list[str], **changes: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness.cli", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **changes)


def finished(folder: Path) -> dict[str, int]:
    """Every finished cell with the time its file was written; each must be whole."""
    found = {}
    for path in (folder / "run" / "cells").glob("*.json"):
        assert json.loads(path.read_text())["seconds"] > 0
        found[path.name] = path.stat().st_mtime_ns
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_run_goes_on_where_it_was(table_file: Path, tmp_path: Path, number: signal.Signals) -> None:
    child = start(arguments_of(table_file, tmp_path), start_new_session=True)
    until = time.monotonic() + 60
    while len(list((tmp_path / "run" / "cells").glob("*.json"))) < 4 and time.monotonic() < until:
        time.sleep(0.02)
    if number == signal.SIGINT:
        os.killpg(child.pid, number)  # as a terminal does: to the run and to its cell
    else:
        child.kill()
    child.communicate(timeout=60)
    assert child.returncode == (130 if number == signal.SIGINT else -9)
    before = finished(tmp_path)
    assert 4 <= len(before) < 12
    again = start(arguments_of(table_file, tmp_path, "--resume"))
    output, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    after = finished(tmp_path)
    assert len(after) == 12
    assert before == {name: after[name] for name in before}
    assert not list(tmp_path.glob("run/**/.*.part"))
    sessions = json.loads((tmp_path / "run" / "timing.json").read_text())["sessions"]
    assert [session["of"] for session in sessions] == [12, 12 - len(before)]
    for session in sessions:  # each is compared with what was predicted for the cells that it finished
        assert 0 < session["predicted_for_cells_s"] <= session["predicted_s"] * (1 + 1e-9)
    assert sessions[0]["predicted_for_cells_s"] < sessions[0]["predicted_s"]
    assert f"{sessions[0]['cells']} of 12 cells took" in output
    assert {json.loads(path.read_text())["session"] for path in (tmp_path / "run" / "cells").iterdir()} == {0, 1}


@pytest.fixture(scope="module")
def finished_run(table_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that is finished; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("finished")
    child = start(arguments_of(table_file, folder))
    _, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    return folder


def test_finished_run_is_not_repeated(finished_run: Path, table_file: Path, tmp_path: Path, run_command: Run) -> None:
    shutil.copytree(finished_run, tmp_path, dirs_exist_ok=True)
    before = finished(tmp_path)
    assert run_command(*arguments_of(table_file, tmp_path, "--resume")).exit_code == 0
    assert finished(tmp_path) == before
    timing = json.loads((tmp_path / "run" / "timing.json").read_text())
    assert [session["cells"] for session in timing["sessions"]] == [12]
    assert timing["sessions"][0]["predicted_s"] > 0


def test_folder_in_use_is_refused(table_file: Path, tmp_path: Path, run_command: Run) -> None:
    store_of(made_up(plan(), steady(0.01)), tmp_path / "run")
    result = run_command(*arguments_of(table_file, tmp_path))
    assert result.exit_code == 2
    assert "--resume" in result.output


def test_resume_with_another_model_is_refused(
    finished_run: Path, table_file: Path, tmp_path: Path, run_command: Run
) -> None:
    shutil.copytree(finished_run, tmp_path, dirs_exist_ok=True)
    other = tmp_path / table_file.name
    other.write_bytes(table_file.read_bytes())
    result = run_command(*arguments_of(other, tmp_path, "--resume"))
    assert result.exit_code == 2
    assert "changed_ns" in result.output


def test_resume_compares_what_is_asked_with_the_run_and_not_with_defaults(
    finished_run: Path, table_file: Path, tmp_path: Path, run_command: Run
) -> None:
    shutil.copytree(finished_run, tmp_path, dirs_exist_ok=True)
    resumed = ("bench", table_file, "--resume", "--out", tmp_path / "run", "--cache-dir", tmp_path / "cache")
    assert run_command(*resumed, "--baseline", "prefetch").exit_code == 0
    for other in ("mmap-random", "direct"):  # an arm of this run, and one that is not even among the default ones
        result = run_command(*resumed, "--baseline", other)
        assert result.exit_code == 2
        assert "--baseline is another than the run was started with" in " ".join(result.output.split())
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    content["machine"]["versions"]["jax"] = "0.0.1"
    path.write_text(json.dumps(content))
    result = run_command(*resumed)
    assert result.exit_code == 2
    assert "--resume: versions is" in result.output


@pytest.mark.parametrize("parent", ["1", "another"])
def test_cell_ends_when_its_run_has_ended_and_only_then(tmp_path: Path, parent: str) -> None:
    """The run may be process 1 itself, in a container: that its number is 1 says nothing."""
    command = [sys.executable, "-m", "harness.measure.cell", str(tmp_path / "result.json")]
    wrong = str(os.getpid() + 1) if parent == "another" else parent
    environment = os.environ | {PARENT: wrong}
    done = subprocess.run(command, cwd=ROOT, env=environment, input="{}", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has ended" in done.stderr
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {PARENT: str(os.getpid())}, input="{}", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "the spec has schema None" in done.stderr


def test_invalid_cells_alone_are_measured_again(
    finished_run: Path, table_file: Path, tmp_path: Path, run_command: Run
) -> None:
    shutil.copytree(finished_run, tmp_path, dirs_exist_ok=True)
    path = next((tmp_path / "run" / "cells").glob("cold.*.json"))
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"valid": False, "reasons": ["killed: by a test"]}))
    before = finished(tmp_path)
    assert run_command(*arguments_of(table_file, tmp_path, "--resume")).exit_code == 0
    after = finished(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {path.name}
    assert json.loads(path.read_text())["valid"]


def test_results_name_no_folder_and_no_host(finished_run: Path) -> None:
    import socket

    text = "".join(path.read_text() for path in (finished_run / "run").glob("**/*.json"))
    for name in (str(finished_run), str(ROOT), socket.gethostname()):
        assert name not in text


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("--state", "lukewarm", "expected cold or warm"),
        ("--arm", "no-such", "unknown row mode"),
        ("--workload", "prefill", "expected prefill:N"),
        ("--repeats", "0", "at least 1"),
        ("--depth", "-1", "0 or more"),
        ("--memory-limit", "lots", "no size"),
    ],
)
def test_bad_option_exits_2_and_measures_nothing(
    table_file: Path, tmp_path: Path, run_command: Run, option: str, value: str, found: str
) -> None:
    gather = () if option == "--workload" else ("--workload", "gather:8")
    result = run_command(
        "bench", table_file, *gather, option, value, "--out", tmp_path / "run", "--cache-dir", tmp_path
    )
    assert result.exit_code == 2, result.output
    assert found in result.output
    assert not (tmp_path / "run").exists()


def test_table_alone_and_short_context_are_refused(
    table_file: Path, tiny_quant: Path, tmp_path: Path, run_command: Run
) -> None:
    for model, found in ((table_file, "gather:N"), (tiny_quant, "has a context of")):
        result = run_command("bench", model, "--depth", 999_999, "--out", tmp_path / "run", "--cache-dir", tmp_path)
        assert result.exit_code == 2
        assert found in result.output


def test_cell_that_fails_is_written_down_with_its_reason(table_file: Path, tmp_path: Path, run_command: Run) -> None:
    """The limit is far below what Python needs: every cell is killed, none is lost, the exit code says so."""
    with limited(1 << 20) as limit:
        if limit is None or limit.group is None:
            pytest.skip("no cgroup can be made here: what a limit kills cannot be tested")
    result = run_command(*arguments_of(table_file, tmp_path, "--memory-limit", "4MiB", "--repeats", 1, "--no-twin"))
    assert result.exit_code == 3, result.output
    cells = [json.loads(path.read_text()) for path in (tmp_path / "run" / "cells").glob("*.json")]
    assert len(cells) == 4
    assert all(cell["reasons"][0].startswith("killed: ") for cell in cells)


def test_memory_limit_counts_the_page_cache(table_file: Path, tmp_path: Path, run_command: Run) -> None:
    with limited(1 << 20) as limit:
        if limit is None or limit.group is None:
            pytest.skip("no cgroup can be made here: the page cache cannot be limited")
    result = run_command(*arguments_of(table_file, tmp_path, "--memory-limit", "256MiB", "--repeats", 1))
    assert result.exit_code == 0, result.output
    assert "limit-not-applied" not in result.output
    cells = [json.loads(path.read_text()) for path in (tmp_path / "run" / "cells").glob("*.json")]
    assert {cell["limit"]["kind"] for cell in cells} <= {"cgroup1", "cgroup2"}


def test_machine_without_cgroups_says_what_is_not_limited(tmp_path: Path) -> None:
    with limited(1 << 30, tmp_path) as limit:
        assert limit is not None
        assert limit.kind == "rlimit"
        assert limit.problem


def test_cgroup_is_removed_afterwards() -> None:
    with limited(1 << 28) as limit:
        group = limit.group if limit else None
        if group is None:
            pytest.skip("no cgroup can be made here")
        assert group.is_dir()
    assert not group.exists()


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_commit_is_laid_out_once_and_whole(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "harness" / "bench").mkdir(parents=True)
    _git(tmp_path, "init", "-q", str(checkout))
    (checkout / "old.txt").write_text("older than the benchmarks")
    _git(checkout, "add", "old.txt")
    _git(checkout, "commit", "-qm", "first")
    (checkout / "harness" / "bench" / "cell.py").write_text("print('a cell')")
    _git(checkout, "add", "harness")
    _git(checkout, "commit", "-qm", "second")
    arm = resolve(Arm("now", "auto", commit="HEAD"), checkout)
    assert arm.commit is not None and len(arm.commit) == 40
    tree = tree_of(arm, tmp_path / "cache", checkout)
    assert (tree / "harness" / "bench" / "cell.py").read_text() == "print('a cell')"
    assert tree_of(arm, tmp_path / "cache", checkout) == tree
    with pytest.raises(InputError, match="no commit"):
        resolve(Arm("never", "auto", commit="no-such-branch"), checkout)
    with pytest.raises(CannotRun, match="older than the benchmarks"):
        tree_of(resolve(Arm("old", "auto", commit="HEAD~1"), checkout), tmp_path / "cache", checkout)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", "[]"),
        ("run.json", '{"kind": "plegate-bench", "schema": 1}'),
        ("run.json", json.dumps({"kind": "plegate-bench", "schema": SCHEMA})),
        ("timing.json", "[]"),
        ("timing.json", '{"sessions": [{}]}'),
        ("cells/x.json", "{}"),
        ("cells/x.json", "[]"),
        ("cells/x.json", '{"cell": {"arm": "prefetch"}}'),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, file: str, content: str) -> None:
    store_of(made_up(plan(), steady(0.01)), tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    with pytest.raises(InputError, match=file):
        Store(tmp_path / "run").read()


def test_cell_without_a_number_is_named(tmp_path: Path) -> None:
    results = made_up(plan(), steady(0.01))
    path = store_of(results, tmp_path / "run").path(results.plan.cells()[0])
    cell = json.loads(path.read_text())
    del cell["used"]
    path.write_text(json.dumps(cell))
    with pytest.raises(InputError, match="used"):
        Store(tmp_path / "run").read()


def test_two_runs_do_not_measure_into_one_folder(tmp_path: Path) -> None:
    store = store_of(made_up(plan(), steady(0.01)), tmp_path / "run")
    with store.alone(), pytest.raises(CannotRun, match="another process"), Store(tmp_path / "run").alone():
        pass
    with Store(tmp_path / "run").alone():
        pass


def test_damaged_result_is_named(tmp_path: Path) -> None:
    results = made_up(plan(), steady(0.01))
    store = store_of(results, tmp_path / "run")
    store.path(results.plan.cells()[0]).write_text('{"schema": 1, "cel')
    with pytest.raises(InputError, match="remove the file"):
        Store(tmp_path / "run").read()
