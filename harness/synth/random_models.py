"""Small models with an architecture drawn from a seed: what two engines must agree on, whatever the sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from harness.synth.presets import Preset, fitted_hash, plain_config
from harness.synth.recipe import Recipe
from harness.synth.table import TABLE_MASKS
from model_file.config import ModelConfig, PleConfig

_WIDEST = 1024  # values of the residual, so that each model takes a second


def random_recipe(seed: int) -> Recipe:
    """A whole small model. Every loadable table type comes up in as many consecutive seeds as there are types.

    Drawn: n-grams of 2 to 4 tokens with 1 to 4 heads each, 1 to 4 streams, 2 to 6 layers in any order, attention dense
    or in blocks of 2 to 8 tokens, kernels of 2 to 4 taps, 1 to 4 key/value heads and key heads, PLE in any delta net.
    Every second one is as llama.cpp loads it.
    """
    draw = Random(f"plegate/random/{seed}")
    config_of = _config_for_llama_cpp if for_llama_cpp(seed) else _config
    kind = list(TABLE_MASKS)[seed % len(TABLE_MASKS)]
    rows = draw.randrange(1000, 5000)
    return Recipe(
        Preset(
            name="random",
            about="an architecture drawn from the seed",
            config=config_of(draw, rows, max(GGML_QUANT_SIZES[kind][0], 16)),
            special={0: "<|pad|>"},
            padding=0,
            image=None,
            seed=seed,
            rows=rows,
            table_kind=kind,
            weight_kind=GGMLQuantizationType.F32,
            complete=True,
        ),
        seed,
        rows,
        kind,
    )


def for_llama_cpp(seed: int) -> bool:
    """Whether a seed's model is one that llama.cpp loads: every second, with each table type in turn."""
    return sum(divmod(seed, len(TABLE_MASKS))) % 2 == 1


def random_tokens(seed: int, config: ModelConfig, count: int) -> list[int]:
    """Token ids for such a model: repeats, so that n-grams come again, and EOS everywhere, doubled too."""
    draw = Random(f"plegate/random/tokens/{seed}")
    few = [draw.randrange(config.vocab) for _ in range(12)] + [config.ple.hash.eos] * 3
    return [draw.choice(few) if draw.random() < 0.5 else draw.randrange(config.vocab) for _ in range(count)]


def smallest(recipe: Recipe, fails: Callable[[Recipe], bool]) -> Recipe:
    """The model that still fails when every one that is simpler in one thing does not."""
    other = next((other for other in simpler(recipe) if fails(other)), None)
    return recipe if other is None else smallest(other, fails)


def simpler(recipe: Recipe) -> Iterator[Recipe]:
    """The same model with one thing less."""
    config = recipe.preset.config
    layers = range(config.layers)
    for gone in layers:
        left = [layer for layer in layers if layer != gone]
        linear = tuple(config.linear_layers[layer] for layer in left)
        if gone != config.ple.layer and any(linear) and not all(linear):
            ratios = tuple(config.compress_ratios[layer] for layer in left)
            ple = replace(config.ple, layer=left.index(config.ple.layer))
            yield _with(recipe, linear_layers=linear, compress_ratios=ratios, ple=ple)
    for layer, ratio in enumerate(config.compress_ratios):
        if ratio:
            without = tuple(0 if number == layer else each for number, each in enumerate(config.compress_ratios))
            yield _with(recipe, compress_ratios=without)
    for name, value in (("streams", 1), ("low_rank", 3), ("experts_used", 1), ("delta_conv_kernel", 2)):
        if getattr(config, name) != value:
            yield _with(recipe, **{name: value})
    for name, unit in (("heads", "kv_heads"), ("delta_value_heads", "delta_key_heads")):
        if getattr(config, name) != getattr(config, unit):
            yield _with(recipe, **{name: getattr(config, unit)})
        elif getattr(config, unit) != 1:
            yield _with(recipe, **{name: 1, unit: 1})
    if config.ple.conv_kernel != 2:
        yield _with(recipe, ple=replace(config.ple, conv_kernel=2))


def _with(recipe: Recipe, **changes: Any) -> Recipe:
    config = replace(recipe.preset.config, **changes)
    return replace(recipe, preset=replace(recipe.preset, config=config))


def _config_for_llama_cpp(draw: Random, rows: int, row_unit: int) -> ModelConfig:
    """llama.cpp wants two streams or more, blocks of one length in all attention, and a whole number of them read."""
    config = _config(draw, rows, row_unit)
    ratio = max(2, *config.compress_ratios)
    return replace(
        config,
        streams=max(2, config.streams),
        compress_ratios=tuple(0 if is_linear else ratio for is_linear in config.linear_layers),
        top_k=ratio * (config.top_k // ratio),
    )


def _config(draw: Random, rows: int, row_unit: int) -> ModelConfig:
    order, per_order = draw.choice(
        [(n, g) for n in (2, 3, 4) for g in (1, 2, 3, 4) if (n - 1) * g * row_unit <= _WIDEST]
    )
    heads = (order - 1) * per_order
    scales = [scale for scale in (1, 2, 4) if heads * row_unit * scale <= _WIDEST // 4]
    width = heads * row_unit * draw.choice(scales or [1])
    linear = [draw.random() < 0.5 for _ in range(draw.randrange(2, 7))]
    linear[draw.randrange(len(linear) // 2)] = True  # PLE needs one,
    linear[draw.randrange(len(linear) // 2, len(linear))] = False  # and without attention there is no cache
    ratios = tuple(0 if is_linear else draw.choice([0, 0, *range(2, 9)]) for is_linear in linear)
    kv_heads, key_heads = draw.randrange(1, 5), draw.randrange(1, 5)
    head_width, indexer_width = draw.choice([8, 16, 32]), draw.choice([16, 32])
    vocab, experts = draw.randrange(300, 600), draw.randrange(2, 9)
    return plain_config(
        vocab=vocab,
        context=4096,
        width=width,
        streams=draw.randrange(1, 5),
        low_rank=draw.choice([3, 8, 16]),
        linear_layers=tuple(linear),
        heads=kv_heads * draw.randrange(1, 4),
        kv_heads=kv_heads,
        head_width=head_width,
        rope_width=draw.randrange(2, min(head_width, indexer_width) + 1, 2),
        rope_base=draw.choice([1e4, 1e7]),
        indexer_heads=draw.choice([6, 8]),  # with few, scores of exactly 0 are common, and so are ties
        indexer_width=indexer_width,
        top_k=max(*ratios, 2) * draw.randrange(1, 6) + draw.randrange(2),
        compress_ratios=ratios,
        delta_key_heads=key_heads,
        delta_value_heads=key_heads * draw.randrange(1, 4),
        delta_width=draw.choice([8, 16]),
        delta_conv_kernel=draw.randrange(2, 5),
        experts=experts,
        experts_used=draw.randrange(1, experts + 1),
        expert_width=draw.choice([8, 24, 32]),
        shared_width=draw.choice([8, 16, 40]),
        ple=PleConfig(
            layer=draw.choice([layer for layer, is_linear in enumerate(linear) if is_linear]),
            hash=fitted_hash(rows, order, per_order, vocab, eos=draw.randrange(vocab)),
            row_width=width // heads,
            conv_kernel=draw.randrange(2, 5),
        ),
    )
