"""The models that `plegate synth` makes: architectures, vocabularies and default tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType

from model_file.config import ModelConfig, PleConfig
from model_file.errors import InputError
from model_file.hash_constants import CHECKPOINT_SEED, HashConstants, checkpoint_multipliers, offsets_of, prime_sizes

plain_config = partial(
    ModelConfig,
    name="",  # which the recipe gives
    rms_eps=float(np.float32(1e-6)),  # as the file will hold it
    skipped_layers=(),
    head_ratio=0,
    attention_scale=0.0,
    rope_base=1e7,
    rope_divisor=1.0,
    expert_weights_scale=0.0,
)
"""A configuration with what nearly all made models have in common."""


@dataclass(frozen=True)
class Preset:
    """An architecture with its vocabulary, its number formats and its default table.

    config: with the hash of the default table. special: reserved token ids, named. base_limit: head sizes start
    no higher (None: as high as the rows allow). complete: every tensor of the model, or the table alone. tied: the
    embedding serves as output matrix too. kinds: number formats of tensors by name, of those that have not weight_kind.
    chat: a template for conversations. served: as files of that size are: the table in a shard of its own, a vocabulary
    without unused tokens, and any number of layers.
    """

    name: str
    about: str
    config: ModelConfig
    special: dict[int, str]
    padding: int
    image: int | None
    seed: int
    rows: int
    table_kind: GGMLQuantizationType
    weight_kind: GGMLQuantizationType
    complete: bool
    base_limit: int | None = None
    tied: bool = False
    kinds: Mapping[str, GGMLQuantizationType] = field(default_factory=dict)
    chat: str | None = None
    served: bool = False


def fitted_hash(
    rows: int, order: int, heads_per_ngram: int, vocab: int, eos: int, base_limit: int | None = None
) -> HashConstants:
    """Constants by the checkpoint rule whose head sizes fit in so many rows, as high as they fit.

    Raises: InputError when there are too few rows.
    """
    heads = (order - 1) * heads_per_ngram
    fewest_rows = sum(prime_sizes(2, heads))
    if not fewest_rows <= rows < 2**40:
        raise InputError(f"a table of {rows} rows: expected {fewest_rows} (for {heads} heads) up to 2^40 - 1 rows")
    base = rows // heads if base_limit is None else min(rows // heads, base_limit)
    while (excess := sum(sizes := prime_sizes(base, heads)) - rows) > 0:
        base -= -(-excess // heads)
    multipliers = checkpoint_multipliers(CHECKPOINT_SEED, 0, order, vocab)
    return HashConstants(multipliers, sizes, offsets_of(sizes), heads_per_ngram, eos)


def every(interval: int, blocks: int) -> tuple[bool, ...]:
    """Which layers are delta nets, where the last of each `interval` layers is attention."""
    return tuple((block + 1) % interval != 0 for block in range(blocks))


def ratios(ratio: int, linear: tuple[bool, ...]) -> tuple[int, ...]:
    """The same ratio for every attention layer."""
    return tuple(0 if is_linear else ratio for is_linear in linear)


_NANO_LAYERS, _NANO_VOCAB, _NANO_ROWS = every(4, 8), 4096, 1_000_064
_NANO = plain_config(
    vocab=_NANO_VOCAB,
    context=65536,
    width=640,
    streams=4,
    low_rank=32,
    linear_layers=_NANO_LAYERS,
    heads=8,
    kv_heads=2,
    head_width=64,
    rope_width=32,
    indexer_heads=8,
    indexer_width=64,
    top_k=64,
    compress_ratios=ratios(4, _NANO_LAYERS),
    delta_key_heads=2,
    delta_value_heads=6,
    delta_width=64,
    delta_conv_kernel=4,
    experts=16,
    experts_used=4,
    expert_width=64,
    shared_width=64,
    ple=PleConfig(layer=1, hash=fitted_hash(_NANO_ROWS, 3, 2, _NANO_VOCAB, eos=1), row_width=160, conv_kernel=4),
)

# The smallest shape with all of a model's parts: four-grams, blocks of three tokens, two groups of keys and values. Its
# attention is the last layer, so that a near-tie between blocks changes one position and no other.
_PICO_LAYERS = every(3, 3)
_PICO = plain_config(
    vocab=512,
    context=16384,
    width=192,
    streams=2,
    low_rank=16,
    linear_layers=_PICO_LAYERS,
    heads=4,
    kv_heads=2,
    head_width=32,
    rope_width=16,
    indexer_heads=2,
    indexer_width=32,
    top_k=24,
    compress_ratios=ratios(3, _PICO_LAYERS),
    delta_key_heads=2,
    delta_value_heads=4,
    delta_width=32,
    delta_conv_kernel=4,
    experts=8,
    experts_used=2,
    expert_width=32,
    shared_width=32,
    ple=PleConfig(layer=1, hash=fitted_hash(200_000, 4, 2, 512, eos=1), row_width=32, conv_kernel=4),
)

# What `pico` has not: dense attention, both scales, no layer before the PLE layer, an embedding that is the output too.
_FEMTO = plain_config(
    vocab=512,
    context=16384,
    width=64,
    streams=3,
    low_rank=8,
    linear_layers=every(2, 2),
    heads=2,
    kv_heads=1,
    head_width=16,
    attention_scale=0.375,
    rope_width=8,
    indexer_heads=2,
    indexer_width=16,
    top_k=16,
    compress_ratios=(0, 0),
    delta_key_heads=1,
    delta_value_heads=2,
    delta_width=16,
    delta_conv_kernel=3,
    experts=4,
    experts_used=2,
    expert_width=16,
    shared_width=16,
    expert_weights_scale=1.5,
    ple=PleConfig(layer=0, hash=fitted_hash(50_000, 2, 2, 512, eos=1), row_width=32, conv_kernel=2),
)


def with_layers(config: ModelConfig, layers: int) -> ModelConfig:
    """The same with so many layers: delta nets, every fourth of them attention in blocks of four tokens."""
    linear = every(4, layers)
    return replace(config, linear_layers=linear, compress_ratios=ratios(4, linear))


def _flash_next(blocks: int, experts: int, experts_used: int, vocab: int, constants: HashConstants) -> ModelConfig:
    """Flash-Next's sizes per layer, with another number of layers and experts."""
    return plain_config(
        vocab=vocab,
        context=262144,
        width=2560,
        streams=4,
        low_rank=320,
        linear_layers=every(4, blocks),
        heads=24,
        kv_heads=2,
        head_width=256,
        rope_width=64,
        indexer_heads=4,
        indexer_width=128,
        top_k=2048,
        compress_ratios=ratios(4, every(4, blocks)),
        delta_key_heads=16,
        delta_value_heads=48,
        delta_width=128,
        delta_conv_kernel=4,
        experts=experts,
        experts_used=experts_used,
        expert_width=640,
        shared_width=640,
        ple=PleConfig(layer=1, hash=constants, row_width=160, conv_kernel=4),
    )


