"""Recipes: the same bytes everywhere, hash constants by the rule, and files that the project's own loader takes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

from harness.synth import PRESETS, Recipe, make_model, make_recipe
from harness.synth.digests import RECORDED
from harness.synth.gguf_writer import pieces
from harness.synth.presets import FLASH_NEXT_ROWS
from harness.synth.table import TABLE_MASKS, table_type
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.inventory import take_inventory
from model_file.tensors import TABLE

WIDE = {"Q6_K", "Q4_K", "IQ1_S"}  # blocks of 256
# What `plegate synth` gave when the recipes were last changed: with RECORDED, the proof that nothing else counts.
SMALL = {
    ("nano", 0, "IQ4_NL"): "d263baf79a0f0bf85d67c9877b293a3874e22b93918207aae878f8ccfa511aa4",
    ("nano", 5, "Q8_0"): "1b21dbc14826661b08bcac66263456af580c8cd11df5e2f4c358e8a2e92fbf53",
    ("table", 0, "F32"): "ffda687ec9fc72e16008bafd7d6bf478ea0334df51ba17c40b37553d72d448b8",
    ("table", 0, "F16"): "4626e43e181c0dcee73247d74125d1ca70c69546dc98706a5859fb5021749f55",
    ("table", 0, "BF16"): "b18e119d46d1de83dcbeeb62199a7ba15ad4a57fa78feb2b723a35c79c6aa092",
    ("table", 0, "Q4_0"): "e15a3cbd95e790fd21f10693e5f0309d5ca424bfc17e2e4a00b98b7da09d7ddd",
    ("table", 0, "Q5_0"): "b84884ed8cab6e128bc37533611f060f04a3a5a8c263be76e3dc675280be1d5d",
    ("table", 0, "Q5_1"): "20c0c43c12541b6bf07710946b4502950ab1bbd6ce13e4db0e8e3685f87b8ae8",
    ("table", 0, "Q8_0"): "54f6e8b174cd3a79d2b5e381eacb1e2caeaf19ef61a4bd88eab9d94b91cbbbe9",
    ("table", 0, "IQ4_NL"): "0a338e893b92cc2e184c4148c9d96499e481e9bb6347192c8ac68e2280ac633e",
    ("table", 0, "Q6_K"): "782ce5b45708795678ee4b62b8a1df24b77729d859621812f80d6e1e0fd1b2b1",
    ("table", 0, "Q4_K"): "5b568877c27be804531604cd3bdd60a0e8551640542b29d3406760cf9998dfad",
    ("table", 0, "IQ1_S"): "4da8f46d1d35d46f414eec7be93b64ac3a699cf656fd8ed5924bea8410937722",
}


def small(name: str, seed: int, kind: str) -> Recipe:
    width: dict[str, Any] = {"row_width": 256} if kind in WIDE else {}
    return make_recipe(name, seed=seed, rows=2000, table_kind=table_type(kind), **width)


def sha256(recipe: Recipe) -> str:
    """Of the file that the recipe gives, without writing it."""
    digest = hashlib.sha256()
    for piece in pieces(recipe.header, recipe.tensors):
        digest.update(piece.data)
    return digest.hexdigest()


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "nano.gguf"
    make_model(small("nano", 0, "IQ4_NL"), path)
    return path


@pytest.mark.parametrize(("name", "seed", "kind"), SMALL)
def test_small_models_have_the_recorded_bytes(name: str, seed: int, kind: str) -> None:
    assert sha256(small(name, seed, kind)) == SMALL[name, seed, kind]


def test_every_table_type_has_a_recorded_digest() -> None:
    assert {kind for _, _, kind in SMALL} == {kind.name for kind in TABLE_MASKS}


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if not preset.served])
def test_default_models_have_the_recorded_bytes(name: str) -> None:
    recipe = make_recipe(name)
    assert sha256(recipe) == RECORDED[recipe.label]


def test_two_processes_give_the_same_bytes(nano: Path) -> None:
    code = (
        "from tests.harness.synth.test_recipe import sha256, small\n"
        "print(sha256(small('nano', 0, 'IQ4_NL')), sha256(small('table', 0, 'Q8_0')))"
    )
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[3]
    outputs = [subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert outputs[0].split()[0] == hashlib.sha256(nano.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["nano", "mini"])
def test_complete_models_are_taken_whole_by_the_loader(name: str, tmp_path: Path) -> None:
    """Every tensor is expected and every expected tensor is there; from the header alone, the data is a hole."""
    recipe = make_recipe(name, rows=2000)
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(recipe.header)
        file.truncate(recipe.size_bytes)
    with open_gguf(path) as model:
        assert config_from(model) == recipe.config
        take_inventory(model, recipe.config)
        assert list(model.tensors) == [tensor.name for tensor in recipe.tensors]


def test_nano_is_what_the_documentation_says() -> None:
    recipe = make_recipe("nano")
    config = recipe.config
    assert (config.width, config.ple.heads, config.ple.row_width, recipe.row_bytes) == (640, 4, 160, 90)
    assert (config.layers, [layer for layer in range(8) if not config.linear_layers[layer]]) == (8, [3, 7])
    assert (config.experts, config.experts_used, config.delta_value_heads) == (16, 4, 3 * config.delta_key_heads)
    assert (config.top_k, config.compress_ratios[3], config.indexer_heads, config.context) == (64, 4, 8, 65536)
    assert abs(recipe.rows - 1_000_000) < 1000
    assert {tensor.kind for tensor in recipe.tensors if tensor.name != TABLE} == {GGMLQuantizationType.F32}


def test_weights_and_rows_read_back_finite(nano: Path) -> None:
    for tensor in GGUFReader(nano).tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            assert np.isfinite(tensor.data).all(), tensor.name
            assert 0.0 < np.abs(tensor.data).max() < 16.0, tensor.name


def test_reserved_tokens_have_quiet_output_rows(nano: Path) -> None:
    output = next(tensor.data for tensor in GGUFReader(nano).tensors if tensor.name == "output.weight")
    sizes = np.abs(output).max(axis=1)
    assert sizes[:2].max() < sizes[2:].min() / 8


def test_flash_next_size_has_flash_next_constants() -> None:
    recipe = make_recipe("table", rows=FLASH_NEXT_ROWS)
    constants = recipe.config.ple.hash
    assert constants.multipliers == (23703573157769, 20109073645365, 8052911324071)
    sizes = constants.sizes
    assert (len(sizes), sizes[0], sizes[-1], sum(sizes)) == (16, 20000003, 20000171, 320001446)
    assert constants.offsets == tuple(sum(sizes[:head]) for head in range(16))
    assert make_recipe("table", rows=2 * FLASH_NEXT_ROWS).config.ple.hash == constants


@pytest.mark.parametrize("rows", [400, 2000, 100_000, 11_930_464, FLASH_NEXT_ROWS - 1, FLASH_NEXT_ROWS])
def test_head_sizes_fit_the_rows_and_nearly_fill_them(rows: int) -> None:
    sizes = make_recipe("table", rows=rows).config.ple.hash.sizes
    assert len(sizes) == 16 and sorted(set(sizes)) == list(sizes)
    assert rows - 16 * 20 - 400 <= sum(sizes) <= rows  # sixteen primes span some hundred numbers
    for size in sizes:
        assert all(size % divisor for divisor in range(2, int(size**0.5) + 1))


def test_a_longer_table_starts_like_a_shorter_one() -> None:
    short, long = (make_recipe("table", rows=rows, seed=3) for rows in (2000, 300_000))
    first, second = (next(recipe.tensors[0].blocks()) for recipe in (short, long))
    assert second.size >= first.size and np.array_equal(first, second[: first.size])


def test_gib_gives_the_rows_that_fit() -> None:
    recipe = make_recipe("table", gib=0.5, table_kind=GGMLQuantizationType.F16)
    assert recipe.rows == (1 << 29) // 320


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("huge", {}, "huge: no such preset.*nano"),
        ("nano", {"seed": -1}, "--seed -1"),
        ("nano", {"rows": 5, "gib": 1.0}, "--rows and --gib"),
        ("nano", {"rows": 0}, "a table of 0 rows"),
        ("nano", {"rows": -7}, "a table of -7 rows"),
        ("table", {"rows": 380}, "a table of 380 rows: expected 381"),
        ("table", {"gib": -1.0}, "a table of -"),
        ("table", {"rows": 2**40}, "2\\^40"),
        ("nano", {"row_width": 256}, "--width 256"),
        ("table", {"row_width": 100}, "--type IQ4_NL: rows of 100 values"),
        ("table", {"table_kind": GGMLQuantizationType.Q6_K}, "--type Q6_K: rows of 160 values.*--width"),
    ],
)
def test_options_that_do_not_fit_are_named(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_recipe(name, **options)


@pytest.mark.parametrize("gib", [float("nan"), float("inf")])
def test_gib_must_be_a_number(gib: float) -> None:
    with pytest.raises(InputError, match="--gib"):
        make_recipe("table", gib=gib)
