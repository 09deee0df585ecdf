"""Coverage under the gate: what is unreached is named unless it is listed, and a list that is too long is named too."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.unreached import problems, unreached

SOURCE = "def f(x):\n    if x:\n        return 1\n    return 2\n"


def report(lines: list[int], branches: list[list[int]]) -> dict[str, object]:
    return {"files": {"fast/f.py": {"missing_lines": lines, "missing_branches": branches}}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "f.py").write_text(SOURCE)
    return tmp_path


def test_lines_and_branches_are_named_by_their_text(root: Path) -> None:
    (line,) = unreached(report([3], [[2, 3]]), root)
    assert (line.line, line.key) == (3, "return 1")
    (branch,) = unreached(report([], [[2, 4]]), root)
    assert (branch.line, branch.key) == (2, "if x: -> return 2")


def test_unlisted_reached_and_reasonless_entries_are_problems(root: Path) -> None:
    found = unreached(report([3], []), root)
    assert problems(found, {}) == ["fast/f.py:3: return 1"]
    assert problems(found, {"fast/f.py": {"only on other systems": ["return 1"]}}) == []
    assert "has no reason" in problems(found, {"fast/f.py": {" ": ["return 1"]}})[0]
    assert "take it off the list" in problems([], {"fast/f.py": {"once": ["return 1"]}})[0]
    assert problems([], {"fast/f.py": {"sometimes: by what is cached": ["return 1"]}}) == []
