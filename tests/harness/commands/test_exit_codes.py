"""How the command line ends: 1 means a difference and nothing else, Ctrl-C is 130 at any moment, no end is a crash."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from tests.conftest import FIXTURES

TINY_QUANT = FIXTURES / "tiny-quant.gguf"
ROOT = Path(__file__).parents[3]
PLEGATE = [sys.executable, "-m", "harness"]

UNEXPECTED = {
    "missing": (FileNotFoundError(errno.ENOENT, "No such file", "/gone"), 2, "/gone: No such file: check that"),
    "forbidden": (PermissionError(errno.EACCES, "Permission denied", b"/mine"), 2, "/mine: Permission denied: check"),
    "disk": (OSError(errno.EIO, "Input/output error", "/disk"), 3, "/disk: Input/output error: check the disk"),
    "files": (OSError(errno.EMFILE, "Too many open files"), 3, "the system refused: Too many open files"),
    "worker": (BrokenPipeError(errno.EPIPE, "Broken pipe"), 3, "the system refused: Broken pipe"),
    "memory": (MemoryError("Unable to allocate 8 TiB"), 3, "too little free memory: Unable to allocate 8 TiB"),
    "defect": (KeyError("a\nkey"), 3, "plegate: failed: KeyError: 'a\\nkey': this is a defect of plegate"),
    "bound": (AssertionError("two\nlines"), 3, "plegate: failed: AssertionError: two lines: this is a defect"),
}


@pytest.mark.parametrize("kind", UNEXPECTED)
@pytest.mark.parametrize("traced", [False, True])
def test_unexpected_error_is_no_difference(
    kind: str, traced: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    error, code, part = UNEXPECTED[kind]

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("harness.inspection.describe", fail)
    monkeypatch.setenv("PLEGATE_TRACEBACK", "1" if traced else "")
    result = CliRunner().invoke(app, ["inspect", str(TINY_QUANT)])
    errors = capfd.readouterr().err + result.stderr
    assert (result.exit_code, part in errors) == (code, True), errors
    assert ("Traceback" in errors, "in fail\n" in errors) == (traced, traced)
    assert traced or errors.count("\n") == 1


@pytest.mark.parametrize("arguments", [["inspect", str(TINY_QUANT)], ["gate", "--list-cases"], ["--help"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_reader_that_has_enough_is_no_difference(arguments: list[str], buffered: bool) -> None:
    """`plegate ... | head -1`: the pipe's reader is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = os.environ | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    done = subprocess.run(
        [*PLEGATE, *arguments], stdout=writer, stderr=subprocess.PIPE, env=environment, cwd=ROOT, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_output_to_a_full_disk_is_told(tmp_path: Path) -> None:
    with (tmp_path / "printed").open("wb") as file:
        done = subprocess.run(
            ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *PLEGATE, "inspect", str(TINY_QUANT)],
            stdout=file,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    assert (done.returncode, b"File too large" in done.stderr, b"Traceback" in done.stderr) == (3, True, False)


def test_path_and_text_that_cannot_be_shown_stop_nothing(tmp_path: Path) -> None:
    """A path that is no UTF-8, on a terminal that knows ASCII alone."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xc3\xa9.gguf"))
    shutil.copyfile(TINY_QUANT, path)
    out = tmp_path / "out.json"
    done = subprocess.run(
        [*PLEGATE, "rows", str(path), "--mode", "mmap", "--no-cold", "--json", str(out)],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\udcff\\xe9.gguf" in done.stdout
    assert b'\\udcff\xc3\xa9.gguf"' in out.read_bytes()


def maps_of_the_child_of(pid: int) -> str:
    """What the process has mapped that does the work of a command; the one that was started waits for it."""
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return Path(f"/proc/{child}/maps").read_text()
    return ""


def interrupted(arguments: list[str], loaded: str, wait_s: float) -> tuple[int, str]:
    """Exit code and errors of a command that gets Ctrl-C some time after it has loaded a library."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as child:
        while child.poll() is None and loaded not in maps_of_the_child_of(child.pid):
            time.sleep(0.002)
        time.sleep(wait_s)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
    return child.returncode, errors


@pytest.mark.parametrize("wait_s", [3, 4.5])
def test_interrupt_while_compiling_is_no_crash(wait_s: float, tmp_path: Path) -> None:
    """XLA's threads are still at work then, and Python's own way out would take down what they use."""
    (tmp_path / "ids").write_text("5 6 7 8")
    arguments = ["run", str(TINY_QUANT), "--tokens", str(tmp_path / "ids"), "-n", "4000"]
    code, errors = interrupted([*PLEGATE, *arguments, "--cache-dir", str(tmp_path / "cache")], "jaxlib", wait_s)
    assert (code, errors.count("\n")) == (130, 1), errors
    assert errors.startswith("plegate: interrupted: ")


@pytest.mark.parametrize("wait_s", [0, 0.01, 0.1])
def test_interrupt_while_loading_is_no_traceback(wait_s: float) -> None:
    """typer loads `_datetime`, so the command line is being loaded, then a command."""
    code, errors = interrupted([*PLEGATE, "gate", "--list-modes"], "_datetime", wait_s)
    assert (code, errors.count("\n"), "plegate: interrupted: " in errors) == (130, 1, True), errors


def test_interrupt_that_python_drops_comes_again() -> None:
    """Ctrl-C inside a destructor or a callback of the garbage collector is ignored by Python, with a traceback."""
    child = (
        "import sys, time, harness.cli, harness.inspection\n"
        "class Dropping:\n    def __del__(self): raise KeyboardInterrupt\n"
        "def describe(file):\n    Dropping()\n    time.sleep(20)\n"
        "harness.inspection.describe = describe\n"
        "harness.cli.main()\n"
    )
    command = [sys.executable, "-c", child, "inspect", str(TINY_QUANT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=50, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (130, 1), done.stderr


def test_interrupt_that_is_ignored_stays_ignored() -> None:
    """`nohup`, and what a script starts with `&`."""
    command = [*PLEGATE, "gate", "--list-modes"]
    ignoring = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    ignoring += f"os.execv({sys.executable!r}, {command!r})"
    code, errors = interrupted([sys.executable, "-c", ignoring], "_datetime", 0)
    assert (code, errors) == (0, "")


def test_help_is_quick_to_start() -> None:
    """Neither entry loads what only some commands need."""
    child = "import sys, harness.__main__, harness.cli; print({'jax', 'matplotlib', 'tokenizers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "set()\n"
