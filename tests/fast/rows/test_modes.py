"""A new access mode is one file and one line, and is then opened, cached, judged and measured like any other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from fast.rows import MODES, RowReader

ROOT = Path(__file__).parents[3]
TOY = '''
import os
from fast.rows.reader import KernelView, RowReader

class ToyReader(RowReader):
    """A read of its own for every row."""

    name = "toy"
    alias = "on-toy"
    kernel_view = KernelView("none", "cached", "reads")

    def _open(self):
        self._fds = [os.open(segment.path, os.O_RDONLY) for segment in self.table.segments]

    def _read(self, ids, out, counters):
        for place, (row, owner) in enumerate(zip(ids.tolist(), self.table.segment_of(ids).tolist())):
            _, offset = self.table.place(row WRONG)
            os.preadv(self._fds[owner], [out[place]], offset)

    def _close(self):
        fds, self._fds = getattr(self, "_fds", []), []
        for fd in fds:
            os.close(fd)
'''


def judge(folder: Path, tiny: Path, wrong: str) -> subprocess.CompletedProcess[str]:
    """`plegate rows` over a copy of the project that has the toy mode."""
    for package in ("fast", "harness", "model_file", "reference", "goldens"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "fast/rows/toy.py").write_text(TOY.replace("WRONG", wrong))
    registry = folder / "fast/rows/__init__.py"
    registry.write_text(
        registry.read_text().replace('    "auto.AutoReader",', '    "auto.AutoReader",\n    "toy.ToyReader",')
    )
    return subprocess.run(
        [sys.executable, "-m", "harness", "rows", str(tiny), "--mode", "toy", "--no-cold"],
        cwd=folder, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), "HOME": str(folder)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_toy_mode_of_one_file_and_one_line_is_judged(tmp_path: Path, tiny: Path) -> None:
    right = judge(tmp_path / "right", tiny, "")
    assert right.returncode == 0, right.stdout + right.stderr
    assert "toy" in right.stdout
    wrong = judge(tmp_path / "wrong", tiny, "^ 1 if row == 7 else row")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr


def test_what_must_be_known_of_a_mode_is_an_attribute_of_its_class() -> None:
    views = {name: mode.kernel_view for name, mode in MODES.items()}
    assert views.pop("auto") is None  # may do anything that is right
    assert all(view is not None for view in views.values())
    assert [name for name, mode in MODES.items() if mode.own_memory] == ["resident"]
    assert [name for name, mode in MODES.items() if not mode.keeps_rows] == ["direct-uncached", "uring-uncached"]
    assert [name for name, view in views.items() if view and view.advised] == ["prefetch"]
    assert all("kernel_view" in vars(mode) or mode.kernel_view is RowReader.kernel_view for mode in MODES.values())
