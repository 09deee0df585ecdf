"""The cache of made models: made once, trusted cheaply, repaired, and safe with two processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import CannotRun
from harness.synth import cache_folder, ensure_model, make_recipe, making, presets
from harness.synth.making import file_sha256
from model_file.errors import InputError

# A preset small enough for tests: the table preset with few rows, under a name of its own.
SMALL = replace(presets.PRESETS["table"], name="small", rows=3000)
DIGEST = "b77a300563881ecba7e38e2a7d01474e28738a01b1fd13627d023e7b6ac2dc7a"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.PRESETS, "small", SMALL)
    monkeypatch.setitem(making.RECORDED, make_recipe("small").label, DIGEST)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith(".lock"))


def test_a_model_is_made_once(tmp_path: Path) -> None:
    told: list[str] = []
    path = ensure_model("small", tmp_path / "deep" / "cache", told.append)
    assert file_sha256(path) == DIGEST
    assert any("making the model small" in line for line in told)
    before = path.stat()
    told.clear()
    assert ensure_model("small", tmp_path / "deep" / "cache", told.append) == path
    assert told == [] and path.stat().st_mtime_ns == before.st_mtime_ns
    assert names(path.parent) == [path.name, path.name + ".json"]


def test_a_damaged_model_is_made_anew(tmp_path: Path) -> None:
    path = ensure_model("small", tmp_path)
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"damage")
    os.utime(path, ns=(1, 1))  # the time of change tells, whatever the clock's grain
    assert file_sha256(path) != DIGEST
    assert file_sha256(ensure_model("small", tmp_path)) == DIGEST


def test_a_shortened_model_is_made_anew(tmp_path: Path) -> None:
    path = ensure_model("small", tmp_path)
    os.truncate(path, 1000)
    assert file_sha256(ensure_model("small", tmp_path)) == DIGEST


@pytest.mark.parametrize("note", ["", "{}", "[]", "null", '{"sha256": "0"}'])
def test_a_good_model_with_a_bad_note_is_hashed_and_kept(note: str, tmp_path: Path) -> None:
    path = ensure_model("small", tmp_path)
    written = path.stat().st_mtime_ns
    path.with_name(path.name + ".json").write_text(note)
    told: list[str] = []
    ensure_model("small", tmp_path, told.append)
    assert told == [f"checking {path.name}"] and path.stat().st_mtime_ns == written
    assert json.loads(path.with_name(path.name + ".json").read_text())["sha256"] == DIGEST


def test_a_model_of_another_recorded_digest_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ensure_model("small", tmp_path)
    monkeypatch.setitem(making.RECORDED, make_recipe("small").label, "0" * 64)
    with pytest.raises(CannotRun, match=f"SHA-256 {DIGEST}, recorded is 0000"):
        ensure_model("small", tmp_path)
    assert not path.exists()


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    name = ensure_model("small", tmp_path).name
    (tmp_path / name).unlink()
    (tmp_path / f".{name}.killed.part").write_bytes(b"half")
    ensure_model("small", tmp_path)
    assert names(tmp_path) == [name, name + ".json"]


def test_two_processes_at_once_make_it_once(tmp_path: Path) -> None:
    code = (
        "import sys, tests.harness.synth.test_making as here\n"
        "from pathlib import Path\n"
        "here.presets.PRESETS['small'] = here.SMALL\n"
        "here.making.RECORDED[here.make_recipe('small').label] = here.DIGEST\n"
        "told = []\n"
        "print(here.ensure_model('small', Path(sys.argv[1]), told.append), any('making' in line for line in told))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(__file__).parents[3]
    running = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len({path for path, _ in said}) == 1
    assert sorted(made for _, made in said) == ["False", "False", "True"]
    assert file_sha256(Path(said[0][0])) == DIGEST


def test_no_space_names_bytes_and_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.synth import gguf_writer

    usage = gguf_writer.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(gguf_writer.shutil, "disk_usage", lambda _: usage._replace(free=12345))
    with pytest.raises(
        InputError, match=r"no space: 12,345 bytes are free, [\d,]+ are needed.*--cache-dir.*PLEGATE_CACHE_DIR"
    ):
        ensure_model("small", tmp_path)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"file/cache: made models cannot be kept here: Not a directory.*--cache-dir"):
        ensure_model("small", tmp_path / "file" / "cache")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match=r"Permission denied.*--cache-dir"):
        ensure_model("small", tmp_path)
    tmp_path.chmod(0o755)


def test_the_cache_folder_is_the_chosen_one_then_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("PLEGATE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/somebody/.cache/plegate")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/somebody/.cache/plegate")
    monkeypatch.setenv("XDG_CACHE_HOME", "/big")
    assert cache_folder() == Path("/big/plegate")
    monkeypatch.setenv("PLEGATE_CACHE_DIR", "/own")
    assert cache_folder() == Path("/own")
    assert cache_folder(tmp_path) == tmp_path
