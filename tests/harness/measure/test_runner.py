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

from harness.measure import runner
from harness.measure.memory_limit import limited
from harness.measure.process import Process, ProcessFailed
from tests.harness.measure.conftest import made_up, plan, steady, store_of

Run = Callable[..., Result]
ROOT = Path(__file__).parents[3]


def arguments_of(table_file: Path, folder: Path, *more: str | Path | int) -> list[str]:
    """A run of 12 cells that gather the rows of 64 tokens."""
    given = [
        "bench", table_file, "--arm", "prefetch", "--arm", "mmap-random", "--workload", "gather:64", "--depth", 0,
        "--repeats", 2, "--blocks", 1, "--out", folder / "run", "--cache-dir", folder / "cache", *more,
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
    assert len(timing["sessions"][0]["repeats_s"]) == 2


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
        ("--repeats", "0", "expected 1 to"),
        ("--depth", "-1", "0 or more"),
        ("--memory-limit", "lots", "expected a number of bytes"),
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
    given = arguments_of(table_file, tmp_path, "--memory-limit", "1MiB", "--repeats", 1, "--no-twin")
    result = run_command(*[text.replace("gather:64", "gather:16384") for text in given])
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


def test_changed_model_ends_the_run_with_its_own_verdict(
    table_file: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced, written to or removed after the third cell: no mode is blamed, and nothing is measured after."""
    measure = Process.measure

    def changing(how: Callable[[Path], object], model: Path) -> Callable[..., dict[str, Any]]:
        asked: list[int] = []

        def then(process: Process, order: dict[str, Any]) -> dict[str, Any]:
            result = measure(process, order)
            asked.append(1)
            if len(asked) == 3:
                how(model)
            return result

        return then

    def replaced(model: Path) -> None:
        (model.parent / "new").write_bytes(model.read_bytes())
        (model.parent / "new").replace(model)

    for word, how in (("was replaced", replaced), ("was written to", Path.touch), ("is gone", Path.unlink)):
        folder = tmp_path / word.replace(" ", "-")
        folder.mkdir()
        model = folder / "model.gguf"
        model.write_bytes(table_file.read_bytes())
        monkeypatch.setattr(Process, "measure", changing(how, model))
        summary = folder / "summary.json"
        result = run_command(*arguments_of(model, folder, "--json", summary))
        assert result.exit_code == 3, result.output
        assert f"changed: model.gguf {word} while it was read" in " ".join(result.output.split())
        content = json.loads(summary.read_text())
        assert content["verdict"] == "changed"
        assert content["caveats"][0]["name"] == "changed"
        assert len(finished(folder)) == 2


def test_process_that_dies_is_named_and_the_others_are_measured(
    table_file: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Process.measure

    def dying(process: Process, order: dict[str, Any]) -> dict[str, Any]:
        if process.spec["mode"] == "mmap-random":
            os.kill(process.pid, signal.SIGSEGV)
        return measure(process, order)

    monkeypatch.setattr(Process, "measure", dying)
    result = run_command(*arguments_of(table_file, tmp_path, "--repeats", 1, "--state", "warm"))
    assert result.exit_code == 3, result.output
    cells = [json.loads(path.read_text()) for path in (tmp_path / "run" / "cells").glob("*.json")]
    by_arm = {cell["cell"]["arm"]: cell for cell in cells}
    assert by_arm["mmap-random"]["reasons"] == ["killed: its process was ended by SIGSEGV"]
    assert by_arm["prefetch"]["valid"] and by_arm["prefetch#aa"]["valid"]


def test_arm_that_cannot_be_opened_is_tried_once_a_repeat(
    table_file: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Process.opened
    asked = []

    def refusing(process: Process) -> dict[str, Any]:
        if process.spec["mode"] == "mmap-random":
            asked.append(process.pid)
            raise ProcessFailed("failed: a test forbids it")
        return opened(process)

    monkeypatch.setattr(Process, "opened", refusing)
    result = run_command(*arguments_of(table_file, tmp_path, "--blocks", 3))
    assert result.exit_code == 3
    assert "12 cells are invalid and left out" in " ".join(result.output.split())
    assert len(asked) == 2


def test_processes_are_new_in_every_repeat_and_the_same_within_it(
    table_file: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statistic counts repeats as independent, which they are not when a process lives through several."""
    measure, asked = Process.measure, []

    def noting(process: Process, order: dict[str, Any]) -> dict[str, Any]:
        asked.append((process.spec["mode"], process.pid, order["state"]))
        return measure(process, order)

    monkeypatch.setattr(Process, "measure", noting)
    assert run_command(*arguments_of(table_file, tmp_path, "--blocks", 2, "--no-twin")).exit_code == 0
    for mode in ("prefetch", "mmap-random"):
        pids = [pid for found, pid, _ in asked if found == mode]
        assert len(pids) == 8
        assert len(set(pids[:4])) == len(set(pids[4:])) == 1
        assert pids[0] != pids[-1]
    assert {state for _, _, state in asked[:4]} == {"cold", "warm"}


@pytest.mark.parametrize("option", [("--memory-limit", "900MiB"), ()])
def test_arms_that_find_no_room_together_are_measured_one_after_the_other(
    table_file: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    if not option:
        monkeypatch.setattr(runner, "available_bytes", lambda: 0)
    living: list[int] = []
    start, close = Process.__init__, Process.close
    most = []

    def counted(process: Process, *given: Any) -> None:
        start(process, *given)
        living.append(process.pid)
        most.append(len(living))

    def ended(process: Process) -> None:
        living.remove(process.pid)
        close(process)

    monkeypatch.setattr(Process, "__init__", counted)
    monkeypatch.setattr(Process, "close", ended)
    result = run_command(*arguments_of(table_file, tmp_path, "--blocks", 2, "--repeats", 1, *option))
    assert result.exit_code in (0, 3), result.output
    assert most == [1, 1, 1]


def test_budget_ends_a_run_and_resolve_ends_it_sooner(
    table_file: Path, tmp_path: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are made up: the arm takes half as long again, exactly, so that six repeats are enough."""

    def exact(process: Process, order: dict[str, Any]) -> dict[str, Any]:
        seconds = 0.002 if process.spec["mode"] == "prefetch" else 0.003
        return measure(process, order) | {"seconds": seconds, "tokens_per_s": order["count"] / seconds}

    measure = Process.measure
    monkeypatch.setattr(Process, "measure", exact)
    given = arguments_of(table_file, tmp_path, "--state", "warm", "--blocks", 2)
    del given[given.index("--repeats") : given.index("--repeats") + 2]
    result = run_command(*given, "--resolve", "5%", "--budget", "5min")
    assert result.exit_code == 0, result.output
    assert "unresolved" not in result.output
    assert "mmap-random is 0.67 times as fast as prefetch" in " ".join(result.output.split())
    repeats = {json.loads(path.read_text())["cell"]["repeat"] for path in (tmp_path / "run" / "cells").iterdir()}
    assert repeats == set(range(6))


def test_budget_that_is_too_short_is_said(table_file: Path, tmp_path: Path, run_command: Run) -> None:
    given = arguments_of(table_file, tmp_path)
    del given[given.index("--repeats") : given.index("--repeats") + 2]
    result = run_command(*given, "--resolve", "0.5%", "--budget", "1s")
    assert result.exit_code == 0, result.output
    assert "unresolved: in 2 of 2 groups" in " ".join(result.output.split())
    again = run_command(*given, "--resolve", "0.5%", "--budget", "2s", "--resume")
    assert again.exit_code == 0, again.output
    assert run_command(*given, "--resolve", "1%", "--resume").exit_code == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--resolve", "0%"),
        ("--resolve", "5"),
        ("--resolve", "x"),
        ("--budget", "10"),
        ("--budget", "0s"),
        ("--budget", "-1s"),
    ],
)
def test_bad_limits_are_refused(table_file: Path, tmp_path: Path, run_command: Run, option: str, value: str) -> None:
    result = run_command(*arguments_of(table_file, tmp_path, option, value))
    assert result.exit_code == 2
    assert f"{option} {value}: expected" in " ".join(result.output.split())
