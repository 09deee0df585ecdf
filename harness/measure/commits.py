"""The tree of another commit, laid out beside the cache, so that an arm can be that commit."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.engines.arms import Arm
from harness.errors import CannotRun
from model_file.errors import InputError

ROOT = Path(__file__).parents[2]


def code_digest(root: Path = ROOT) -> str:
    """What is run, by content: the engine, what it takes from the reference, and what measures it."""
    digest = hashlib.sha256()
    for folder in ("fast", "model_file", "harness/measure/worker"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def resolve(arm: Arm, root: Path = ROOT) -> Arm:
    """The arm with its commit's full id. Raises: InputError when there is no such commit, or this is no checkout."""
    if arm.commit is None:
        return arm
    wanted = f"{arm.commit}^{{commit}}"
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "--end-of-options", wanted]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        raise CannotRun(f"--arm {arm.name}: commits need git, which cannot be run: {error.strerror}") from None
    if found.returncode:
        raise InputError(
            f"--arm {arm.name}: commit:{arm.commit} is no commit of the checkout that this plegate runs from"
        )
    return replace(arm, commit=found.stdout.strip())


def tree_of(arm: Arm, cache_dir: Path, root: Path = ROOT) -> Path:
    """The folder that the arm's code is run from: this one, or the commit's, laid out on first use, whole or not at
    all.

    An export, not a worktree: the checkout that people work in is not touched.
    Raises: CannotRun when the commit cannot be exported or has nothing to measure.
    """
    if arm.commit is None:
        return root
    target = cache_dir / "commits" / arm.commit
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as folder:
            archive, tree = Path(folder) / "tree.tar", Path(folder) / "tree"
            command = ["git", "-C", str(root), "archive", "--format=tar", f"--output={archive}", arm.commit]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode:
                raise CannotRun(f"--arm {arm.name}: git archive failed: {done.stderr.strip()}")
            with tarfile.open(archive) as content:
                content.extractall(tree, filter="data")
            if not target.is_dir():
                shutil.move(tree, target)
    if not (target / "fast" / "rows" / "__init__.py").exists():
        raise CannotRun(
            f"--arm {arm.name}: commit {arm.commit[:12]} has no fast/rows, so that there is nothing to measure: "
            "expected one that reads tables"
        )
    return target
