"""kill -9 in the middle of writing: never a partial or changed golden, candidate, report or cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KILLS = 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place to write to, with a committed tree whose goldens git ignores, so that promoting keeps it clean."""
    for name in ("candidates", "reports", "tree/goldens"):
        (tmp_path / name).mkdir(parents=True)
    tree = tmp_path / "tree"
    (tree / ".gitignore").write_text("goldens/\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", "-C", str(tree), *command], check=True)
    return tmp_path


def test_kills_leave_no_partial_file(folder: Path) -> None:
    """200 children, 50 of each kind of writing, are killed at random moments; all files are whole after each kill."""
    command = [sys.executable, "-m", "tests.harness.answers.killed_writer", str(folder), str(KILLS), "20261129"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["wrong"] == []
    assert seen["kills"] == KILLS
    # The kills do hit the middle of writing: a file of the folder was open in some of the killed.
    assert 0 < seen["writing"] <= KILLS


def test_kills_find_writing_in_place(folder: Path, tmp_path: Path) -> None:
    """The loop can fail: with writing in place instead of renaming, kills leave partial files, and they are named."""
    sabotage = tmp_path / "sabotage.py"
    sabotage.write_text(
        "import sys, harness.atomic as atomic, os\n"
        "def in_place(path, content):\n"
        "    with open(path, 'wb') as file:\n"
        "        for start in range(0, len(content), 512):\n"
        "            file.write(content[start:start + 512]); file.flush(); os.fsync(file.fileno())\n"
        "atomic.write_bytes = in_place\n"
        "from tests.harness.answers.killed_writer import main\n"
        "from pathlib import Path\n"
        "main(Path(sys.argv[1]), 24, 1)\n"
    )
    done = subprocess.run(
        [sys.executable, str(sabotage), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["wrong"]
