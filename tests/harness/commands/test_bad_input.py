"""Every kind of bad input through the command line: exit code 2, and an error that names file, found and expected."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Type

from model_file.errors import InputError
from tests import gguf_edit
from tests.conftest import FIXTURES
from tests.gguf_edit import Keys, Tensors

TINY = FIXTURES / "tiny.gguf"
ROOT = Path(__file__).parents[3]
PREFIX = "qwen4exp."


def plegate(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=ROOT,
        timeout=120,
        check=False,
    )


def a_directory(folder: Path) -> Path:
    return folder


def missing(folder: Path) -> Path:
    return folder / "nothing.gguf"


def empty(folder: Path) -> Path:
    (folder / "empty.gguf").touch()
    return folder / "empty.gguf"


def not_gguf(folder: Path) -> Path:
    (folder / "text.gguf").write_text("this is a text file and no model at all")
    return folder / "text.gguf"


def cut(size: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "cut.gguf").write_bytes(TINY.read_bytes()[:size])
        return folder / "cut.gguf"

    return make


def changed(change: Callable[[Keys, Tensors], None]) -> Callable[[Path], Path]:
    return lambda folder: gguf_edit.edited(TINY, folder / "changed.gguf", change)


def set_key(
    key: str, value: object, kind: Type = Type.ARRAY, element: Type | None = Type.INT32
) -> Callable[[Path], Path]:
    return changed(lambda keys, _: keys.__setitem__(PREFIX + key, (value, kind, element)))


def split_without_shard_2(folder: Path) -> Path:
    paths = gguf_edit.split(TINY, folder, "model", 3)
    paths[1].unlink()
    return paths[0]


def another_architecture(folder: Path) -> Path:
    return gguf_edit.edited(
        TINY,
        folder / "changed.gguf",
        lambda keys, _: keys.__setitem__("general.architecture", ("llama", Type.STRING, None)),
    )


def drop(keys: Keys, tensors: Tensors) -> None:
    del keys["qwen4exp.block_count"], tensors["blk.2.ssm_a"], tensors["blk.0.attn_gate.weight"]


def drop_tensors(_: Keys, tensors: Tensors) -> None:
    del tensors["blk.2.ssm_a"], tensors["blk.0.attn_gate.weight"]


def extra(_: Keys, tensors: Tensors) -> None:
    tensors["blk.0.surplus.weight"] = (np.zeros((2, 3), np.float32), Kind.F32)


def wrong_shape(_: Keys, tensors: Tensors) -> None:
    tensors["blk.0.ssm_out.weight"] = (np.zeros((128, 65), np.float32), Kind.F32)


def short_table(_: Keys, tensors: Tensors) -> None:
    data, kind = tensors["per_layer_token_embd.weight"]
    tensors["per_layer_token_embd.weight"] = (data[:4061], kind)  # heads end at row 3041 + 1021 = 4062


BAD_MODELS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "missing file": (missing, ["nothing.gguf: no such file", "expected a GGUF file", "check the path"]),
    "directory": (a_directory, ["is a directory", "expected a GGUF file", "name the .gguf file inside it"]),
    "empty file": (empty, ["empty.gguf: is empty (0 bytes)", "expected a GGUF file"]),
    "not GGUF": (not_gguf, ["text.gguf: magic at byte 0: found b'this'", "expected b'GGUF'"]),
    "truncated header": (cut(1000), ["cut.gguf: ", "at byte ", "bytes left of 1000", "truncated download?"]),
    "truncated data": (
        cut(4_000_000),
        ["cut.gguf: blk.", "ends at byte", "file has 4000000 bytes", "truncated download?"],
    ),
    "another architecture": (another_architecture, ["found 'llama'", "expected 'qwen4exp'", "`plegate rows`"]),
    "missing tensors": (
        changed(drop_tensors),
        ["tensor 'blk.2.ssm_a' is missing, expected shape (4,)", "tensor 'blk.0.attn_gate.weight' is missing"],
    ),
    "missing key": (changed(drop), ["qwen4exp.block_count: found no such key"]),
    "extra tensor": (changed(extra), ["tensor 'blk.0.surplus.weight' (2, 3) has no place", "expected none"]),
    "wrong shape": (changed(wrong_shape), ["'blk.0.ssm_out.weight': found shape (128, 65), expected (128, 64)"]),
    "short head sizes": (
        set_key("ple.head_vocab_sizes", [1009, 1013, 1019], element=Type.UINT64),
        ["ple.head_vocab_sizes: found 3 values, expected 4"],
    ),
    "hash constants as INT32": (
        set_key("ple.layer_multipliers", [3, 5, 7]),
        ["ple.layer_multipliers: found elements of INT32, expected UINT64"],
    ),
    "head range past the table": (
        changed(short_table),
        ["'per_layer_token_embd.weight': found 4061 rows, expected at least 4062", "head 3 reads rows 3041 to 4061"],
    ),
    "two PLE layers": (set_key("ple.layers", [1, 2]), ["ple.layers: found [1, 2], expected exactly one layer"]),
    "PLE on an attention layer": (
        set_key("ple.layers", [3]),
        ["ple.layers: found 3, an attention layer, expected a linear layer, one of [0, 1, 2]"],
    ),
    "unclaimed rotary pairs": (
        set_key("rope.dimension_sections", [1, 3, 2, 0]),
        ["rope.dimension_sections", "rotary pairs [3, 6] to no axis", "expected sections that claim all 8 pairs"],
    ),
    "YaRN": (
        set_key("rope.scaling.type", "yarn", kind=Type.STRING, element=None),
        ["rope.scaling.type: found 'yarn'", "not supported yet"],
    ),
    "missing shard": (split_without_shard_2, ["split model of 3 shards", "missing", "model-00002-of-00003.gguf"]),
}


@pytest.mark.parametrize("kind", BAD_MODELS)
def test_bad_model_is_refused_by_name(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from harness.cli import app

    make, expected = BAD_MODELS[kind]
    path = make(tmp_path)
    result = CliRunner().invoke(app, ["gate", str(path)])
    error = capfd.readouterr().err + result.stderr
    assert result.exit_code == 2, error
    assert str(tmp_path) in error
    for part in expected:
        assert part in error


BAD_PROMPTS = {
    "negative id": ("[5, -1]", ["prompt.json: token 1 is -1, expected 0..511"]),
    "too large id": ("5 6 512", ["prompt.json: token 2 is 512, expected 0..511"]),
    "empty prompt": ("[]", ["prompt.json: no token ids", "expected at least one"]),
    "no ids": ("five six", ["prompt.json: token 0 is 'five', expected a whole number"]),
    "half an id": ("[1.5]", ["prompt.json: token 0 is 1.5, expected a whole number"]),
}


@pytest.mark.parametrize("kind", BAD_PROMPTS)
def test_bad_prompt_is_refused_by_position(kind: str, tmp_path: Path) -> None:
    content, expected = BAD_PROMPTS[kind]
    tokens = tmp_path / "prompt.json"
    tokens.write_text(content)
    result = plegate("gate", TINY, "--tokens", tokens)
    assert result.returncode == 2, result.stderr
    for part in expected:
        assert part in result.stderr


def test_empty_text_prompt_is_refused() -> None:
    result = plegate("gate", TINY, "--prompt", "")
    assert (result.returncode, "empty" in result.stderr) == (2, True), result.stderr


UNPRIVILEGED = """
import os, sys
import harness.cli
try:
    harness.cli.app(["inspect", sys.argv.pop()])  # import what is imported late: Python's own folders may be closed
