"""Few descriptors, processors, threads, no locked memory: the right rows, or an error that names the limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fast.rows import MODES
from tests.conftest import FIXTURES
from tests.hostile.conftest import Count

pytestmark = [pytest.mark.hostile, pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")]

ROOT = Path(__file__).parents[2]
MODEL = str(FIXTURES / "tiny-quant.gguf")


def rows(before: str, out: Path) -> tuple[int, str]:
    """Exit code and errors of `plegate rows` in every mode, after a line of shell that limits something."""
    command = [sys.executable, "-m", "harness", "rows", MODEL, "--rows", "200", "--no-cold", "--json", str(out)]
    done = subprocess.run(
        ["sh", "-c", f'{before} && exec "$@"', "sh", *command],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def verdicts(out: Path) -> dict[str, str]:
    return {mode["name"]: mode["verdict"] for mode in json.loads(out.read_text())["modes"]}


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["ulimit -l 0 && ulimit -n 32"])
def test_every_mode_reads_with_few_descriptors_and_no_locked_memory(limit: str, tmp_path: Path, count: Count) -> None:
    out = tmp_path / "rows.json"
    code, errors = rows(limit, out)
    found = verdicts(out)
    if code == 3:  # older kernels take the memory of a ring from what may be locked
        assert {mode for mode, verdict in found.items() if verdict != "equal"} <= {"uring", "uring-uncached"}
    else:
        assert (code, found) == (0, dict.fromkeys(MODES, "equal")), errors
    count("modes read under a limit", len(found))


@pytest.mark.slow
@pytest.mark.parametrize("descriptors", [6, 7, 8, 9, 10, 11, 12, 13, 14])
def test_too_few_descriptors_are_named_wherever_they_run_out(descriptors: int, tmp_path: Path) -> None:
    code, errors = rows(f"ulimit -n {descriptors}", tmp_path / "rows.json")
    assert code in (0, 2, 3), errors
    if code:
        assert "Too many open files" in errors, errors
        assert "check the disk" not in errors
    else:
        assert set(verdicts(tmp_path / "rows.json").values()) <= {"equal"}


@pytest.mark.slow
def test_every_mode_reads_on_one_processor(tmp_path: Path, count: Count) -> None:
    out = tmp_path / "rows.json"
    one = min(os.sched_getaffinity(0))
    code = f"import os, sys; os.sched_setaffinity(0, {{{one}}}); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, "-m", "harness", "rows", MODEL, "--rows", "200"]
    command += ["--no-cold", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert set(verdicts(out).values()) == {"equal"}
    count("modes read under a limit", len(MODES))


@pytest.mark.slow
def test_a_limit_on_processes_is_named(tmp_path: Path) -> None:
    """As another user: root has no such limit. The file permissions of this tree must not stand in the way."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    drop = ["setpriv", "--reuid=54321", "--clear-groups", "--bounding-set=-all,+dac_read_search,+dac_override"]
    drop += ["--inh-caps=+dac_read_search,+dac_override", "--ambient-caps=+dac_read_search,+dac_override"]
    if subprocess.run([*drop, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs setpriv, and a container that lets it drop rights")
    command = [sys.executable, "-m", "harness", "rows", MODEL, "--rows", "50", "--no-cold", "--mode", "mmap"]
    environment = os.environ | {"PLEGATE_CACHE_DIR": str(tmp_path)}
    for limit in (1, 2, 5):
        done = subprocess.run(
            [*drop, "bash", "-c", f'ulimit -u {limit} && exec "$@"', "bash", *command],
            capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 3, (limit, done.stderr)
        assert "`ulimit -u`" in done.stderr, (limit, done.stderr)
