"""Files are written whole or not at all, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import atomic
from model_file.errors import InputError

ROOT = Path(__file__).parents[2]


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


def test_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_bytes(b"earlier")
    link.symlink_to("there/target")
    atomic.write_bytes(link, b"new")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["link", "target", "there"]


def test_pipe_is_written_into_and_stays(tmp_path: Path) -> None:
    """A pipe with a name stands in for every device: replaced by a file, it would be gone for all who use it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic.write_text(pipe, "content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_own_output_keeps_what_was_printed(tmp_path: Path) -> None:
    """`--json /dev/stdout > FILE`, here through a link of the same kind: neither the file nor its start is lost."""
    printed, link = tmp_path / "printed", tmp_path / "link"
    link.symlink_to("printed")
    child = (
        "import sys\nfrom harness.atomic import write_text\n"
        "print('before')\nwrite_text(sys.argv[1], 'between\\n')\nprint('after')\n"
    )
    with printed.open("wb") as file:
        subprocess.run([sys.executable, "-c", child, str(link)], stdout=file, cwd=ROOT, check=True)
    assert printed.read_text() == "before\nbetween\nafter\n"


def test_model_is_never_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "model", tmp_path / "link"
    path.write_bytes(b"GGUF and more")
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(InputError, match=f"{name.name}: is a GGUF file, which results never replace"):
            atomic.write_text(name, "text")
    assert path.read_bytes() == b"GGUF and more"
    atomic.write_bytes(path, b"GGUF anew", over_model=True)
    assert path.read_bytes() == b"GGUF anew"


def test_path_that_is_no_utf8_is_written_as_an_escape(tmp_path: Path) -> None:
    name = os.fsdecode(b"model-\xff.gguf")
    atomic.write_json(tmp_path / "result.json", {"model": name})
    assert json.loads((tmp_path / "result.json").read_bytes()) == {"model": name}


def test_full_disk_changes_nothing(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the write fails half-way, with an OSError."""
    path = tmp_path / "result"
    path.write_bytes(b"earlier")
    child = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "from harness.atomic import write_bytes\n"
        "from model_file.errors import InputError\n"
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


@pytest.mark.parametrize("unnamed", [True, False])
def test_killed_writer_leaves_no_part(tmp_path: Path, unnamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of a write: nothing is there, or a part that the next write of the same file removes."""
    path = tmp_path / "result"
    child = (
        "import os, sys\nfrom harness.atomic import writing\n"
        + ("" if unnamed else "del os.O_TMPFILE\n")
        + "with writing(sys.argv[1]) as file:\n    file.write(b'half')\n    file.flush()\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", child, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == (0 if unnamed else 1)
    monkeypatch.setattr(atomic, "_SETTLED_S", -1)
    with atomic.writing(path) as file:  # while it writes, another one finishes, and leaves it alone
        file.write(b"whole")
        atomic.write_bytes(path, b"other")
    assert path.read_bytes() == b"whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]
