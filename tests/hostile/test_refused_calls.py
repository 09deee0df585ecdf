"""One system call at a time is refused by a seccomp filter: each mode that needs it says so, the others go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fast.rows import MODES
from tests.conftest import FIXTURES
from tests.hostile import seccomp

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(not seccomp.SUPPORTED, reason="the numbers of the calls are known for x86-64 and arm64"),
]

ROOT = Path(__file__).parents[2]
MODEL = FIXTURES / "tiny-quant.gguf"
MAPPED = ("mmap-sequential", "mmap-random", "prefetch")
RING = ("uring", "uring-uncached")
POPULATE, SHARED = "3:0x8000", "3:1"
O_DIRECT = f"2:{os.O_DIRECT:#x}" if hasattr(os, "O_DIRECT") else ""
SEQUENTIAL = "2:2"

# What is refused: the modes that do not run as themselves, those that run and say what is different, and the words.
# A mode in neither list must not notice.
AFFECTED: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "madvise:EPERM": (MAPPED, ("auto",), "madvise"),
    "madvise:ENOSYS": (MAPPED, ("auto",), "madvise"),
    f"madvise:EPERM:{SEQUENTIAL}": (("mmap-sequential",), (), "madvise(MADV_SEQUENTIAL)"),
    "fadvise64:EPERM": ((), ("direct", "uring", "auto"), "posix_fadvise(POSIX_FADV_RANDOM)"),
    "fadvise64:ENOSYS": ((), ("direct", "uring", "auto"), "posix_fadvise(POSIX_FADV_RANDOM)"),
    "process_madvise:EPERM": ((), ("prefetch",), "process_madvise: EPERM"),
    "pidfd_open:ENOSYS": ((), ("prefetch",), "pidfd_open: ENOSYS"),
    "io_uring_setup:EPERM": (RING, ("auto",), "io_uring is forbidden here"),
    "io_uring_setup:ENOSYS": (RING, ("auto",), "this kernel has no io_uring"),
    "io_uring_enter:EPERM": (RING, (), "io_uring_enter"),  # auto takes cached rows from its mapping
    "io_uring_enter:ENOSYS": (RING, (), "io_uring_enter"),
    "io_uring_register:EPERM": (RING, ("auto",), "io_uring_register"),
    f"mmap:EPERM:{POPULATE}": (RING, ("auto",), "the ring cannot be mapped: mmap"),
    f"mmap:EPERM:{SHARED}": (("mmap", *MAPPED, *RING), ("auto",), "mmap"),
    "io_setup:EPERM": ((), ("direct", "direct-uncached"), "io_setup"),
    "io_submit:ENOSYS": ((), ("direct", "direct-uncached"), "io_submit"),
    "io_getevents:EPERM": ((), ("direct", "direct-uncached"), "io_getevents"),
    "io_getevents:ENOSYS": ((), ("direct", "direct-uncached"), "io_getevents"),
    "io_destroy:EPERM": ((), (), ""),  # contexts stay until the process ends
    "preadv2:EPERM": (("resident",), (), "preadv"),
    "preadv2:ENOSYS": ((), (), ""),  # the C library calls preadv then
    "preadv:EPERM": ((), (), ""),
    "pread64:EPERM": ((), (), ""),  # the device's counter alone
    f"openat:EPERM:{O_DIRECT}": (("direct-uncached", "uring-uncached"), (), "refuses O_DIRECT at open"),
    "clone3:EPERM": ((), ("direct",), "no thread can be started"),
    "mincore:EPERM": ((), (), ""),
    "cachestat:EPERM": ((), (), ""),
    "statx:EPERM": ((), (), ""),
    "statx:ENOSYS": ((), (), ""),
    "readlink:EPERM": ((), (), ""),
}


@pytest.fixture(scope="module")
def without_filter() -> dict[str, Any]:
    """What the modes do here anyhow: a container of its own may forbid calls too."""
    return run_modes(["io_destroy:EPERM"])["io_destroy:EPERM"]


def run_modes(rules: list[str]) -> dict[str, dict[str, Any]]:
    """How every mode ended, for each rule."""
    command = [sys.executable, "-m", "tests.hostile.refused_modes", str(MODEL), *rules]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=True)
    return dict(zip(rules, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def ends() -> dict[str, dict[str, Any]]:
    return run_modes(list(AFFECTED))


@pytest.mark.parametrize("rule", AFFECTED)
def test_a_refused_call_is_named_by_the_modes_that_need_it(
    rule: str, ends: dict[str, dict[str, Any]], without_filter: dict[str, Any]
) -> None:
    stopped, told, words = AFFECTED[rule]
    for mode in MODES:
        end, before = ends[rule][mode], without_filter[mode]
        if before["effective"] != mode or before["reason"]:
            pytest.skip(f"{mode} is not itself on this machine: {before['reason']}")
        assert end["end"] in ("ran", "not run"), (mode, end)  # never another exception
        assert end.get("right", True), mode
        itself = end["end"] == "ran" and end["effective"] == mode
        assert itself == (mode not in stopped), (mode, end)
        if mode not in (*stopped, *told):
            assert end["reason"] is None, (mode, end)
            continue
        assert words in end["reason"], (mode, end)
        if end["end"] == "not run":
            assert end["reason"].startswith(f"{MODEL}: mode {mode} cannot run: "), end


def test_every_call_of_the_modes_is_refused_once() -> None:
    """A call that a mode starts to use must come into the table above."""
    from fast.rows import syscalls

    refused = {rule.split(":")[0] for rule in AFFECTED}
    assert set(syscalls.NUMBERS) <= refused
    assert {"madvise", "mincore", "fadvise64", "mmap", "preadv", "pread64", "statx"} <= refused


def command(rule: str, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a command under a filter."""
    words = [sys.executable, "-m", "tests.hostile.seccomp", rule, "--", sys.executable, "-m", "harness", *arguments]
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=ROOT, env=environment, timeout=200, check=False
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def verdicts(path: Path) -> dict[str, str]:
    return {mode.get("name", mode.get("mode")): mode["verdict"] for mode in json.loads(path.read_text())["modes"]}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["madvise:EPERM", "io_uring_enter:EPERM", f"openat:EPERM:{O_DIRECT}", "preadv2:EPERM"])
