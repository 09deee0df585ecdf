"""`plegate rows`: verdicts, exit codes, what is named, and that each check can fail."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest

from fast.rows import MODES, RowSettings, locate_table, mapped, residency, resident, syscalls
from harness.cases.case import ModeSource, parse_modes
from harness.gate import rows_only as rows_gate
from harness.gate.batches import choose_batches, random_rows
from harness.gate.rows_only import judge_rows
from model_file.gguf_file import open_gguf
from tests import gguf_edit
from tests.conftest import FIXTURES, larger_fixture
from tests.fast.rows.commands import gemma, run, table_of


def copy_with_changed_byte(original: Path, copy: Path, row: int) -> Path:
    """A copy whose row `row` has one bit changed in its fifth byte."""
    shutil.copy(original, copy)
    change_byte(copy, table_of(copy).place(row)[1] + 4)
    return copy


def change_byte(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def test_all_modes_are_equal_on_a_fixture_that_stays_untouched(
    tiny_quant: Path, tmp_path: Path, equal_code: int
) -> None:
    before = hashlib.sha256(tiny_quant.read_bytes()).hexdigest(), tiny_quant.stat().st_mtime_ns
    done = run("rows", tiny_quant, "--json", tmp_path / "r.json")
    assert done.exit_code == equal_code, done.output
    assert equal_code or "10 of 10 modes give the rows byte for byte" in done.output
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["schema"] == "plegate.rows/2"
    assert [mode["name"] for mode in result["modes"]] == list(MODES)
    assert {mode["verdict"] for mode in result["modes"]} == ({"equal", "not run"} if equal_code else {"equal"})
    assert {batch["name"] for batch in result["batches"]} > {"random"}
    assert all(mode["rows_compared"] == sum(batch["rows"] for batch in result["batches"]) for mode in result["modes"])
    assert all(mode["counters"]["warm"]["rows_requested"] == 2048 for mode in result["modes"])
    assert (hashlib.sha256(tiny_quant.read_bytes()).hexdigest(), tiny_quant.stat().st_mtime_ns) == before


@pytest.mark.parametrize("shard", [1, 2, 3, 4])
def test_a_split_model_opens_from_any_shard(shard: int) -> None:
    path = larger_fixture("split") / f"tiny-quant-0000{shard}-of-00004.gguf"
    done = run("rows", path, "--mode", "direct", "--mode", "prefetch", "--rows", "300")
    assert done.exit_code == 0, done.output


def test_a_file_of_llama_cpp_is_judged(equal_code: int) -> None:
    done = run("rows", larger_fixture("llama-arch.gguf"), "--rows", "300")
    assert done.exit_code == equal_code, done.output
    assert "no built-in prompts" in done.output


@pytest.mark.parametrize("how", ["against", "mode@file"])
def test_a_changed_byte_in_a_used_row_is_found_and_named(tiny_quant: Path, tmp_path: Path, how: str) -> None:
    table = table_of(tiny_quant)
    row = int(random_rows(table, 2048, 1)[700])
    copy = copy_with_changed_byte(tiny_quant, tmp_path / "copy.gguf", row)
    if how == "against":
        done = run("rows", copy, "--against", tiny_quant, "--no-cold")
    else:
        done = run("rows", tiny_quant, "--mode", "mmap", "--mode", f"direct@{copy}", "--no-cold")
    assert done.exit_code == 1, done.output
    text = " ".join(done.output.split())
    _, offset = table_of(copy).place(row)
    assert f"row {row} (at byte {offset} of copy.gguf), byte 4 of the row" in text
    assert ("0 of 10 modes" if how == "against" else "1 of 2 modes") in text


def test_a_changed_byte_in_one_shard_is_found_and_named(tmp_path: Path) -> None:
    original = larger_fixture("split")
    copies = tmp_path / "split"
    shutil.copytree(original, copies)
    first = next(iter(sorted(original.iterdir())))
    table = table_of(first)
    row = int(random_rows(table, 2048, 1)[900])
    shard = table.place(row)[0].path.name
    (copies / shard).chmod(0o644)
    change_byte(copies / shard, table.place(row)[1] + 4)
    done = run("rows", copies / first.name, "--against", first, "--mode", "auto", "--no-cold")
    assert done.exit_code == 1
    assert f"row {row} (at byte {table.place(row)[1]} of {shard})" in " ".join(done.output.split())


def test_a_gemma_file_reads_the_row_of_the_token(tmp_path: Path, equal_code: int) -> None:
    path = gemma(tmp_path / "gemma.gguf")
    tokens = tmp_path / "ids.json"
    tokens.write_text("[0, 3999, 17, 17]")
    done = run("rows", path, "--tokens", tokens, "--rows", "500", "--json", tmp_path / "r.json")
    assert done.exit_code == equal_code, done.output
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["architecture"], result["table"]["row_bytes"]) == ("gemma4", 272)
    assert result["batches"][1]["rows"] == 4
    copy = copy_with_changed_byte(path, tmp_path / "copy.gguf", 17)
    done = run("rows", copy, "--against", path, "--tokens", tokens, "--rows", "5", "--mode", "uring", "--no-cold")
    assert done.exit_code == 1
    assert "token 2, head 0, row 17" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "quick"], "unknown row mode 'quick'"),
        (["--tokens", "IDS"], "token 1 is 4000, expected 0 to 3999"),
        (["--against", "OTHER"], "expected 4000 of 256 in Q8_0"),
        (["--against", "MISSING"], "missing.gguf"),
    ],
)
def test_bad_input_is_refused_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = gemma(tmp_path / "gemma.gguf")
    (tmp_path / "ids").write_text("1 4000")
    names = {
        "IDS": tmp_path / "ids",
        "OTHER": gemma(tmp_path / "other.gguf", table_rows=300),
        "MISSING": tmp_path / "missing.gguf",
    }
    done = run("rows", path, *[names.get(argument, argument) for argument in arguments])
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())


UINT64, UINT32, FLOAT32 = (gguf.GGUFValueType[name] for name in ("UINT64", "UINT32", "FLOAT32"))


@pytest.mark.parametrize(
    ("key", "value", "element", "message"),
    [
        ("eos_token_id", None, None, "found no such key"),
        ("heads_per_ngram", None, None, "found no such key"),
        ("head_offsets", None, None, "found no such key"),
        ("eos_token_id", 1.5, FLOAT32, "found 1.5, expected a whole number of at least 0"),
        ("heads_per_ngram", 0, UINT32, "found 0, expected a whole number of at least 1"),
        ("heads_per_ngram", [2, 2], UINT32, "expected a whole number of at least 1"),
        ("layer_multipliers", [3], UINT64, "found 1 values, expected one for each token of an n-gram"),
        ("layer_multipliers", 3, UINT32, "found int, expected an array of whole numbers"),
        ("head_vocab_sizes", [1009, 1013, 1019], UINT64, "found 3 values, expected 4, one for each head"),
        ("head_vocab_sizes", [1009, 0, 1019, 1021], UINT64, "found 0 as value 1, expected at least 1"),
        ("head_vocab_sizes", [1.0, 2.0, 3.0, 4.0], FLOAT32, "found values of float32, expected an array"),
        ("head_offsets", [0, 1009], UINT64, "found 2 values, expected 4, one for each head"),
        ("head_offsets", [0, 1009, 2**64 - 1, 3041], UINT64, f"ends at row {2**64 + 1018}, expected at most {2**64}"),
    ],
)
def test_broken_hash_constants_are_bad_input(tmp_path: Path, key: str, value: Any, element: Any, message: str) -> None:
    def change(keys: gguf_edit.Keys, _: gguf_edit.Tensors) -> None:
        if value is None:
            del keys[f"qwen4exp.ple.{key}"]
        elif isinstance(value, list):
            keys[f"qwen4exp.ple.{key}"] = (value, gguf.GGUFValueType.ARRAY, element)
        else:
            keys[f"qwen4exp.ple.{key}"] = (value, element, None)

    path = gguf_edit.edited(FIXTURES / "tiny.gguf", tmp_path / "broken.gguf", change)
    done = run("rows", path, "--no-cold", "--mode", "mmap", "--prompt", "a b")
    assert done.exit_code == 2, (done.output, done.exception)
    shown = " ".join(done.output.split())
    assert f"broken.gguf: qwen4exp.ple.{key}: found" in shown
    assert message in shown
    assert "convert the model again" in shown


def judged(
    path: Path, *modes: str, settings: RowSettings | None = None, cold: bool | None = False
) -> rows_gate.RowsResult:
    with open_gguf(path) as opened:
        table = locate_table(opened)
        batches, _ = choose_batches(opened, path, table, 300, 1)
    return judge_rows(path, batches, parse_modes(modes), settings or RowSettings(), None, cold, lambda _: None)


def test_a_mode_that_falls_back_is_not_called_equal(tiny_quant: Path) -> None:
    def refuse(name: str, *arguments: int) -> int:
        return -errno.EPERM if name == "io_uring_setup" else syscalls.call(name, *arguments)

    result = judged(tiny_quant, "uring", "mmap", settings=RowSettings(syscall=refuse))
    assert [mode.verdict for mode in result.modes] == ["not run", "equal"]
    assert "forbidden" in (result.modes[0].fallback_reason or "")
    assert result.exit_code == 3


@pytest.mark.parametrize("named", [[], ["--mode", "resident"]])
def test_a_table_that_does_not_fit_leaves_the_other_modes_judged(
    tiny_quant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    monkeypatch.setattr(resident, "available_bytes", lambda: 1000)
    done = run("rows", tiny_quant, "--no-cold", *named, "--json", tmp_path / "r.json")
    assert done.exit_code == 3, done.output
    first, *others = json.loads((tmp_path / "r.json").read_text())["modes"]
    assert (first["name"], first["verdict"], first["counters"]) == ("resident", "not run", {})
    assert "mode resident needs" in first["not_run"]
    assert "resident: " + first["not_run"] in " ".join(done.output.split())
    assert len(others) == (0 if named else len(MODES) - 1)
    assert all(mode["rows_compared"] for mode in others)


def test_a_mode_that_does_not_agree_with_itself_is_unsteady(tiny_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = mapped.MappedReader._read
    calls = 0

    def lie_later(self: Any, ids: Any, out: Any, counters: Any) -> None:
        nonlocal calls
        honest(self, ids, out, counters)
        calls += 1
        if calls == 3:  # after what the kernel is watched for and the first batch: that batch again
            out[5, 3] ^= 1

    monkeypatch.setattr(mapped.MappedReader, "_read", lie_later)
    result = judged(tiny_quant, "mmap")
    assert [mode.verdict for mode in result.modes] == ["unsteady"]
    assert "byte 3 of the row" in result.modes[0].controls[0].message
    assert result.exit_code == 1


def test_a_wrong_float_is_found_at_its_level(tiny_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fast.rows import dequantize

    right = dequantize.dequantize_on_device
    monkeypatch.setattr(
        dequantize, "dequantize_on_device", lambda packed, type: right(packed, type=type) * (1 + 2**-23)
    )
    result = judged(tiny_quant, "mmap")
    assert result.exit_code == 1
    assert result.findings[0].detail["level"] == "f32"


@pytest.mark.parametrize(("option", "code"), [("--cold", 3), ("", 0), ("--no-cold", 0)])
def test_a_table_that_stays_warm_is_never_reported_cold(
    tiny_quant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, code: int
) -> None:
    monkeypatch.setattr(residency, "make_cold", lambda *_, **__: residency.Eviction(0.5, "fadvise", 3))
    done = run("rows", tiny_quant, "--mode", "mmap", *([option] if option else []), "--json", tmp_path / "r.json")
    assert done.exit_code == code, done.output
    mode = json.loads((tmp_path / "r.json").read_text())["modes"][0]
    assert "cold" not in mode["counters"]
    assert mode["verdict"] == "equal"
    if code:
        assert "50.0% of the table stayed in memory" in " ".join(done.output.split())


@pytest.mark.parametrize(("option", "code"), [("--cold", 3), ("", 0), ("--no-cold", 0)])
def test_rows_are_compared_where_residency_cannot_be_verified(
    tiny_quant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, code: int
) -> None:
    """As on a file of another user, of which the kernel does not say which pages are in memory."""

    def refuse(*_: object, **__: object) -> residency.Eviction:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(tiny_quant))

    monkeypatch.setattr(residency, "make_cold", refuse)
    done = run("rows", tiny_quant, "--mode", "mmap", *([option] if option else []), "--json", tmp_path / "r.json")
    assert done.exit_code == code, done.output
    mode = json.loads((tmp_path / "r.json").read_text())["modes"][0]
    assert (mode["verdict"], "cold" in mode["counters"]) == ("equal", False)
    assert option == "--no-cold" or "tiny-quant.gguf: could not be evicted from memory and verified" in mode["not_cold"]
    if code:
        assert "not cold: " + mode["not_cold"] in " ".join(done.output.split())


def test_random_rows_hold_the_ends_and_repeats(tiny_quant: Path) -> None:
    table = table_of(tiny_quant)
    ids = random_rows(table, 500, 4)
    assert ids.size == 500
    assert {0, table.rows - 1} <= set(ids.tolist())
    assert len(set(ids.tolist())) < 500
    assert random_rows(table, 500, 4).tolist() == ids.tolist() != random_rows(table, 500, 5).tolist()


def test_modes_and_files_are_spelled_as_in_the_gate() -> None:
    assert parse_modes(["on-direct@x.gguf"]) == [ModeSource("direct", Path("x.gguf"))]
