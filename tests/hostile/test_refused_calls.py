"""One system call at a time is refused by a seccomp filter: each mode that needs it says so, the others go on."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
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
    "getrusage:EPERM": ((), tuple(MODES), "getrusage is forbidden here: page faults are not counted"),
    "mincore:EPERM": ((), ("auto",), "mincore of tiny-quant.gguf: EPERM (Operation not permitted); every large batch"),
    "cachestat:EPERM": ((), (), ""),  # asked only where mincore cannot say
    "statx:EPERM": ((), ("direct-uncached", "uring-uncached"), "statx of tiny-quant.gguf: EPERM"),
    "statx:ENOSYS": ((), (), ""),  # the C library answers for an older kernel then
    "sched_getaffinity:EPERM": ((), (), ""),  # one thread takes rows from the mapping
    "lseek:EPERM": ((), (), ""),  # fstat says how long a file is
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


LISTED = {mode for stopped, told, _ in AFFECTED.values() if told != tuple(MODES) for mode in (*stopped, *told)}
"""Modes that the table knows; of another one it is asked that it runs right, or names what stopped it."""


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
        if mode not in LISTED:
            assert end["end"] == "ran" or rule.split(":")[0].rstrip("264") in end["reason"], (mode, end)
            continue
        itself = end["end"] == "ran" and end["effective"] == mode
        assert itself == (mode not in stopped), (mode, end)
        if mode not in (*stopped, *told):
            assert end["reason"] is None, (mode, end)
            continue
        assert words in end["reason"], (mode, end)
        if end["end"] == "not run":
            assert end["reason"].startswith(f"{MODEL}: mode {mode} cannot run: "), end


# What the files of `fast/rows` call, and the system call behind it; None: nothing is open or started without it.
CALLS = {
    "Path.open": "openat", "Path.read_text": "openat", "Path.stat": None, "Path.write_text": "openat",
    "Path.resolve": "readlink", "os.access": None, "os.close": None, "os.fstat": None, "os.fsync": "fsync",
    "os.geteuid": None, "os.getpid": None, "os.lseek": "lseek", "os.open": "openat", "os.posix_fadvise": "fadvise64",
    "os.pread": "pread64", "os.preadv": "preadv2", "os.sched_getaffinity": "sched_getaffinity", "os.sync": None,
    "mmap.mmap": "mmap", "resource.getrusage": "getrusage", "libc().statx": "statx", "_libc.madvise": "madvise",
    "_libc.mincore": "mincore", "threading.Thread": "clone3",
}  # fmt: skip
ONLY_COLD = {"fsync"}  # of the protocol around the modes: below


def test_every_call_of_the_modes_is_refused_once() -> None:
    """A call that a mode starts to use must come into the tables above."""
    from fast.rows import syscalls

    found = set()
    for path in (ROOT / "fast" / "rows").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner, name = ast.unparse(node.func.value), node.func.attr
                if owner.removeprefix("syscalls.") in ("os", "mmap", "resource", "libc()", "_libc", "threading"):
                    found.add(f"{owner.removeprefix('syscalls.')}.{name}")
                elif name in ("stat", "open", "read_text", "write_text", "resolve", "read_bytes", "exists"):
                    found.add(f"Path.{name}")
    found -= {"os.major", "os.minor", "os.strerror", "os.register_at_fork", "threading.RLock", "threading.local",
              "threading.Condition", "threading.Lock", "threading.get_ident"}  # fmt: skip
    assert found <= set(CALLS), found - set(CALLS)
    refused = {rule.split(":")[0] for rule in AFFECTED} | ONLY_COLD
    assert set(syscalls.NUMBERS) <= refused
    assert {call for call in CALLS.values() if call} <= refused


def command(rule: str, *arguments: str | Path, before: Sequence[str] = ()) -> tuple[int, str, str]:
    """Exit code, output and errors of a command under a filter, and others that are put `before` it."""
    words = [sys.executable, "-m", "tests.hostile.seccomp", rule, "--", *before]
    words += [sys.executable, "-m", "harness", *map(str, arguments)]
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
@pytest.mark.parametrize("rule", ["fadvise64:EPERM", "getrusage:EPERM", "io_setup:EPERM", "statx:EPERM"])
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
    asked = ("rows", MODEL, "--rows", "50", "--cold", "--mode", "mmap", "--json", tmp_path / "rows.json")
    both = [sys.executable, "-m", "tests.hostile.seccomp", "cachestat:EPERM", "--"]
    for rule, before, words in (
        ("fadvise64:EPERM", [], "could not be evicted from memory and verified"),
        ("mincore:EPERM", both, "mincore and cachestat are forbidden or missing here"),
    ):
        code, _, errors = command(rule, *asked, before=before)
        assert code == 3, errors
        mode = json.loads((tmp_path / "rows.json").read_text())["modes"][0]
        assert (mode["verdict"], words in mode["not_cold"]) == ("equal", True), mode
        assert MODEL.name in mode["not_cold"]


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
