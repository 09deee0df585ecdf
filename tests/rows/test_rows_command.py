"""`plegate rows` and `plegate advise`: verdicts, exit codes, what is named, and that each check can fail."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fast.rows import MODES, RowSettings, Table, locate_table, mapped, residency, resident, syscalls
from fast.rows.probe import DeviceRate
from harness import advise as harness_advise
from harness import cli
from harness.advise import Advice, ModeSpeed, advise_table, sentences
from harness.cases.case import ModeSource, parse_modes
from harness.commands.advise import advise
from harness.commands.rows import rows
from harness.gate import table as rows_gate
from harness.gate.batches import choose_batches, random_rows
from harness.gate.table import judge_rows
from reference.gguf_file import open_gguf
from tests import gguf_edit
from tests.conftest import FIXTURES, larger_fixture

app = typer.Typer(cls=cli._ExitCodes, pretty_exceptions_enable=False)
app.command()(rows)
app.command()(advise)
runner = CliRunner()


def run(*arguments: str | Path) -> Any:
    return runner.invoke(app, [str(argument) for argument in arguments])


def table_of(path: Path) -> Table:
    with open_gguf(path) as opened:
        return locate_table(opened)


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
    assert result["schema"] == "plegate.rows/1"
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


def gemma(path: Path, table_rows: int = 4000) -> Path:
    """A made file of another architecture: nothing but a table, row = token id."""
    writer = gguf.GGUFWriter(path, "gemma4")
    values = np.random.default_rng(3).standard_normal((table_rows, 256)).astype(np.float32)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("per_layer_token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
        if calls == 7:  # the second pass over the first of the batches
            out[5, 3] ^= 1

    monkeypatch.setattr(mapped.MappedReader, "_read", lie_later)
    result = judged(tiny_quant, "mmap")
    assert [mode.verdict for mode in result.modes] == ["unsteady"]
    assert "byte 3 of the row" in (result.modes[0].control or "")
    assert result.exit_code == 1


def test_a_wrong_float_is_found_at_its_level(tiny_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fast.rows import dequantize

    right = dequantize.dequantize_on_device
    monkeypatch.setattr(
        dequantize, "dequantize_on_device", lambda packed, type: right(packed, type=type) * (1 + 2**-23)
    )
    result = judged(tiny_quant, "mmap")
    assert result.exit_code == 1
    assert result.modes[0].difference is not None
    assert result.modes[0].difference.level == "f32"


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


def test_advise_measures_and_says_what_to_use(tmp_path: Path) -> None:
    path = gemma(tmp_path / "gemma.gguf", table_rows=20_000)
    done = run("advise", path, "--json", tmp_path / "a.json", "--seed", "3")
    result = json.loads((tmp_path / "a.json").read_text())
    assert done.exit_code == (3 if result["cold_problem"] else 0), done.output
    assert result["schema"] == "plegate.advise/1"
    assert result["rows_per_token"] == 1
    assert "Use " in done.output
    assert result["recommended"] in MODES
    assert all(mode["warm"] > 0 for mode in result["modes"])


def test_advise_without_any_way_to_verify_cold_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gemma(tmp_path / "gemma.gguf")

    def neither(_: Table) -> float:
        raise OSError(errno.ENOSYS, "residency cannot be verified")

    monkeypatch.setattr(residency, "resident_fraction", neither)
    done = run("advise", path)
    assert done.exit_code == 3
    assert "nothing measured here could be called cold" in " ".join(done.output.split())


def made_advice(**cold: list[float]) -> Advice:
    """Advice from made-up rounds of cold rates; every mode but the uncached ones is ten times faster warm."""
    advice = Advice(table_bytes=6 << 30, rows_per_token=16, available_bytes=20 << 30, fits=True)
    for name, rounds in cold.items():
        mode = name.replace("_", "-")
        middle = sorted(rounds)[1]
        warm = middle if "uncached" in mode else 10 * middle
        advice.modes.append(ModeSpeed(mode, mode, middle, rounds, warm, 3e-4, 2e-5))
    return advice


@pytest.mark.parametrize(
    ("cold", "expected"),
    [
        ({"auto": [80, 85, 90], "uring": [82, 84, 91]}, "auto"),
        ({"auto": [60, 62, 64], "uring": [80, 84, 91]}, "uring"),
        ({"auto": [60, 62, 85], "uring": [80, 84, 91]}, "auto"),  # the rounds overlap: noise
        ({"auto": [60, 62, 64], "uring_uncached": [80, 84, 91]}, "auto"),  # keeps nothing warm
    ],
)
def test_advise_recommends_another_mode_only_where_it_is_clearly_better(
    cold: dict[str, list[float]], expected: str
) -> None:
    advice = made_advice(**cold)
    assert advice.recommended == expected
    assert any(sentence.startswith(f"Use {expected}") for sentence in sentences(advice))


@pytest.mark.parametrize(
    ("rows_per_page", "cold", "said"),
    [
        (1.0, [900.0] * 3, "no reader can prefill faster than about 62 tokens"),
        (4.2, [900.0] * 3, "4.2 of the rows drawn share a page."),
        (4.2, [3900.0] * 3, "4.2 of the rows drawn share a page, and prefetch got 390% of it."),
        (1.0, [1500.0] * 3, "This limit is none for this table: prefetch got 150% of it"),
    ],
)
def test_advise_claims_no_limit_that_its_own_numbers_exceed(rows_per_page: float, cold: list[float], said: str) -> None:
    advice = made_advice(prefetch=cold)
    advice.device = [DeviceRate(1000, 4096, 1.0, depth, "uring") for depth in (1, 16, 64, 256)]
    advice.rows_per_page = rows_per_page
    text = " ".join(sentences(advice))
    assert said in text
    assert ("no reader can prefill faster" in text) == (advice.limit_problem is None)


def test_advise_counts_rows_that_share_a_page(tiny_quant: Path) -> None:
    table = table_of(tiny_quant)
    advice = advise_table(table, 4, RowSettings(), 1, lambda _: None)
    ids = np.arange(table.rows)
    places = [(table.place(row)[1], table.place(row)[1] + table.row_bytes - 1) for row in ids.tolist()]
    pages = {place // 4096 for ends in places for place in ends}
    assert harness_advise._pages(table, ids) == len(pages)
    assert advice.rows_per_page > 2
    assert advice.limit is None or "too small for this limit" in " ".join(sentences(advice))


def test_advise_names_fallbacks_and_tables_that_do_not_fit(tiny_quant: Path) -> None:
    def refuse(name: str, *arguments: int) -> int:
        return -errno.EPERM if name == "io_uring_setup" else syscalls.call(name, *arguments)

    advice = advise_table(table_of(tiny_quant), 4, RowSettings(syscall=refuse), 1, lambda _: None)
    advice.fits = False
    text = " ".join(sentences(advice))
    assert "uring ran as direct: io_uring is forbidden here" in text
    assert "do not use `resident`" in text
