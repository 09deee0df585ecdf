"""`plegate synth` as a person runs it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from harness.commands.synth import HeadPlace, PresetName, synth
from harness.synth import PRESETS, Head, digests
from model_file.errors import InputError

APP = typer.Typer()
APP.command()(synth)
LABEL = "table-seed0-2000x160-IQ4_NL"
OPTIONS = ["table", "--seed", "0", "--rows", "2000"]


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(APP, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_choices_of_the_command_are_the_makers() -> None:
    assert [preset.value for preset in PresetName] == list(PRESETS)
    assert [place.value for place in HeadPlace] == list(Head)


def test_a_model_is_made_and_its_digest_printed(tmp_path: Path) -> None:
    path, facts = tmp_path / "t.gguf", tmp_path / "t.json"
    result = run(*OPTIONS, "--out", str(path), "--json", str(facts))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert result.exit_code == 0
    assert f"{path}: {path.stat().st_size:,} bytes" in " ".join(result.output.split())
    assert f"SHA-256 {digest}\n" in result.output and "no digest is recorded" in result.output
    said = json.loads(facts.read_text())
    assert (said["sha256"], said["sha256_recorded"], said["rows"], said["row_bytes"]) == (digest, None, 2000, 90)


def test_the_digest_is_compared_with_the_recorded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.gguf"
    run(*OPTIONS, "--out", str(path))
    monkeypatch.setitem(digests.RECORDED, LABEL, hashlib.sha256(path.read_bytes()).hexdigest())
    result = run(*OPTIONS, "--out", str(path), "--force")
    assert result.exit_code == 0 and "equal to the recorded digest" in result.output
    monkeypatch.setitem(digests.RECORDED, LABEL, "0" * 64)
    result = run(*OPTIONS, "--out", str(path), "--force")
    assert result.exit_code == 1 and "DIFFERENT from the recorded digest 0000" in " ".join(result.output.split())


def test_the_default_file_is_named_after_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(*OPTIONS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.gguf"]
    with pytest.raises(InputError, match=r"table\.gguf: exists already.*--force"):
        run(*OPTIONS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nano", "--type", "Q3_K"], "--type Q3_K"),
        (["table", "--rows", "2000", "--type", "Q6_K"], "--width"),
        (["nano", "--width", "320"], "--width 320"),
        (["nano", "--rows", "3", "--gib", "1"], "--rows and --gib"),
    ],
)
def test_bad_options_are_named(options: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        run(*options, "--out", str(tmp_path / "t.gguf"))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_preset_is_a_usage_error() -> None:
    result = run("huge")
    assert result.exit_code == 2 and "nano" in result.output


def test_help_teaches() -> None:
    text = " ".join(run("--help").output.split())
    for word in ("plegate synth nano", "--rows", "--gib", "IQ1_S", "320001536", "SHA-256", "Exit codes"):
        assert word in text