_SMALL_SPECIAL = {0: "<|pad|>", 1: "<|endoftext|>"}
_EOS = 248_044
_TABLE_VOCAB, _TABLE_ROWS, _MINI_ROWS = 248_320, (1 << 30) // 90, 1_600_000
FLASH_NEXT_ROWS = 320_001_536
FLASH_NEXT_BASE = 20_000_000  # its sixteen head sizes are the primes from here on
_CHAT = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
_Q8_0 = ("down", "up", "inject", "ssm_beta", "ssm_alpha")  # beside the large matrices, as llama-quantize has it
_SERVED_KINDS = {
    "token_embd.weight": GGMLQuantizationType.Q6_K,
    "output.weight": GGMLQuantizationType.Q6_K,
    "ffn_gate_exps.weight": GGMLQuantizationType.Q4_K,
    "ffn_up_exps.weight": GGMLQuantizationType.Q4_K,
    "ffn_down_exps.weight": GGMLQuantizationType.Q5_1,  # 640 is no multiple of 256
    **{f"{name}.weight": GGMLQuantizationType.Q8_0 for name in _Q8_0},
}

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="nano",
            about="a whole small model: 8 layers, 4 PLE heads, a table of 1,000,064 rows of 90 bytes, F32 weights",
            config=_NANO,
            special=_SMALL_SPECIAL,
            padding=0,
            image=None,
            seed=0,
            rows=_NANO_ROWS,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.F32,
            complete=True,
        ),
        Preset(
            name="pico",
            about="the smallest whole model: 3 layers, 6 PLE heads, 200,000 rows; EOS is a token like any other",
            config=_PICO,
            special={0: "<|pad|>"},
            padding=0,
            image=None,
            seed=0,
            rows=200_000,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.F32,
            complete=True,
        ),
        Preset(
            name="femto",
            about="a whole model of 2 layers with what `pico` has not: dense attention, scales, tied output; Q8_0 rows",
            config=_FEMTO,
            special={0: "<|pad|>"},
            padding=0,
            image=None,
            seed=0,
            rows=50_000,
            table_kind=GGMLQuantizationType.Q8_0,
            weight_kind=GGMLQuantizationType.F32,
            complete=True,
            tied=True,
        ),
        Preset(
            name="table",
            about="Flash-Next's metadata, vocabulary size and hash with nothing but the table, of any size and type",
            config=_flash_next(
                48, 512, 10, _TABLE_VOCAB, fitted_hash(_TABLE_ROWS, 3, 8, _TABLE_VOCAB, _EOS, FLASH_NEXT_BASE)
            ),
            special={_EOS: "<|endoftext|>", 248056: "<|image_pad|>"},
            padding=_EOS,
            image=248_056,
            seed=0,
            rows=_TABLE_ROWS,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.F32,
            complete=False,
            base_limit=FLASH_NEXT_BASE,
        ),
        Preset(
            name="mini",
            about="a whole model with Flash-Next's sizes per layer, 4 layers and 8 experts, Q8_0 weights",
            config=_flash_next(4, 8, 2, 4096, fitted_hash(_MINI_ROWS, 3, 8, 4096, eos=1)),
            special=_SMALL_SPECIAL,
            padding=0,
            image=None,
            seed=0,
            rows=_MINI_ROWS,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.Q8_0,
            complete=True,
        ),
        Preset(
            name="flash",
            about="Flash-Next's sizes per layer with all 512 experts, packed as served files are, 8 layers",
            config=_flash_next(
                8, 512, 10, _TABLE_VOCAB, fitted_hash(FLASH_NEXT_ROWS, 3, 8, _TABLE_VOCAB, _EOS, FLASH_NEXT_BASE)
            ),
            special={
                _EOS: "<|endoftext|>",
                248_045: "<|im_start|>",
                248_046: "<|im_end|>",
                248_056: "<|image_pad|>",
            },
            padding=_EOS,
            image=248_056,
            seed=0,
            rows=FLASH_NEXT_ROWS,
            table_kind=GGMLQuantizationType.IQ4_NL,
            weight_kind=GGMLQuantizationType.Q8_0,
            complete=True,
            base_limit=FLASH_NEXT_BASE,
            kinds=_SERVED_KINDS,
            chat=_CHAT,
            served=True,
        ),
    )
}
