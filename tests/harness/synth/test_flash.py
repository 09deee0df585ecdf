"""`plegate synth flash`: Flash-Next's sizes and packing; all files or none; blocks that are what the seed gives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from harness.cases.prompts import decode, encode
from harness.cli import app
from harness.synth import PRESETS, Recipe, gguf_writer, make_recipe, make_shards, making
from harness.synth.presets import FLASH_NEXT_ROWS
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.inventory import take_inventory
from model_file.tensors import TABLE

Q = gguf.GGMLQuantizationType
GAINS = {"blk.0.ffn_gate_exps": 2, "blk.3.ffn_up_exps": 2, "blk.0.ffn_down_exps": 2, "output": 8, "blk.3.attn_q": 2}


def small() -> Recipe:
    """The same with fewer experts, tokens and rows: 140 MB."""
    preset = PRESETS["flash"]
    ple = replace(preset.config.ple, hash=replace(preset.config.ple.hash, eos=1))
    config = replace(make_recipe("flash", layers=4).preset.config, experts=4, experts_used=2, vocab=1000, ple=ple)
    special = {0: "<|pad|>", 1: "<|endoftext|>"}
    return Recipe(replace(preset, config=config, special=special, padding=0, image=None), 0, 2000, Q.IQ4_NL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(iter(make_shards(small(), tmp_path_factory.mktemp("flash") / "flash.gguf")))


def test_the_headers_of_the_full_model_are_taken(tmp_path: Path) -> None:
    """From headers alone, the data are holes: kinds, sizes and hash of Flash-Next, the table its own shard."""
    recipe = make_recipe("flash")
    for number, (head, tensors) in enumerate(recipe.shards):
        with (tmp_path / f"flash-{number + 1:05d}-of-00002.gguf").open("wb") as file:
            file.write(head)
            file.truncate(gguf_writer.file_bytes(head, tensors))
    with open_gguf(tmp_path / "flash-00002-of-00002.gguf") as model:
        config = config_from(model)
        take_inventory(model, config)
        assert config == recipe.config and sum(tensor.size_bytes for tensor in model.tensors.values()) > 43e9
        assert model.tensors[TABLE].path.name == "flash-00002-of-00002.gguf"
        kinds = {name: (tensor.type, tensor.shape) for name, tensor in model.tensors.items()}
        text = "The <|im_start|>table 12\n"
        assert decode(model, encode(model, text)) == text and 248045 in encode(model, text)
    assert kinds["blk.7.ffn_gate_exps.weight"] == (Q.Q4_K, (512, 640, 2560))
    assert kinds["blk.7.ffn_down_exps.weight"] == (Q.Q5_1, (512, 2560, 640))
    assert kinds["output.weight"] == (Q.Q6_K, (248320, 2560)) and kinds["blk.3.attn_q.weight"][0] == Q.Q8_0
    assert kinds["blk.0.ffn_gate_inp.weight"] == (Q.F32, (512, 2560))
    assert kinds[TABLE] == (Q.IQ4_NL, (FLASH_NEXT_ROWS, 160))
    assert [layer for layer, linear in enumerate(config.linear_layers) if not linear] == [3, 7]
    assert sum(config.ple.hash.sizes) == 320001446 and config.ple.hash.eos == 248044


def test_weights_have_the_promised_spread_and_no_mean(made: Path) -> None:
    with open_gguf(made) as model:
        for name, gain in GAINS.items():
            info = model.tensors[f"{name}.weight"]
            values = gguf.dequantize(model.packed(info.name).reshape(-1, info.row_bytes), info.type)
            sane = values[2:] if name == "output" else values  # the rows of reserved tokens are quiet
            wanted = gain / sqrt(info.shape[-1])
            assert np.isfinite(values).all() and 0.85 * wanted < sane.std() < 1.15 * wanted, name
            assert abs(sane.mean()) < 0.01 * wanted, name
            if name == "output":
                assert values[:2].std() < 0.1 * wanted


@pytest.mark.parametrize("row", [0, 1, 1234, 1999])
def test_rows_are_what_the_generator_promises(row: int, made: Path) -> None:
    key = int.from_bytes(hashlib.sha256(f"plegate/flash/0/{TABLE}".encode()).digest()[:16], "little")
    first = row * 90 // 32
    words = np.random.Philox(key=key).advance(first).random_raw(16).astype("<u8").view(np.uint8)
    expected = words[row * 90 - first * 32 :][:90].reshape(5, 18).copy()
    halves = expected[:, :2].view("<u2")
    halves &= 0x03FF
    halves |= 0x2000
    with open_gguf(made) as model:
        assert model.packed(TABLE)[row].tobytes() == expected.tobytes()


def test_scales_of_neighbouring_blocks_differ(made: Path) -> None:
    with open_gguf(made) as model:
        for name, size in (("ffn_gate_exps", 144), ("ffn_down_exps", 24)):
            scales = model.packed(f"blk.0.{name}.weight").reshape(-1, size)[:, :2]
            assert len(np.unique(scales.copy().view("<u2"))) == 64


def test_bytes_are_the_recorded_ones() -> None:
    digest = hashlib.sha256()
    recipe = make_recipe("flash")
    for head, tensors in recipe.shards:
        digest.update(head)
        for tensor in tensors[::9] + tensors[-1:]:
            digest.update(next(tensor.blocks())[: 1 << 20].data)
    assert digest.hexdigest() == "0eb328745593fd02ab1101892443aa0ee54690e4436f00698db2bf5ca5347b90"


def _stop(count: int) -> Callable[[int], None]:
    left = [count]

    def on_bytes(_: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    return on_bytes


@pytest.mark.parametrize("pieces", [1, 8])
def test_an_interrupt_leaves_nothing(pieces: int, tmp_path: Path) -> None:
    """In the table's shard, and in the weights' when the table's is there already."""
    with pytest.raises(KeyboardInterrupt):
        make_shards(small(), tmp_path / "flash.gguf", on_bytes=_stop(pieces))
    assert list(tmp_path.iterdir()) == []


def test_space_and_time_are_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(wall_s: float) -> None:
        assert wall_s > 0 and list(tmp_path.iterdir()) == []
        raise InterruptedError

    monkeypatch.setattr(making, "_TRIAL_BYTES", 1 << 20)
    with pytest.raises(InterruptedError):
        make_shards(small(), tmp_path / "flash.gguf", on_estimate=told)
    free = gguf_writer.shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(gguf_writer.shutil, "disk_usage", lambda _: free)
    with pytest.raises(InputError, match=r"1,000,000,000 bytes are free, 43,[\d,]+ are needed"):
        make_shards(make_recipe("flash"), tmp_path / "flash.gguf", on_estimate=told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["flash", "--layers", "3"], "--layers 3: expected 4 to 48"),
        (["flash", "--layers", "49"], "--layers 49"),
        (["nano", "--layers", "8"], "nano has 8 layers"),
    ],
)
def test_layers_that_cannot_be_are_said(words: list[str], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["synth", *words, "--out", str(tmp_path / "f.gguf")])
    assert done.exit_code == 2 and said in " ".join(done.output.split())


def test_the_command_names_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.synth.make_recipe", lambda *_, **__: small())
    words = ["synth", "flash", "--out", str(tmp_path / "f.gguf"), "--json", str(tmp_path / "j")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    files = json.loads((tmp_path / "j").read_text())["files"]
    assert [Path(file["path"]).name for file in files] == ["f-00001-of-00002.gguf", "f-00002-of-00002.gguf"]
    for file in files:
        assert hashlib.sha256(Path(file["path"]).read_bytes()).hexdigest() == file["sha256"]
