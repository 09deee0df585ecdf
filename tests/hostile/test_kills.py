"""Commands killed at random moments: nothing half written, nothing left running, and the next run works."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_file.gguf_file import open_gguf
from tests.conftest import FIXTURES
from tests.harness.measure.trend_runs import file_of
from tests.hostile.conftest import Count
from tests.servers import write_program

pytestmark = [pytest.mark.hostile, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

ROOT = Path(__file__).parents[2]
MODEL = str(FIXTURES / "tiny-quant.gguf")
MARK = "PLEGATE_TEST_MARK"


def whole_model(path: Path) -> None:
    with open_gguf(path) as model:
        assert model.tensors


def whole_page(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def whole_text(path: Path) -> None:
    assert path.read_bytes().endswith(b"\n")


WHOLE: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_bytes()),
    ".xml": ElementTree.parse,
    ".html": whole_page,
    ".gguf": whole_model,
    ".md": whole_text,
}
"""What each kind of result must be, if it is there: read by what reads such files."""


@dataclass(frozen=True)
class Victim:
    """A command; `again` is what is run after the kills, and must end with 0. limit_s: the last moment of a kill."""

    command: str
    again: str = ""
    limit_s: float = 6.0


VICTIMS = {
    "gate": Victim(
        "gate MODEL --tokens ids --generate 0 --mode mmap --mode direct "
        "--json gate.json --html gate.html --junit gate.xml"
    ),
    "bench": Victim(
        "bench MODEL --workload gather:64 --arm mmap --arm direct --state warm "
        "--depth 0 --repeats 1 --blocks 1 --out bench"
    ),
    "synth": Victim("synth pico --out pico.gguf --force", limit_s=2.5),
    "golden": Victim(
        "golden record tiny-quant --engine fast --no-confirm --candidates candidates", "golden record --help", 8
    ),
    "gate of servers": Victim(
        "gate MODEL --tokens ids --generate 2 --arm 'a=SERVER --lazy-fault made-up,leak' "
        "--arm 'b=SERVER --lazy-fault made-up -lzm on' --json arms.json --markdown arms.md"
    ),
    "bench of servers": Victim(
        "bench MODEL --workload decode:4 --arm 'a=SERVER --lazy-fault made-up,leak' --state warm "
        "--depth 0 --repeats 1 --blocks 1 --out bench"
    ),
    "trend": Victim("trend kept --add first.json --markdown trend.md --html trend.html --keep-only", limit_s=1.0),
}


class Place:
    """A folder where commands run and are killed; everything that they start carries a mark of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        for name in ("work", "temporary", "cache"):
            (folder / name).mkdir()
        self.work = folder / "work"
        (self.work / "ids").write_text("1 2 3\n")
        (folder / "answers").mkdir()
        self.server = write_program(folder)
        file_of(self.work / "first.json", 1)
        self.environment = os.environ | {
            MARK: self.mark,
            "TMPDIR": str(folder / "temporary"),
            "PLEGATE_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": str(ROOT),
            "PLEGATE_STAND_IN_CACHE": str(folder / "answers"),
        }

    def start(self, command: str) -> subprocess.Popen[str]:
        if (self.work / "bench" / "run.json").exists():
            command += " --resume"
        command = command.replace("MODEL", MODEL).replace("SERVER", str(self.server))
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *shlex.split(command)],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> list[str]:
        """What still runs of all that was started here."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                        found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
                except OSError:
                    continue
        return found

    def kill(self, command: str, after_s: float, number: signal.Signals) -> bool:
        """Start a command and kill it; whether it was still running. What it started must end with it."""
        with self.start(command) as process:
            try:
                process.wait(after_s)
                running = False
            except subprocess.TimeoutExpired:
                running = True
                process.send_signal(number)
            process.communicate(timeout=60)
        end = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.01)
        assert not left, f"{number.name} after {after_s:.3f} s left {left}"
        return running

    def check(self, moment: str) -> None:
        """Every result is whole, and nothing that is no result is there."""
        assert not list((self.folder / "temporary").iterdir()), moment
        for path in self.folder.rglob("*"):
            assert not path.name.endswith(".part"), f"{moment}: {path}"
            if path.is_file() and path.suffix in WHOLE and self.folder / "cache" not in path.parents:
                try:
                    WHOLE[path.suffix](path)
                except Exception as error:
                    raise AssertionError(f"{moment}: {path} is not whole: {error}") from error


def kill_often(name: str, times: int, folder: Path, count: Count) -> None:
    victim, place = VICTIMS[name], Place(folder)
    moments = random.Random(name)
    killed = tried = 0
    while killed < times:
        tried += 1
        assert tried <= 3 * times, f"{name} ends before it is killed: use a smaller limit_s"
        after_s = moments.uniform(0, victim.limit_s)
        if place.kill(victim.command, after_s, signal.SIGKILL):
            killed += 1
        place.check(f"{name}, killed after {after_s:.3f} s")
        if name.startswith("bench") and moments.random() < 0.3:
            shutil.rmtree(place.work / "bench", ignore_errors=True)
    with place.start(victim.again or victim.command) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    place.check(f"{name}, the run after the kills")
    count(f"kills of {name}", killed)


@pytest.mark.slow
@pytest.mark.parametrize("name", VICTIMS)
def test_forty_kills_leave_nothing_behind(name: str, tmp_path: Path, count: Count) -> None:
    kill_often(name, 40, tmp_path, count)


@pytest.mark.parametrize("name", ["synth", "trend", "bench of servers"])
def test_some_kills_leave_nothing_behind(name: str, tmp_path: Path, count: Count) -> None:
    kill_often(name, 3, tmp_path, count)
