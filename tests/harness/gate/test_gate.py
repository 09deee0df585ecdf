"""The gate through the command line: equal files pass, one flipped bit is caught and named, exit codes hold."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as Tree

import numpy as np
import pytest
from typer.testing import CliRunner

from fast.rows import MODES, RowSettings, resident, syscalls
from harness.answers.store import read_golden
from harness.cases.case import parse_modes
from harness.cases.registry import case_by_id
from harness.cli import app
from harness.gate import rows
from harness.gate import run as gate
from harness.pages.gate_text import summary
from model_file.config import config_from
from model_file.gguf_file import open_gguf
from model_file.tensors import TABLE
from reference import ngram
from tests.conftest import FIXTURES

TINY, TINY_QUANT = FIXTURES / "tiny.gguf", FIXTURES / "tiny-quant.gguf"
ROOT = Path(__file__).parents[3]
PROMPT = [226, 320, 456, 394, 351, 334, 279, 1, 1, 277]


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps(PROMPT))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made models and compiled programs of these tests stay out of the user's cache."""
    monkeypatch.setenv("PLEGATE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "plegate-cache"))


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["gate", *map(str, arguments)])
    return result.exit_code, result.output


def rows_of_prompt(path: Path = TINY_QUANT) -> np.ndarray:
    constants = config_from(open_gguf(path)).ple.hash
    return ngram.row_ids(constants, PROMPT, ngram.fresh_history(constants))


def flip_bit(path: Path, row: int, byte: int) -> int:
    """Flip the lowest bit of one byte of a row; returns the value it had."""
    info = open_gguf(path).tensors[TABLE]
    content = bytearray(path.read_bytes())
    place = info.offset_bytes + row * info.row_bytes + byte
    old, content[place] = content[place], content[place] ^ 1
    path.write_bytes(content)
    return old


def test_gate_passes_equal_modes(prompt_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    code, output = run(TINY_QUANT, "--tokens", prompt_file, "--generate", 4, "--engine", "reference", "--json", out)
    result = json.loads(out.read_text())
    assert code == 0, output
    assert "verdict: equal" in output
    assert result["exit_code"] == 0
    assert all(mode["verdict"] == "equal" for mode in result["modes"])
    assert all(mode["rows_compared"] == 4 * len(PROMPT) for mode in result["modes"])
    # The first mode gives the answer that the others are compared with.
    assert [mode["tokens_compared"] for mode in result["modes"]] == [0] + [4] * (len(MODES) - 1)
    assert "tokens compared with the first mode's" in " ".join(output.split())
    assert "byte for byte, and the same tokens." in " ".join(output.split())


def test_gate_says_that_tokens_of_one_mode_are_compared_with_nothing(prompt_file: Path, tmp_path: Path) -> None:
    """An answer that nothing is recorded for agrees with itself, and that is not called the same."""
    out = tmp_path / "result.json"
    arguments = ["--tokens", prompt_file, "--generate", 2, "--engine", "reference", "--mode", "mmap", "--json", out]
    code, output = run(TINY_QUANT, *arguments)
    (mode,) = json.loads(out.read_text())["modes"]
    flat = " ".join(output.split())
    assert (code, mode["tokens_compared"]) == (0, 0), output
    assert "tokens compared with nothing: only one mode ran them" in flat
    assert "1 mode gave the same rows, byte for byte." in flat


@pytest.mark.parametrize("mode", ["mmap", "direct", "auto"])
def test_gate_names_one_flipped_bit(prompt_file: Path, tmp_path: Path, mode: str) -> None:
    copy, out = tmp_path / "copy.gguf", tmp_path / "result.json"
    shutil.copyfile(TINY_QUANT, copy)
    token, head, byte = 6, 2, 11
    row = int(rows_of_prompt()[token, head])
    old = flip_bit(copy, row, byte)
    arguments = [
        "--tokens",
        prompt_file,
        "--mode",
        "resident",
        "--mode",
        f"{mode}@{copy}",
        "--json",
        out,
        "--generate",
        0,
    ]
    code, output = run(TINY_QUANT, *arguments)
    good, bad = json.loads(out.read_text())["modes"]
    assert code == 1
    assert (good["verdict"], bad["verdict"]) == ("equal", "different")
    difference = bad["row_difference"]
    assert (difference["level"], difference["token"], difference["head"]) == ("packed", token, head)
    assert (difference["row"], difference["byte"]) == (row, byte)
    assert (difference["expected"], difference["found"]) == (old, old ^ 1)
    flat = " ".join(output.split())
    assert f"token {token}, head {head}, row {row}" in flat
    assert f"found 0x{old ^ 1:02x}, expected 0x{old:02x}" in flat


def test_gate_sees_different_tokens(prompt_file: Path, tmp_path: Path) -> None:
    """A table whose used rows are another token's leads to other tokens, and the gate says from which step on."""
    copy, out = tmp_path / "copy.gguf", tmp_path / "result.json"
    shutil.copyfile(TINY, copy)
    with open_gguf(TINY) as model:
        info, table = model.tensors[TABLE], model.packed(TABLE)
        content = bytearray(copy.read_bytes())
        for row in rows_of_prompt(TINY).reshape(-1).tolist():
            place = info.offset_bytes + row * info.row_bytes
            content[place : place + info.row_bytes] = table[(row + 7) % info.shape[0]].tobytes()
        copy.write_bytes(content)
    arguments = [
        "--tokens",
        prompt_file,
        "--mode",
        "resident",
        "--mode",
        f"mmap@{copy}",
        "--generate",
        8,
        "--json",
        out,
    ]
    code, output = run(TINY, *arguments)
    bad = json.loads(out.read_text())["modes"][1]
    difference = bad["token_difference"]
    assert code == 1
    assert difference is not None
    assert difference["found"] != difference["expected"]
    assert "first difference in tokens" in output
    assert bad["first_level"] == "rows"
    # A reader's fault shows first where rows come in: the tensor named is the PLE layer's, at the first token.
    found = next(finding for finding in bad["findings"] if finding["check"] == "tokens")
    assert (found["detail"]["first_tensor"], found["detail"]["first_position"]) == ("blk.1.ple", 0)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--mode", "telepathy"], "expected one of resident, mmap"),
        (["--mode", "mmap", "--mode", "mmap"], "named twice"),
        (["--mode", f"mmap@{FIXTURES / 'tiny.gguf'}"], "expected 80128 of 32 in IQ4_NL"),
    ],
)
def test_gate_refuses_bad_modes(
    prompt_file: Path, arguments: list[str], part: str, capfd: pytest.CaptureFixture
) -> None:
    result = CliRunner().invoke(app, ["gate", str(TINY_QUANT), "--tokens", str(prompt_file), *arguments])
    assert (result.exit_code, part in capfd.readouterr().err + result.stderr) == (2, True)


