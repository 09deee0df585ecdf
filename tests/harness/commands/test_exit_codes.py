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
from importlib.metadata import version
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
    assert b"\\udcff\\xe9.gguf" in done.stdout.replace(b"\n", b"")  # a long path goes on in the next line
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


def planted(body: str, *arguments: str, redirect: str = "") -> tuple[int, str, str]:
    """Exit code, output and errors of `inspect`, started as people start it, with `describe` replaced by `body`."""
    child = (
        "import os, subprocess, sys, threading, time\n"
        "from harness.__main__ import main\n"
        "import harness.supervise as supervise\n"
        "start = supervise.start\n"
        "def started():\n    start()\n    import harness.inspection as inspection\n"
        "    true = inspection.describe\n"
        f"    def planted(file):\n        {body}\n        return true(file)\n"
        "    inspection.describe = planted\n"
        "supervise.start = started\n"
        "main()\n"
    )
    command = [sys.executable, "-c", child, "inspect", str(TINY_QUANT), *arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", *command], capture_output=True, text=True, cwd=ROOT, timeout=60,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


NO_VERDICT = {
    "library that calls exit": ("sys.exit(1)", "a library called exit(1)"),
    "library that calls exit with words": ("sys.exit('no')", "a library called exit('no')"),
    "library that calls exit quietly": ("sys.exit(0)", "a library called exit(0)"),
    "library that reads arguments": ("import argparse; argparse.ArgumentParser().parse_args(['-x'])", "called exit(2)"),
    "process that is ended from within": ("os._exit(1)", "ended the process with 1 before there was a result"),
    "abort": ("os.abort()", "ended by SIGABRT"),
    "typer's abort": ("import typer; raise typer.Abort", ""),
    "error in a thread": (
        "thread = threading.Thread(target=lambda: 1 // 0, name='reader'); thread.start(); thread.join()",
        "reader: ZeroDivisionError: integer division or modulo by zero: nothing that was printed is a result",
    ),
}


@pytest.mark.parametrize("kind", NO_VERDICT)
def test_what_is_no_verdict_never_ends_as_one(kind: str) -> None:
    body, message = NO_VERDICT[kind]
    code, _, errors = planted(body)
    assert (code, message in errors, "Traceback" in errors) == (3, True, False), errors


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_child_process_that_fails_gives_no_verdict(kind: str) -> None:
    """What its parent makes of it is the parent's business; its own 1 goes no further."""
    body = f"import multiprocessing as m; p = m.get_context({kind!r}).Process(target=os._exit, args=(1,)); p.start()"
    code, _, errors = planted(f"{body}; p.join(); assert p.exitcode == 1")
    assert code == 0, errors


def test_wrong_usage_is_2_in_every_command() -> None:
    from tests.harness.commands.test_outputs import all_commands

    for name in all_commands():
        for arguments in (["--no-such-option"], ["a", "b", "c"]):
            done = CliRunner().invoke(app, [*name.split(), *arguments])
            assert done.exit_code == 2, (name, done.output)


OTHERS = [
    ("XLA_FLAGS", "--xla_no_such_flag=1", 3, "XLA_FLAGS is '--xla_no_such_flag=1': an unknown or wrong flag ends"),
    ("JAX_PLATFORMS", "cuda", 3, "cannot run: JAX_PLATFORMS=cuda: "),
    ("JAX_ENABLE_X64", "1", 0, "note: JAX_ENABLE_X64=1 is not used"),
    ("JAX_ENABLE_X64", "maybe", 0, "note: JAX_ENABLE_X64=maybe is not used"),
    ("JAX_NUMPY_DTYPE_PROMOTION", "strict", 0, "note: JAX_NUMPY_DTYPE_PROMOTION=strict is not used"),
    ("JAX_DISABLE_JIT", "1", 0, "note: JAX_DISABLE_JIT=1 is not used"),
]


@pytest.mark.parametrize(("name", "value", "code", "message"), OTHERS)
def test_environment_of_others_is_no_difference(name: str, value: str, code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("5 6 7 8")
    command = [*PLEGATE, "run", str(TINY_QUANT), "--tokens", str(tmp_path / "ids"), "-n", "2"]
    done = subprocess.run(
        command, env=os.environ | {name: value}, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False
    )
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "defect" not in done.stderr


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("whole_group", [False, True])
def test_whoever_ends_it_nothing_is_left(name: str, code: int, whole_group: bool, tmp_path: Path) -> None:
    """Temporary files are removed and processes that were started are ended, as by Ctrl-C."""
    body = (
        "import harness.inspection, subprocess, sys, time\n"
        "from harness.atomic import writing\n"
        "class Ended:\n"
        "    def __init__(self): self.child = subprocess.Popen(['sleep', '100'])\n"
        "    def __enter__(self): return self.child\n"
        "    def __exit__(self, *_): self.child.kill(); self.child.wait()\n"
        "def describe(file):\n"
        f"    with writing({str(tmp_path / 'result')!r}) as out, Ended() as child:\n"
        "        out.write(b'half')\n"
        "        print(child.pid, flush=True)\n"
        "        time.sleep(50)\n"
        "import harness.__main__, harness.supervise as supervise\n"
        "start = supervise.start\n"
        "def started():\n    start()\n    harness.inspection.describe = describe\n"
        "supervise.start = started\n"
        "harness.__main__.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", body, "inspect", str(TINY_QUANT)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        started = int(process.stdout.readline())
        assert not (tmp_path / "result").exists()
        (os.killpg if whole_group else os.kill)(process.pid, getattr(signal, name))
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.count("\n")) == (code, 1), errors
    assert errors.startswith("plegate: interrupted: ")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(started, 0)


def test_sighup_that_is_ignored_stays_ignored() -> None:
    """`nohup plegate ...`: the terminal goes, the work goes on."""
    planted_here = (
        "import os, signal, sys\n"
        "{}\n"
        "import harness.__main__ as start, harness.supervise as supervise\n"
        "fork = supervise.start\n"
        "def started():\n    fork()\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "supervise.start = started\n"
        "start.main()\n"
    )
    for ignoring, code in (("", -signal.SIGHUP), ("signal.signal(signal.SIGHUP, signal.SIG_IGN)", 0)):
        command = [sys.executable, "-c", planted_here.format(ignoring), "inspect", str(TINY_QUANT)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert (done.returncode, "table rows" in done.stdout) == (code, code == 0), done.stderr


@pytest.mark.parametrize(("redirect", "where"), [(">&-", 1), (">&- <&-", 1), ("2>&-", 0), (">&- 2>&-", None)])
def test_closed_output_loses_no_result(redirect: str, where: int | None, tmp_path: Path) -> None:
    """A closed standard output: to standard error. And no file that is opened takes its place and is printed into."""
    out = tmp_path / "out.json"
    code, *printed = planted("pass", "--json", str(out), redirect=redirect)
    assert code == 0
    assert ["table rows" in text for text in printed] == [number == where for number in (0, 1)]
    assert out.read_text().startswith('{\n  "schema"') and out.read_text().endswith("}\n")


def test_version_is_the_package_s() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"plegate {version('plegate')}\n")
