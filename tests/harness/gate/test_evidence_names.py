"""What /proc says of files whose names are anything, and copies that are none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fast.rows import open_rows
from harness.cases.case import parse_modes
from harness.cli import app
from harness.gate.evidence import CountingCalls, look, mappings_in
from harness.oracle import copy_of_table
from model_file.errors import InputError
from tests.conftest import FIXTURES
from tests.fast.rows.commands import table_of

TINY_QUANT = FIXTURES / "tiny-quant.gguf"
NAMES = [
    b"new\nline",
    b"line\xe2\x80\xa8separator",
    b"tab\x0bulator",
    b"no\xffutf8",
    b"a \\012 b",
    b"x (deleted)",
    b" blank ",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_mapping_is_seen_whatever_the_file_is_called(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name + b".gguf")
    shutil.copyfile(TINY_QUANT, path)
    table, door = table_of(path), CountingCalls()
    with open_rows(table, "mmap-random"):
        seen = look(table, door)
    assert seen is not None
    assert (dict(seen.mappings), bool(seen.descriptors["cached"]), len(seen.places)) == ({"random": 1}, True, 1)


@pytest.mark.parametrize("how", ["deleted", "symlink"])
def test_a_mapping_is_seen_behind_a_link_and_of_a_file_that_is_gone(tmp_path: Path, how: str) -> None:
    path = tmp_path / "table.gguf"
    shutil.copyfile(TINY_QUANT, path)
    if how == "symlink":
        (tmp_path / "link.gguf").symlink_to(path)
        table = table_of(tmp_path / "link.gguf")
    else:
        table = table_of(path)
    with open_rows(table, "mmap"):
        smaps = Path("/proc/self/smaps").read_bytes()
        if how == "deleted":
            path.unlink()
            smaps = Path("/proc/self/smaps").read_bytes()
            assert b" (deleted)" in smaps
        mappings, (place,) = mappings_in(smaps, [str(path.resolve())])
    assert (dict(mappings), place.path) == ({"plain": 1}, str(path.resolve()))


def test_another_file_is_not_taken_for_this_one() -> None:
    line = b"7f0-7f1 r--s 00000000 08:01 5                          /data/table.gguf%s\nVmFlags: rd mr\n"
    assert not mappings_in(line % b".old", ["/data/table.gguf"])[1]
    assert mappings_in(line % b"", ["/data/table.gguf"])[1]


@pytest.mark.parametrize("text", ["prefetch@", "prefetch@ "])
def test_a_mode_without_its_file_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no file behind the @"):
        parse_modes([text])


@pytest.mark.parametrize("how", ["itself", "hard link", "symlink"])
def test_the_model_is_no_copy_of_itself(tmp_path: Path, how: str) -> None:
    model, copy = tmp_path / "model.gguf", tmp_path / "copy.gguf"
    shutil.copyfile(TINY_QUANT, model)
    if how == "hard link":
        copy.hardlink_to(model)
    elif how == "symlink":
        copy.symlink_to(model)
    with pytest.raises(InputError, match="is the model's own file"):
        copy_of_table(model if how == "itself" else copy, table_of(model))


@pytest.mark.parametrize("whole", [False, True])
def test_what_of_a_copy_was_compared_is_said(tmp_path: Path, whole: bool) -> None:
    """One row that no prompt reads is changed: equal, with how much was not looked at; with --whole it is found."""
    copy, table = tmp_path / "copy.gguf", table_of(TINY_QUANT)
    content = bytearray(TINY_QUANT.read_bytes())
    content[table.place(table.rows // 3)[1]] ^= 1
    copy.write_bytes(content)
    (tmp_path / "ids.json").write_text("[226, 320, 456]")
    arguments = ["gate", TINY_QUANT, "--tokens", tmp_path / "ids.json", "--generate", "0", "--mode", f"mmap@{copy}"]
    done = CliRunner().invoke(app, [str(part) for part in (*arguments, *(["--whole"] if whole else []))])
    flat = " ".join(done.output.split())
    if whole:
        assert (done.exit_code, f"first row {table.rows // 3} (at byte" in flat) == (1, True), done.output
    else:
        assert done.exit_code == 0, done.output
        said = f"12 of the {table.rows:,} rows of {copy} were compared"
        assert said.replace(" ", "") in flat.replace(" ", "")  # a long path goes on in the next line
        assert f"{table.rows - 12:,} were not looked at: --whole compares them all" in flat
