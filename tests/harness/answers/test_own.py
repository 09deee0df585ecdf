"""Goldens of one's own: recorded from a server, compared with later, stale when the model is another one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.answers import own
from harness.answers.own import identity, read_own, stale
from harness.cli import app
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from tests.conftest import FIXTURES
from tests.servers import stand_in as stand_in

TINY = FIXTURES / "tiny.gguf"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def recorded(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for package in ("gate", "diagnose"):
        monkeypatch.setattr(f"harness.{package}.arms.does_not_fit", lambda *_: "a test")
    (ids := tmp_path / "ids.json").write_text("[[5, 6, 7, 8, 9, 10], [100, 200, 300, 400]]")
    words = ("golden", "record", "--model", TINY, "--prompts", ids, "--generate", 8, "--out", tmp_path / "my.json")
    done = run(*words, "--arm", f"was={stand_in} -lzm off")
    assert done.exit_code == 0, done.output
    again = run(*words, "--arm", f"was={stand_in}")
    assert again.exit_code == 2
    assert "say why its answers change" in again.stderr
    assert run(*words, "--arm", f"was={stand_in}", "--reason", "another flag").exit_code == 0
    unsteady = run(*words, "--arm", f"was={stand_in} --lazy-fault flaky=3", "--reason", "x")
    assert unsteady.exit_code == 1
    assert "not written" in unsteady.output
    return tmp_path / "my.json"


def test_a_server_is_judged_by_what_was_recorded(recorded: Path, stand_in: Path, tmp_path: Path) -> None:
    golden = read_own(recorded)
    assert golden.reason == "another flag"
    assert golden.producer["version"] == "version: stand-in 7 (build 42)"
    assert all(len(prompt.generated) == len(prompt.margins) == 8 for prompt in golden.prompts)
    out = tmp_path / "out.json"
    gate = ("gate", TINY, "--golden", recorded, "--no-restart", "--json", out)
    assert run(*gate, "--arm", f"new={stand_in} -lzm on").exit_code == 0
    (arm,) = json.loads(out.read_text())["arms"]
    assert (arm["against"], arm["tokens_compared"], arm["verdict"]) == ("golden", 16, "equal")
    assert arm["strict"]  # the golden's arm differs from it by --lazy-mode alone
    assert run(*gate, "--arm", f"new={stand_in} --lazy-fault id=3").exit_code == 1
    first = json.loads(out.read_text())["arms"][0]["first_difference"]
    assert first["step"] == 3
    assert first["margin_expected"] == pytest.approx(first["margin_found"], rel=1e-4)
    assert run(*gate, "--arm", f"new={stand_in}", "--generate", 3).exit_code == 2
    assert "is a case's golden" in run("gate", TINY, "--golden", "goldens/tiny.json", "--arm", "mmap").stderr


def test_a_golden_of_another_model_is_stale(recorded: Path, stand_in: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    content = bytearray(TINY.read_bytes())
    copy.write_bytes(content)
    with open_gguf(copy) as model:
        why, note = stale(read_own(recorded), model)
    assert (why, note) == (None, "the golden's model is known by SHA-256 of the file; its files were written to since, "
                                 "with the same bytes")  # fmt: skip
    content[-100] ^= 1
    copy.write_bytes(content)
    done = run("gate", copy, "--golden", recorded, "--no-restart", "--arm", f"new={stand_in}")
    assert done.exit_code == 1
    assert "golden my is stale" in done.output


def test_large_models_are_known_by_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "HASHED_BYTES", 0)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(TINY.read_bytes())
    with open_gguf(copy) as model:
        before = identity(model)
    assert before["sha256"] is None
    assert "what lies between was not looked at" in before["identity"]
    descriptor = os.open(copy, os.O_RDWR)
    os.pwrite(descriptor, b"\x99", copy.stat().st_size - 5)
    os.close(descriptor)
    with open_gguf(copy) as model:
        assert identity(model)["samples"] != before["samples"]


def test_what_is_no_golden_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="schema None"):
        read_own(path)
    assert run("golden", "record").exit_code == 2
    assert run("golden", "record", "tiny", "--model", TINY).exit_code == 2
