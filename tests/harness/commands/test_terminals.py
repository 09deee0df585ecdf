"""Something readable always: zero, one and 20 columns, no terminal, a dumb one, no colour, and real terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from harness.cli import app
from tests.conftest import FIXTURES
from tests.harness.commands.test_outputs import all_commands

ROOT = Path(__file__).parents[3]
INSPECT = ["inspect", str(FIXTURES / "tiny.gguf")]
COMMANDS = {
    "help": (["--help"], "bench"),
    "a command's help": (["inspect", "--help"], "--json"),
    "table": (["gate", "--list-modes"], "mmap-sequential"),
    "facts": (INSPECT, "table rows"),
    "wrong usage": (["inspect"], "MODEL"),
    "error": (["inspect", "nothing.gguf"], "nothing.gguf: no such file"),
}
ENVIRONMENTS = [
    {"COLUMNS": "0"}, {"COLUMNS": "1"}, {"COLUMNS": "20"}, {"COLUMNS": "x"}, {"NO_COLOR": "1"}, {"TERM": "dumb"},
    {"TERM": ""}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"FORCE_COLOR": "1"},
]  # fmt: skip


def plain(text: str) -> str:
    """Without colours, and as one line where a frame or the width broke it."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return re.sub(r"[\s│╭╮╰╯─|+-]+", "", text)


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_every_kind_of_output_can_be_read(kind: str, environment: dict[str, str]) -> None:
    arguments, wanted = COMMANDS[kind]
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERMINAL_WIDTH")}
    done = subprocess.run(
        [sys.executable, "-m", "harness", *arguments], capture_output=True, text=True, encoding="utf-8",
        errors="replace", env=kept | environment, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == (2 if kind in ("wrong usage", "error") else 0), done.stderr
    assert plain(wanted) in plain(done.stdout + done.stderr)
    assert "Traceback" not in done.stderr
    if "NO_COLOR" in environment:
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", done.stdout + done.stderr)


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (1, 1), (20, 5), (200, 50)])
@pytest.mark.parametrize("arguments", [INSPECT, ["gate", "--list-modes"], ["inspect", "--help"]], ids=lambda x: x[0])
def test_terminals_of_any_size(columns: int, rows: int, arguments: list[str]) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.chdir(ROOT)
        os.environ.pop("COLUMNS", None)
        os.execvp(sys.executable, [sys.executable, "-m", "harness", *arguments])
    shown = b""
    while True:
        try:
            if not (piece := os.read(fd, 65536)):
                break
        except OSError:  # Linux's way to say that the other end is closed
            break
        shown += piece
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    wanted = {"inspect": "table" if "--help" not in arguments else "--json", "gate": "mmap-sequential"}[arguments[0]]
    assert plain(wanted) in plain(shown.decode())
    if columns == 20 and "--help" not in arguments:
        assert max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).splitlines()) <= 20


def test_every_command_says_what_its_exit_codes_mean_and_shows_an_example() -> None:
    for name in all_commands():
        done = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "120"})
        assert done.exit_code == 0
        missing = [word for word in ("plegate " + name, "Exit codes: 0") if word not in done.output]
        assert missing == [], (name, missing)
    assert typer.main.get_command(app).help