def test_gate_reports_a_mode_that_fell_back(prompt_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without io_uring: the mode's rows are right, but it is not the mode that was asked for: exit 3."""

    def no_io_uring(name: str, *arguments: int) -> int:
        if name == "io_uring_setup":
            return -errno.ENOSYS
        return syscalls.call(name, *arguments)

    settings = dataclasses.replace(RowSettings(), syscall=no_io_uring)
    real = rows.open_rows
    monkeypatch.setattr(rows, "open_rows", lambda table, mode, _: real(table, mode, settings))
    code, output = run(TINY_QUANT, "--tokens", prompt_file, "--mode", "resident", "--mode", "uring", "--generate", 0)
    assert code == 3, output
    assert "verdict: incomplete. 1 of 2 modes equal, 1 not run" in output
    assert "ran as direct" in output


def test_gate_compares_fixture_with_its_golden(tmp_path: Path) -> None:
    """A file that a golden was recorded on is known by its bytes, and judged at every level."""
    out = tmp_path / "result.json"
    code, output = run(TINY, "--mode", "resident", "--mode", "auto", "--json", out)
    assert code == 0, output
    result = json.loads(out.read_text())
    assert [case["id"] for case in result["cases"]] == ["tiny"]
    assert result["cases"][0]["golden"]
    golden = read_golden("tiny")
    assert golden is not None
    names = [probe.name for prompt in golden.prompts for probe in prompt.probes]
    for mode in result["modes"]:
        assert (mode["verdict"], mode["first_level"]) == ("equal", None)
        assert mode["tokens_compared"] == 3 * 32
        assert mode["ple_compared"] == names.count("blk.1.ple") > 0
        assert mode["logits_compared"] == len(names) - mode["ple_compared"] > mode["ple_compared"]
    assert {line["needed"] for line in result["margins"]} == {1e-3}


def test_gate_fails_on_missing_golden() -> None:
    """A registered case without its golden is a difference that says how to make it, whatever its rows are."""
    case = dataclasses.replace(case_by_id("tiny-quant"), generate=0)
    options = gate.GateOptions(goldens={"tiny-quant": None})
    result = gate.run_gate(TINY_QUANT, [case], parse_modes(["resident"]), options)
    assert result.exit_code == 1
    assert [finding.check for finding in result.findings] == ["golden file"]
    assert "has no golden: make it with `plegate golden record tiny-quant`" in result.findings[0].message
    assert summary(result).startswith("verdict: different")


def test_interrupted_gate_leaves_results_as_they_were(prompt_file: Path, tmp_path: Path) -> None:
    """Ctrl-C while rows are read: 130, one line that says so, and the files of the run before are still whole."""
    outs = {option: tmp_path / f"result{option}" for option in ("--json", "--junit", "--html")}
    for path in outs.values():
        path.write_text("the run before")
    given = [TINY_QUANT, "--tokens", prompt_file, *(part for pair in outs.items() for part in pair)]
    command = [sys.executable, "-m", "harness.cli", "gate", *map(str, given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as child:
        while child.poll() is None and TINY_QUANT.name not in Path(f"/proc/{child.pid}/maps").read_text():
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
    assert child.returncode == 130, errors
    assert "plegate: interrupted" in errors
    assert "Traceback" not in errors
    assert {path.read_text() for path in outs.values()} == {"the run before"}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--case", "nowhere"], "expected one of pico-texts"),
        (["--case", "tiny", "--case", "tiny-quant"], "found cases of different models"),
        (["--case", "tiny", "--generate", "3"], "expected one or the other"),
    ],
)
def test_gate_refuses_bad_cases(arguments: list[str], part: str, capfd: pytest.CaptureFixture) -> None:
    result = CliRunner().invoke(app, ["gate", str(TINY_QUANT), *arguments])
    assert (result.exit_code, part in capfd.readouterr().err + result.stderr) == (2, True)


def test_gate_sees_a_fallback_that_nobody_tells(prompt_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right bytes by preads under the name of the ring: what the kernel saw is not what `uring` does."""
    from fast.rows.uring import UringReader

    def by_preads(self: UringReader, ids: np.ndarray, out: np.ndarray, _: object) -> None:
        for place, row in enumerate(ids.tolist()):
            segment, offset = self.table.place(row)
            with segment.path.open("rb", buffering=0) as file:
                file.seek(offset)
                out[place] = np.frombuffer(file.read(self.table.row_bytes), np.uint8)

    monkeypatch.setattr(UringReader, "_read", by_preads)
    code, output = run(TINY_QUANT, "--tokens", prompt_file, "--mode", "uring", "--generate", 0)
    flat = " ".join(output.split())
    assert code == 1, output
    assert "uring does not read as uring does: rows came by reads, expected ring" in flat


def test_every_mode_leaves_its_own_evidence(prompt_file: Path, tmp_path: Path) -> None:
    """What the kernel saw is looked at for every mode that reads one way; `auto` may choose."""
    out = tmp_path / "result.json"
    code, output = run(TINY_QUANT, "--tokens", prompt_file, "--generate", 0, "--json", out)
    assert code == 0, output
    modes = json.loads(out.read_text())["modes"]
    assert {mode["mode"] for mode in modes} == set(MODES)
    assert all(mode["evidence"] is not None for mode in modes)


@pytest.mark.parametrize("named", [[], ["resident"], ["direct", "resident"]])
def test_gate_judges_the_other_modes_where_the_table_does_not_fit(
    prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    """A table larger than memory: `resident` is not run, with its reason, and nothing takes its place: exit 3."""
    monkeypatch.setattr(resident, "available_bytes", lambda: 1000)
    out, junit = tmp_path / "result.json", tmp_path / "result.xml"
    modes = [part for mode in named for part in ("--mode", mode)]
    code, output = run(TINY_QUANT, "--tokens", prompt_file, "--generate", 0, *modes, "--json", out, "--junit", junit)
    assert code == 3, output
    found = {mode["mode"]: mode for mode in json.loads(out.read_text())["modes"]}
    assert set(found) == set(named or MODES)
    (bad,) = [mode for mode in found.values() if mode["verdict"] != "equal"]
    assert (bad["mode"], bad["verdict"], bad["effective_mode"], bad["rows_compared"]) == ("resident", "not run", "", 0)
    assert "mode resident needs 0.00 GiB of memory" in bad["not_run"]
    assert "1 not run" in output and "mode resident needs" in " ".join(output.split())
    # Nothing of the mode counts as passed: not its rows, not its control.
    suite = next(each for each in Tree.parse(junit).getroot() if each.get("name") == "resident")
    assert suite.get("skipped") == suite.get("tests")