def test_rows_judges_the_other_modes_and_ends_with_3(rule: str, tmp_path: Path) -> None:
    stopped, _, words = AFFECTED[rule]
    out = tmp_path / "rows.json"
    code, printed, errors = command(rule, "rows", MODEL, "--rows", "200", "--no-cold", "--json", out)
    assert code == 3, errors
    assert words in " ".join(printed.split())
    assert verdicts(out) == {mode: "not run" if mode in stopped else "equal" for mode in MODES}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["fadvise64:EPERM", "process_madvise:EPERM", "io_setup:EPERM", "statx:EPERM"])
def test_rows_names_what_a_mode_goes_on_without(rule: str, tmp_path: Path) -> None:
    _, told, words = AFFECTED[rule]
    out = tmp_path / "rows.json"
    code, printed, errors = command(rule, "rows", MODEL, "--rows", "200", "--no-cold", "--json", out)
    assert code == 0, errors
    assert words in " ".join(printed.split())
    assert verdicts(out) == dict.fromkeys(MODES, "equal")
    named = {mode["name"] for mode in json.loads(out.read_text())["modes"] if mode["fallback_reason"]}
    assert named == set(told)


@pytest.mark.slow
def test_a_cold_start_that_cannot_be_made_or_verified_is_named(tmp_path: Path) -> None:
    for rule in ("fadvise64:EPERM", "mincore:EPERM"):
        out = tmp_path / "rows.json"
        code, _, errors = command(rule, "rows", MODEL, "--rows", "50", "--cold", "--mode", "mmap", "--json", out)
        if rule.startswith("mincore"):  # cachestat says it too
            assert code in (0, 3), errors
            continue
        assert code == 3, errors
        assert "could not be evicted from memory and verified" in json.loads(out.read_text())["modes"][0]["not_cold"]


@pytest.mark.slow
def test_gate_judges_the_other_modes(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("1 2 3")
    out = tmp_path / "gate.json"
    modes = ["--mode", "mmap", "--mode", "mmap-random", "--mode", "direct"]
    code, printed, errors = command(
        "madvise:EPERM", "gate", MODEL, "--tokens", tmp_path / "ids", "--generate", "0", *modes, "--json", out
    )
    assert code == 3, errors
    assert "madvise(MADV_RANDOM)" in " ".join(printed.split())
    assert verdicts(out) == {"mmap": "equal", "mmap-random": "not run", "direct": "equal"}


def test_run_in_a_mode_that_is_forbidden_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("1 2 3")
    code, _, errors = command("madvise:EPERM", "run", MODEL, "--tokens", tmp_path / "ids", "--mode", "mmap-random")
    assert code == 3
    assert f"plegate: cannot run: {MODEL}: mode mmap-random cannot run: madvise(MADV_RANDOM)" in errors


@pytest.mark.slow
def test_no_threads_at_all_is_named() -> None:
    """OpenBLAS interrupts the process then: nobody typed Ctrl-C, so it is no 130."""
    code, _, errors = command("clone3:EPERM", "rows", MODEL, "--rows", "50", "--no-cold", "--mode", "mmap")
    assert code == 3, errors
    assert "no thread can be started" in errors
