"""Architectures drawn from seeds: files that load, and two engines that agree on every untied position."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import locate_table, open_rows
from fast.rows.dequantize import dequantize_numpy
from harness.synth.making import make_model
from harness.synth.random_models import for_llama_cpp, random_recipe, random_tokens, simpler, smallest
from harness.synth.table import TABLE_MASKS
from model_file.config import config_from
from model_file.gguf_file import open_gguf
from model_file.inventory import take_inventory
from reference.closeness import gaps
from reference.decode import Session
from reference.parameters import load_parameters

BOUND = 5e-5
"""Relative error per position, L2 over the vocabulary: as between any two float32 engines here."""
TIE, STEEP = 2e-5, 3e-5  # relative gap of a selection, argument of the PLE gate: below, engines may rightly differ
TOKENS = 96


def test_drawn_architectures_cover_what_they_promise() -> None:
    configs = [random_recipe(seed).config for seed in range(200)]
    assert {config.ple.hash.order for config in configs} == {2, 3, 4}
    assert {config.ple.hash.heads_per_ngram for config in configs} == {1, 2, 3, 4}
    assert {config.streams for config in configs} == {1, 2, 3, 4}
    assert {ratio for config in configs for ratio in config.compress_ratios} == {0, *range(2, 9)}
    kinds = [zip(config.compress_ratios, config.linear_layers, strict=True) for config in configs]
    dense = [layer for layers in kinds for layer in layers if layer == (0, False)]
    assert len(dense) > 20
    assert {config.delta_conv_kernel for config in configs} == {2, 3, 4}
    assert {config.ple.conv_kernel for config in configs} == {2, 3, 4}
    assert {config.kv_heads for config in configs} == {config.delta_key_heads for config in configs} == {1, 2, 3, 4}
    assert {config.ple.layer for config in configs} >= {0, 1, 2, 3}
    assert {random_recipe(seed).table_kind for seed in range(len(TABLE_MASKS))} == {*TABLE_MASKS}


def test_models_for_llama_cpp_are_half_of_each_table_type() -> None:
    count = len(TABLE_MASKS)
    drawn = [seed for seed in range(2 * count) if for_llama_cpp(seed)]
    assert sorted(seed % count for seed in drawn) == [*range(count)]
    for config in (random_recipe(seed).config for seed in range(200) if for_llama_cpp(seed)):
        kinds = zip(config.compress_ratios, config.linear_layers, strict=True)
        ratios = {ratio for ratio, linear in kinds if not linear}
        assert len(ratios) == 1 and config.top_k % ratios.pop() == 0 and config.streams > 1


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_file_says_what_was_drawn(seed: int, tmp_path: Path) -> None:
    recipe = random_recipe(seed)
    make_model(recipe, tmp_path / "a.gguf")
    with open_gguf(tmp_path / "a.gguf") as model:
        assert config_from(model) == recipe.config
        take_inventory(model, recipe.config)
    assert random_recipe(seed) == recipe and random_recipe(seed + 1) != recipe


@pytest.mark.parametrize("seed", [3, 4])
def test_a_simpler_model_is_one_too(seed: int, tmp_path: Path) -> None:
    recipe = random_recipe(seed)
    others = list(simpler(recipe))
    assert len(others) > 3 and recipe not in others
    for number, other in enumerate(others):
        make_model(other, tmp_path / f"{number}.gguf")
        with open_gguf(tmp_path / f"{number}.gguf") as model:
            assert config_from(model) == other.config
            take_inventory(model, other.config)


def test_a_failure_shrinks_to_what_it_needs() -> None:
    """Blocks of 5 tokens somewhere: two layers are left, PLE's delta net and the one with such blocks."""
    seed = next(seed for seed in range(100) if random_recipe(seed).config.compress_ratios.count(5) > 1)
    small = smallest(random_recipe(seed), lambda recipe: 5 in recipe.preset.config.compress_ratios).preset.config
    assert sorted(small.compress_ratios) == [0, 5]
    assert (small.streams, small.heads, small.kv_heads, small.delta_value_heads, small.ple.conv_kernel) == (
        1,
        1,
        1,
        1,
        2,
    )


def disagreement(seed: int, folder: Path) -> tuple[float, int]:
    """The largest error of any position before the first tie, and how many positions that were."""
    path = folder / "a.gguf"
    make_model(random_recipe(seed), path)
    with open_gguf(path) as model, open_rows(locate_table(model), "mmap") as reader:
        config = config_from(model)
        ids, kind = random_tokens(seed, config, TOKENS), reader.table.type
        weights = load_parameters(model, config)
        session = Session(weights, config, lambda rows: dequantize_numpy(reader.gather(rows), kind), room=TOKENS)
        expected, named = session.feed_recorded(ids)
        with FastEngine(model, reader, EngineSettings(context=TOKENS, chunk=64, buckets=(64,))) as engine:
            found = engine.new_sequence().feed(ids)
    tied = np.zeros(TOKENS, bool)
    for name, values in gaps(named, config).items():
        close = STEEP if name.endswith("ple_agreement") else TIE
        tied |= (np.abs(values) < close).reshape(TOKENS, -1).any(axis=1)
    untied = int(np.argmax(tied)) if tied.any() else TOKENS  # what follows a tie depends on it
    errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(errors[:untied].max(initial=0.0)), untied


@pytest.mark.parametrize("seed", [0, 1])
def test_reference_and_fast_agree_on_drawn_architectures(seed: int, tmp_path: Path) -> None:
    error, untied = disagreement(seed, tmp_path)
    assert error <= BOUND, json.dumps({"seed": seed, "untied": untied})
    assert untied >= TOKENS // 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 18))
def test_reference_and_fast_agree_on_more_drawn_architectures(seed: int, tmp_path: Path) -> None:
    error, untied = disagreement(seed, tmp_path)
    print(f"seed {seed}: error {error:.1e} over {untied} of {TOKENS} positions")
    assert error <= BOUND
