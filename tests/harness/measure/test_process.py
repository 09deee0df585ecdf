"""An arm's process: it ends with its run, says how it ended, and measures other commits with this tree's code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.measure.cells import Cell, Workload
from harness.measure.process import _FOLDER, _START, Process, ProcessFailed
from harness.measure.stream import Tokens
from harness.synth import cache_folder

ROOT = Path(__file__).parents[3]
BEFORE_THE_REBUILDING = "345a4d3"


def _spec(model: Path, **changes: Any) -> dict[str, Any]:
    spec = {"model": str(model), "mode": "mmap-random", "row_settings": {}, "needs_model": False, "hashed": False}
    return spec | {"engine_settings": {}} | changes


def _order(kind: str = "gather", depth: int = 0, vocab: int = 0, tokens: int = 32) -> dict[str, Any]:
    cell = Cell("arm", "cold", depth, Workload(kind, tokens), 0)
    return Tokens(vocab, (1,), 4).order(cell, 512) | {"drop_caches": False}


def test_blocks_are_measured_one_after_the_other(table_file: Path) -> None:
    process = Process(_spec(table_file), ROOT)
    try:
        assert process.opened()["row_settings"]["queue_depth"] > 0
        results = [process.measure(_order() | {"fed": {"seed": seed, "rows": 128}}) for seed in range(3)]
    finally:
        process.close()
    assert all(result["valid"] for result in results), results
    assert all(result["residency"]["before"] <= 0.01 for result in results)
    assert not Path(f"/proc/{process.pid}").exists()


def test_planted_delay_is_in_the_time(table_file: Path) -> None:
    process = Process(_spec(table_file, mode="prefetch"), ROOT)
    order = _order(tokens=4096) | {"state": "warm"}
    try:
        process.opened()
        times: dict[float, list[float]] = {1.0: [], 3.0: []}
        for factor in (1.0, 3.0) * 5:
            times[factor].append(process.measure(order | {"slower": factor})["seconds"])
    finally:
        process.close()
    assert min(times[3.0]) > 1.5 * min(times[1.0])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"model": "/no/such/model.gguf"}, "failed: .*no/such/model.gguf"),
        ({"row_settings": {"no_such": 1}}, "failed: the row reader of this commit has no setting no_such"),
        ({"mode": "no-such"}, "failed: unknown row mode"),
    ],
)
def test_what_cannot_be_opened_is_said(table_file: Path, change: dict[str, Any], found: str) -> None:
    process = Process(_spec(table_file) | change, ROOT)
    try:
        with pytest.raises(ProcessFailed, match=found):
            process.opened()
    finally:
        process.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
def test_signal_that_ended_it_is_named(table_file: Path, number: signal.Signals) -> None:
    process = Process(_spec(table_file), ROOT)
    try:
        process.opened()
        os.kill(process.pid, number)
        with pytest.raises(ProcessFailed, match=f"killed: its process was ended by {number.name}"):
            process.measure(_order())
    finally:
        process.close()


def test_process_ends_when_its_run_is_killed(table_file: Path) -> None:
    """The run is killed while the process is idle: nothing is left that holds the model open."""
    code = (
        "import sys, time; from pathlib import Path; from harness.measure.process import Process\n"
        f"p = Process({_spec(table_file)!r}, Path({str(ROOT)!r})); p.opened(); print(p.pid, flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    run.kill()
    run.wait()
    run.stdout.close()
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}/status").exists() and "Z (" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < until, "the process of an arm outlived its run"
        time.sleep(0.02)


def test_process_of_a_run_that_has_ended_does_not_start() -> None:
    command = [sys.executable, "-c", _START, str(_FOLDER), str(os.getpid() + 1)]
    done = subprocess.run(command, cwd=ROOT, input="{}", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has ended" in done.stderr


@pytest.fixture(scope="module")
def tree_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the commit before the rebuilding."""
    from harness.engines.arms import Arm
    from harness.measure.commits import resolve, tree_of
    from model_file.errors import InputError

    try:
        arm = resolve(Arm("old", "auto", commit=BEFORE_THE_REBUILDING))
    except InputError:
        pytest.skip(f"this checkout does not reach back to commit {BEFORE_THE_REBUILDING}")
    return tree_of(arm, tmp_path_factory.mktemp("commits"))


@pytest.mark.slow  # minutes of compiling, the first time
def test_commit_before_the_rebuilding_is_measured(tree_before: Path, tiny_quant: Path, tmp_path: Path) -> None:
    """Its own engine, readers and files, and this tree's proofs: gather, prefill and decode, at depth 0 and deeper."""
    programs = cache_folder() / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    settings = {"context": 256, "chunk": 16, "cache_dir": str(programs)}
    spec = _spec(tiny_quant, mode="auto", needs_model=True, hashed=True, engine_settings=settings)
    process = Process(spec, tree_before)
    try:
        assert process.opened()["engine_settings"]["chunk"] == 16
        for kind, depth in (("gather", 0), ("prefill", 0), ("decode", 16)):
            order = _order(kind, depth, vocab=64, tokens=16) | {"state": "warm", "state_file": str(tmp_path / "state")}
            result = process.measure(order)
            assert result["valid"], (kind, result["reasons"])
            assert result["rows"]["total"] == 16 * 4
            assert result["tokens_per_s"] > 0
    finally:
        process.close()


def test_trees_are_not_mixed(tree_before: Path) -> None:
    """This tree is importable as well, by PYTHONPATH or an editable install: it must not stand in for the commit's."""
    code = _START.replace("sys.exit(main(int(sys.argv[2])))", "").replace(
        "from arm_worker.session import main",
        "from arm_worker import tree\ntree._module('model_file.gguf_file', 'reference.gguf_file')\n"
        "import json; print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in "
        "('fast', 'reference', 'model_file') and m.__file__]))",
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree_before), str(ROOT)])}
    command = [sys.executable, "-c", code, str(_FOLDER), "0"]
    done = subprocess.run(command, cwd=tree_before, env=environment, capture_output=True, text=True, check=True)
    files = json.loads(done.stdout)
    assert files
    assert all(Path(file).is_relative_to(tree_before) for file in files)
