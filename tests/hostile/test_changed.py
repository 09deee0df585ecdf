"""A model that becomes another file in the middle of a run: the verdict is `changed`, and no mode is blamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from fast.rows import locate_table, residency
from harness.cli import app
from harness.gate.rows import RowJudge
from harness.gate.run import _Model
from harness.gate.tokens import TokenJudge
from harness.identity import Changed, Identity
from model_file.gguf_file import open_gguf

pytestmark = pytest.mark.hostile


def written(path: Path) -> None:
    """Every row of the table inverted, in place, and the time set back: stat sees nothing."""
    before = path.stat()
    with open_gguf(path) as model:
        table = locate_table(model)
        start = table.segments[0].offset_bytes
    content = np.frombuffer(path.read_bytes(), np.uint8).copy()
    content[start : start + table.size_bytes] ^= 0xFF
    with path.open("r+b") as file:
        file.write(content.tobytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def replaced(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    written(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


HOW: dict[str, Callable[[Path], None]] = {
    "was written to": written,
    "was replaced": replaced,
    "is gone": Path.unlink,
}


@pytest.fixture
def model(tiny_quant: Path, tmp_path: Path) -> Path:
    return shutil.copy(tiny_quant, tmp_path / "model.gguf")


def change_when(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, mode: str, how: Callable[[Path], None], model: Path
) -> None:
    """Let the file change right before this mode is judged."""
    real = getattr(owner, method)

    def judge(self: object, first: Any, second: Any, *rest: Any) -> Any:
        if mode in (getattr(first, "name", ""), getattr(second, "name", "")):
            how(model)
        return real(self, first, second, *rest)

    monkeypatch.setattr(owner, method, judge)


@pytest.mark.parametrize("word", HOW)
def test_rows_blames_no_mode_for_a_change(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    change_when(monkeypatch, RowJudge, "judge", "direct", HOW[word], model)
    modes = [text for mode in ("mmap", "direct", "prefetch") for text in ("--mode", mode)]
    done = CliRunner().invoke(app, ["rows", str(model), "--no-cold", *modes, "--json", str(tmp_path / "r.json")])
    assert done.exit_code == 3, done.output
    assert f"changed: model.gguf {word} while it was read" in " ".join(done.output.split())
    result = json.loads((tmp_path / "r.json").read_text())
    assert [mode["verdict"] for mode in result["modes"]] == ["equal", "changed", "changed"]
    assert not [mode["findings"] for mode in result["modes"] if mode["findings"]]
    assert result["exit_code"] == 3
    assert word in result["changed"]


@pytest.mark.parametrize(
    ("place", "verdicts"),
    [((RowJudge, "judge"), ["changed", "changed"]), ((_Model, "judge_tokens"), ["equal", "changed"])],
)
def test_gate_says_changed_in_every_form(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], verdicts: list[str]
) -> None:
    """In the rows of a mode, or in its tokens; a mode that was judged to its end before keeps its verdict."""
    change_when(monkeypatch, *place, "direct", written, model)
    (tmp_path / "ids").write_text("5 6 7 8")
    files = {name: tmp_path / f"gate.{name}" for name in ("json", "html", "junit")}
    command = ["gate", str(model), "--tokens", str(tmp_path / "ids"), "--generate", "2", "--engine", "reference"]
    command += ["--mode", "mmap", "--mode", "direct"]
    done = CliRunner().invoke(app, [*command, *(word for name in files for word in (f"--{name}", str(files[name])))])
    assert done.exit_code == 3, done.output
    said = "verdict: changed. model.gguf was written to while it was read"
    assert said in " ".join(done.output.split())
    result = json.loads(files["json"].read_text())
    jsonschema.validate(result, json.loads(resources.files("harness.schema").joinpath("gate.json").read_text()))
    assert [mode["verdict"] for mode in result["modes"]] == verdicts
    assert result["exit_code"] == 3 and "was written to" in result["changed"]
    assert said in files["html"].read_text()
    suites = Tree.fromstring(files["junit"].read_text())
    failed = [test.get("name") for test in suites.iter("testcase") if test.find("failure") is not None]
    assert failed == ["same files"]
    passed = [test for test in suites[2] if test.find("skipped") is None and test.get("name") in ("rows", "tokens")]
    assert not passed


def test_gate_blames_no_copy_and_no_token(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that a mode reads is a file of the run; tokens that differ because of it are not a difference."""
    copy = Path(shutil.copy(model, tmp_path / "copy.gguf"))
    change_when(monkeypatch, TokenJudge, "judge", f"direct@{copy.name}", written, copy)
    (tmp_path / "ids").write_text("5 6 7 8")
    command = ["gate", str(model), "--tokens", str(tmp_path / "ids"), "--generate", "2", "--engine", "reference"]
    done = CliRunner().invoke(app, [*command, "--mode", "mmap", "--mode", f"direct@{copy}"])
    assert done.exit_code == 3, done.output
    assert "verdict: changed. copy.gguf was written to" in " ".join(done.output.split())


def test_a_model_cut_while_a_mode_is_judged_is_changed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong because of the change is no error of input."""
    change_when(monkeypatch, RowJudge, "judge", "direct", cut, model)
    done = CliRunner().invoke(app, ["rows", str(model), "--no-cold", "--mode", "mmap", "--mode", "direct"])
    assert done.exit_code == 3, done.output
    assert "changed: model.gguf was written to" in " ".join(done.output.split())


@pytest.mark.parametrize(("offset", "count"), [(100, 1), (1 << 20, 1 << 20), (20 << 20, 1 << 20), ((40 << 20) - 1, 1)])
def test_identity_sees_bytes_where_the_time_says_nothing(model: Path, offset: int, count: int) -> None:
    """One byte of the header or the last one; a piece as long as samples are apart, anywhere."""
    os.truncate(model, 40 << 20)
    before, identity = model.stat(), Identity([model])
    identity.check()
    with model.open("r+b") as file:
        file.seek(offset)
        file.write(b"x" * count)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Changed, match="was written to"):
        identity.check()


def test_identity_warms_nothing(model: Path) -> None:
    with open_gguf(model) as opened:
        table = locate_table(opened)
    if not residency.make_cold(table).cold:
        pytest.skip("this file system keeps files in memory")
    Identity([model]).check()
    assert residency.resident_fraction(table) <= residency.COLD_FRACTION
