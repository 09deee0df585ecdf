"""No output replaces an input, a model or another output, and one that cannot be written is refused before any work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from harness.cli import app
from tests import gguf_edit
from tests.conftest import FIXTURES

TINY = FIXTURES / "tiny.gguf"
WRITES = {"--json", "--html", "--junit", "--out", "--candidates", "--markdown"}
"""Options that name what is written, by the options' names of all commands; `bench --out` is a folder, made by it."""

COMMANDS = {
    "gate": ["gate", "{model}", "--mode", "mmap", "--mode", "on@{copy}", "--tokens", "{tokens}", "--generate", "0"],
    "rows": ["rows", "{model}", "--mode", "mmap@{copy}", "--against", "{other}", "--tokens", "{tokens}", "--no-cold"],
    "inspect": ["inspect", "{model}"],
    "advise": ["advise", "{model}"],
    "run": ["run", "{model}", "--tokens", "{tokens}", "-n", "1"],
    "logits": ["logits", "{model}", "--tokens", "{tokens}"],
    "bench": ["bench", "{model}", "--tokens", "{tokens}", "--out", "{run}"],
    "report": ["report", "{run}"],
    "trend": ["trend", "{run}", "--against", "{tokens}"],
    "synth": ["synth", "nano", "--force", "--out", "{model}"],
    "slice": ["slice", "{model}", "--layers", "2"],
    "golden check": ["golden", "check", "tiny"],
    "golden record": ["golden", "record", "tiny"],
}


@pytest.fixture()
def files(tmp_path: Path) -> dict[str, Path]:
    """An input of every kind, each a file of its own."""
    names = {"model": "model.gguf", "copy": "copy.gguf", "other": "other.gguf", "tokens": "tokens.json", "run": "run"}
    paths = {name: tmp_path / file for name, file in names.items()}
    for name in ("model", "copy", "other"):
        shutil.copyfile(TINY, paths[name])
    paths["tokens"].write_text("[5, 6]")
    (paths["run"] / "cells").mkdir(parents=True)
    (paths["run"] / "run.json").write_text("{}")
    (paths["run"] / "cells" / "0.json").write_text("{}")
    return paths


def options_of(command: str) -> set[str]:
    """The options of a command that name a file to write."""
    found: Any = typer.main.get_command(app)
    for part in command.split():
        found = found.commands[part]
    return {name for option in found.params for name in option.opts if name in WRITES}


def all_commands() -> Iterator[str]:
    """The names of all commands, also of those in groups."""
    for name, found in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield from (f"{name} {inner}" for inner in found.commands) if hasattr(found, "commands") else (name,)


def files_written() -> list[tuple[str, str]]:
    """Every command with every option of it that names a file."""
    folders = {("bench", "--out"), ("synth", "--out"), ("golden record", "--candidates")}
    return [(name, option) for name in COMMANDS for option in sorted(options_of(name)) if (name, option) not in folders]


def refused(arguments: list[str | Path], capfd: pytest.CaptureFixture[str]) -> str:
    """What a command says that ends with 2 and has printed no result."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    captured = capfd.readouterr()
    assert (result.exit_code, result.stdout + captured.out) == (2, ""), result.output
    return captured.err + result.stderr


def given(command: str, files: dict[str, Path]) -> list[str | Path]:
    return [part.format(**files) for part in COMMANDS[command]]


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_command_that_writes_is_here() -> None:
    """`golden promote` and `golden diff` write no result."""
    writing = {name for name in all_commands() if options_of(name)}
    assert writing - {"golden promote", "golden diff"} == set(COMMANDS)


@pytest.mark.parametrize(("command", "option"), files_written())
def test_inputs_are_never_replaced(
    command: str, option: str, files: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = given(command, files)
    named = {name for name in files if any(str(files[name]) in str(part) for part in arguments)} - {"run"}
    targets = [files[name] for name in named]
    if "{run}" in COMMANDS[command]:
        targets += [files["run"] / name for name in ("run.json", "timing.json", "cells/0.json", "cells/new.json")]
    link = tmp_path / "link"
    if targets:
        link.symlink_to(targets[0])
        targets.append(link)
    before = content(tmp_path)
    for target in targets:
        error = refused([*arguments, option, target], capfd)
        assert f"{option} {target}: would replace" in error
    assert content(tmp_path) == before


@pytest.mark.parametrize(("command", "option"), files_written())
def test_bad_outputs_are_refused_first(
    command: str, option: str, files: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A missing folder, a folder, a file as folder, another model; said even where the model itself is missing."""
    arguments = given(command, files)
    shutil.copyfile(TINY, tmp_path / "another")
    (tmp_path / "plain").touch()
    if command != "synth":
        files["model"].unlink()
    before = content(tmp_path)
    for name, part in {
        "no/x": "cannot be written: No such file or directory: check that the folder exists",
        ".": "is a folder, expected the name of a file",
        "plain/x": "cannot be written: Not a directory",
        "another": "is a GGUF file, which results never replace",
        "x" * 300: "cannot be written: File name too long",
    }.items():
        assert f"{option} {tmp_path / name}: {part}" in refused([*arguments, option, tmp_path / name], capfd)
    assert content(tmp_path) == before


def test_shards_are_inputs_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = gguf_edit.split(TINY, tmp_path, "model", 3)
    before = content(tmp_path)
    for path in paths:
        assert f"{path}, which this command reads" in refused(["rows", paths[0], "--json", path], capfd)
    assert content(tmp_path) == before


def test_outputs_never_replace_each_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    both = tmp_path / "x"
    error = refused(["gate", TINY, "--json", both, "--junit", tmp_path / "there" / ".." / "x"], capfd)
    assert "--junit" in error and "cannot be written" not in error and "what --json writes" in error
    both.write_text("earlier")
    (tmp_path / "same").hardlink_to(both)
    assert "what --json writes" in refused(["gate", TINY, "--json", both, "--html", tmp_path / "same"], capfd)


def test_goldens_are_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.answers.store.golden_folder", lambda: tmp_path)
    for name in ("tiny.json", "new.json"):
        assert "would replace" in refused(["golden", "check", "tiny", "--json", tmp_path / name], capfd)
    assert not content(tmp_path)


def test_candidates_that_are_no_folder_are_refused_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        error = refused(["golden", "record", "tiny", "--candidates", folder], capfd)
        assert f"--candidates {folder / 'tiny.json'}: cannot be written: Not a directory" in error


def test_pipe_may_be_the_output_of_all(tmp_path: Path) -> None:
    """What `/dev/stdout` is: no file that anything could replace."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        result = CliRunner().invoke(app, ["inspect", str(TINY), "--json", str(pipe)])
        assert (result.exit_code, os.read(reader, 20)) == (0, b'{\n  "schema": "plega'), result.output
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_output_in_the_folder_that_a_run_makes(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    """The folder of `bench --out` need not be there for `--json` to be in it: the next thing to fail is the model."""
    files["model"].unlink()
    new = files["run"].parent / "new" / "run"
    assert "model.gguf: no such file" in refused(
        ["bench", files["model"], "--out", new, "--json", new / "summary.json"], capfd
    )
