"""Files are written whole or not at all, whatever happens on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import atomic
from reference.errors import InputError

ROOT = Path(__file__).parents[1]


def test_write_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    atomic.write_json(path, {"value": 1})
    atomic.write_json(path, {"value": "é"})
    assert path.read_text(encoding="utf-8") == '{\n  "value": "é"\n}\n'
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_failed_block_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"earlier")
    with pytest.raises(RuntimeError), atomic.writing(path) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert path.read_bytes() == b"earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]


def test_nan_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(tmp_path / "result.json", {"speed": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere/result: cannot be written: No such file or directory: check that"):
        atomic.write_text(tmp_path / "nowhere" / "result", "text")


def test_full_disk_changes_nothing(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the write fails half-way, with an OSError."""
    path = tmp_path / "result"
    path.write_bytes(b"earlier")
    child = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "from harness.atomic import write_bytes\n"
        "from reference.errors import InputError\n"
        "try:\n    write_bytes(sys.argv[1], bytes(10**6))\n"
        "except InputError as error:\n    print(error); sys.exit(2)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", child, str(path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (result.returncode, "File too large" in result.stdout) == (2, True), result.stderr
    assert path.read_bytes() == b"earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]


def test_killed_writer_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """Killed at 40 different moments: the file is always one of the two versions, whole."""
    path = tmp_path / "result"
    versions = [bytes([number]) * 300_000 for number in (1, 2)]
    path.write_bytes(versions[0])
    child = (
        "import sys\nfrom harness.atomic import write_bytes\n"
        "print('ready', flush=True)\n"
        "while True:\n    for number in (1, 2):\n        write_bytes(sys.argv[1], bytes([number]) * 300_000)\n"
    )
    seen = set()
    for attempt in range(40):
        with subprocess.Popen([sys.executable, "-c", child, str(path)], stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.0013 * attempt)
            os.kill(process.pid, signal.SIGKILL)
        content = path.read_bytes()
        assert content in versions
        seen.add(content[0])
    assert seen == {1, 2}  # the kills did land between and during writes
