"""Commits as arms: resolved to their full id, and laid out whole, once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.engines.arms import Arm
from harness.errors import CannotRun
from harness.measure.commits import resolve, tree_of
from model_file.errors import InputError


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_commit_is_laid_out_once_and_whole(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "fast" / "rows").mkdir(parents=True)
    _git(tmp_path, "init", "-q", str(checkout))
    (checkout / "old.txt").write_text("older than the readers")
    _git(checkout, "add", "old.txt")
    _git(checkout, "commit", "-qm", "first")
    (checkout / "fast" / "rows" / "__init__.py").write_text("MODES = {}")
    _git(checkout, "add", "fast")
    _git(checkout, "commit", "-qm", "second")
    arm = resolve(Arm("now", "auto", commit="HEAD"), checkout)
    assert arm.commit is not None and len(arm.commit) == 40
    tree = tree_of(arm, tmp_path / "cache", checkout)
    assert (tree / "fast" / "rows" / "__init__.py").read_text() == "MODES = {}"
    assert tree_of(arm, tmp_path / "cache", checkout) == tree
    with pytest.raises(InputError, match="no commit"):
        resolve(Arm("never", "auto", commit="no-such-branch"), checkout)
    with pytest.raises(CannotRun, match="has no fast/rows"):
        tree_of(resolve(Arm("old", "auto", commit="HEAD~1"), checkout), tmp_path / "cache", checkout)