except SystemExit:
    pass
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may read everything
harness.cli.app(sys.argv[1:])
"""


def test_model_without_permission_is_refused() -> None:
    with tempfile.TemporaryDirectory(prefix="plegate-test-") as folder:  # pytest's own folders are closed to others
        Path(folder).chmod(0o755)
        path = Path(folder) / "locked.gguf"
        shutil.copyfile(TINY, path)
        path.chmod(0)
        result = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, "inspect", str(path), str(TINY)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2, result.stderr
    assert "locked.gguf: no permission to read it: run `chmod +r` on it" in result.stderr


@pytest.mark.parametrize("command", ["gate", "run", "bench", "golden check", "golden record"])
def test_cache_folder_that_is_none_is_refused(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    arguments = {"run": ["--prompt", "x"], "bench": [str(TINY)], "golden record": ["tiny"]}.get(command, [])
    for folder in ("file", "file/below"):
        given = [*command.split(), *arguments, "--cache-dir", str(tmp_path / folder)]
        assert f"{tmp_path / folder}: {tmp_path / 'file'} is no folder" in refused(given, capfd)
    monkeypatch.setenv("PLEGATE_CACHE_DIR", str(tmp_path / "file"))
    assert "file is no folder" in refused([*command.split(), *arguments], capfd)


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """What is said with exit code 2."""
    from typer.testing import CliRunner

    from harness.cli import app

    result = CliRunner().invoke(app, arguments)
    error = capfd.readouterr().err + result.stderr
    assert result.exit_code == 2, error
    return error


@pytest.mark.parametrize("command", [["bench", "--workload", "gather:2", "--depth", "0"], ["logits"], ["run"]])
def test_second_prompt_is_not_left_out_silently(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.json").write_text("[[5, 6], [7, 8]]")
    given = [*command, str(TINY), "--tokens", str(tmp_path / "two.json")]
    given += [] if command == ["run"] else ["--out", str(tmp_path / "out")]
    assert "two.json: found 2 lists of ids, expected one" in refused(given, capfd)
    assert not (tmp_path / "out").exists()


def test_resumed_run_takes_no_other_options(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.commands.bench import _limits, _matrix, _plan, arms_named
    from harness.measure.store import Store

    (tmp_path / "ids").write_text("5 6 7 8")
    arms = arms_named("modes", ["mmap", "prefetch"], None, "", None)
    matrix = _matrix("modes", arms, ["warm"], [0], ["gather:2"], 2, True)
    asked = {"memory_limit_bytes": None, "drop_caches": False, "least_unique": 0.5, "tokens": None}
    Store(tmp_path / "run").create(_plan(TINY, matrix, asked | _limits(5, None, None), ""))
    start = ["bench", str(TINY), "--out", str(tmp_path / "run"), "--resume"]
    other = {
        "--arm": "uring", "--baseline": "prefetch", "--state": "cold", "--depth": "1", "--workload": "gather:3",
        "--repeats": "99", "--blocks": "3", "--resolve": "5%",
        "--tokens": str(tmp_path / "ids"), "--least-unique": "0.4", "--memory-limit": "4GiB",
    }  # fmt: skip
    for option, value in other.items():
        more = ["--arm", "mmap", "--arm", "prefetch"] if option == "--baseline" else []
        error = refused([*start, *more, option, value], capfd)
        named = {"--baseline": "--arm"}.get(option, option)
        assert f"--resume: {named} is another than the run was started with" in error
    for flag in ("--no-twin", "--drop-caches"):
        assert "is another than the run was started with" in refused([*start, flag], capfd)

    def reached(_: object) -> None:
        raise InputError("goes on")

    monkeypatch.setattr("harness.measure.runner.Runner.run", reached)
    same = ["--arm", "mmap", "--arm", "prefetch", "--state", "warm", "--depth", "0", "--workload", "gather:2"]
    for given in ([], same, [*same, "--repeats", "5", "--twin", "--least-unique", "0.5"]):
        assert "goes on" in refused([*start, *given], capfd)


def test_report_without_a_folder_takes_the_one_that_bench_makes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results" / "bench").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "results/bench: has no run.json" in refused(["report"], capfd)
