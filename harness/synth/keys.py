"""The metadata of a made model: the keys that `model_file.config` reads, and what engines want beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFValueType

from harness.synth.gguf_writer import Entry
from harness.synth.presets import Preset, every
from harness.synth.vocabulary import PRE_TOKENIZER, Vocabulary
from model_file.config import ARCHITECTURE, ModelConfig

RECIPE_VERSION = 1  # raise it whenever the bytes of a model change; then record its digests anew
_U32, _I32, _U64 = GGUFValueType.UINT32, GGUFValueType.INT32, GGUFValueType.UINT64
_F32, _BOOL, _STRING, _ARRAY = GGUFValueType.FLOAT32, GGUFValueType.BOOL, GGUFValueType.STRING, GGUFValueType.ARRAY


def metadata_of(preset: Preset, config: ModelConfig, seed: int, vocabulary: Vocabulary) -> list[Entry]:
    """The metadata, in file order."""
    return [
        Entry("general.architecture", _STRING, ARCHITECTURE),
        Entry("general.name", _STRING, config.name),
        Entry("general.description", _STRING, "Random weights made by plegate synth, for tests and benchmarks"),
        Entry("plegate.synth.preset", _STRING, preset.name),
        Entry("plegate.synth.seed", _U64, seed),
        Entry("plegate.synth.recipe", _U32, RECIPE_VERSION),
        *_architecture(config),
        *[_key(key, _F32, value) for key, value in _scales(config).items() if value],
        *_ple(config),
        *([] if preset.image is None else [_key("ple.image_token_id", _U32, preset.image)]),
        *_tokenizer(preset, vocabulary),
    ]


def _key(key: str, kind: GGUFValueType, value: Any) -> Entry:
    return Entry(f"{ARCHITECTURE}.{key}", kind, value)


def _array(key: str, items: GGUFValueType, values: tuple[int, ...]) -> Entry:
    return Entry(f"{ARCHITECTURE}.{key}", _ARRAY, list(values), items)


def _architecture(config: ModelConfig) -> list[Entry]:
    return [
        _key("vocab_size", _U32, config.vocab),
        _key("block_count", _U32, config.layers + len(config.skipped_layers)),
        *([_key("nextn_predict_layers", _U32, len(config.skipped_layers))] if config.skipped_layers else []),
        _key("context_length", _U32, config.context),
        _key("embedding_length", _U32, config.width),
        _key("feed_forward_length", _U32, config.expert_width),
        _key("attention.head_count", _U32, config.heads),
        _key("attention.head_count_kv", _U32, config.kv_heads),
        _key("attention.key_length", _U32, config.head_width),
        _key("attention.value_length", _U32, config.head_width),
        _key("attention.layer_norm_rms_epsilon", _F32, config.rms_eps),
        _key("rope.freq_base", _F32, config.rope_base),
        _key("rope.dimension_count", _U32, config.rope_width),
        _array("rope.dimension_sections", _I32, (*((config.rope_width // 2 + 2 - axis) // 3 for axis in range(3)), 0)),
        _key("expert_count", _U32, config.experts),
        _key("expert_used_count", _U32, config.experts_used),
        _key("expert_feed_forward_length", _U32, config.expert_width),
        _key("expert_shared_feed_forward_length", _U32, config.shared_width),
        _key("ssm.conv_kernel", _U32, config.delta_conv_kernel),
        _key("ssm.state_size", _U32, config.delta_width),
        _key("ssm.group_count", _U32, config.delta_key_heads),
        _key("ssm.time_step_rank", _U32, config.delta_value_heads),
        _key("ssm.inner_size", _U32, config.delta_inner),
        _layer_kinds(config.linear_layers),
        _key("hyper_connection.count", _U32, config.streams),
        _key("hyper_connection.low_rank", _U32, config.low_rank),
        _key("attention.indexer.head_count", _U32, config.indexer_heads),
        _key("attention.indexer.key_length", _U32, config.indexer_width),
        _key("attention.indexer.top_k", _U32, config.top_k),
        _array(
            "attention.compress_ratios",
            _I32,
            config.compress_ratios + (config.head_ratio,) * bool(config.skipped_layers),
        ),
    ]


def _scales(config: ModelConfig) -> dict[str, float]:
    return {"attention.scale": config.attention_scale, "expert_weights_scale": config.expert_weights_scale}


def _layer_kinds(linear: tuple[bool, ...]) -> Entry:
    """The interval of attention layers where they have one, else a flag for each layer."""
    interval = (*linear, False).index(False) + 1
    if linear == every(interval, len(linear)):
        return _key("full_attention_interval", _U32, interval)
    return _array("attention.recurrent_layers", _U32, tuple(map(int, linear)))


def _ple(config: ModelConfig) -> list[Entry]:
    ple, constants = config.ple, config.ple.hash
    return [
        _key("embedding_length_per_layer_input", _U32, ple.row_width),
        _array("ple.layers", _I32, (ple.layer,)),
        _key("ple.ngram_size", _U32, constants.order),
        _key("ple.heads_per_ngram", _U32, constants.heads_per_ngram),
        _key("ple.conv_kernel", _U32, ple.conv_kernel),
        _key("ple.eos_token_id", _U32, constants.eos),
        _array("ple.layer_multipliers", _U64, constants.multipliers),
        _array("ple.head_offsets", _U64, constants.offsets),
        _array("ple.head_vocab_sizes", _U64, constants.sizes),
    ]


def _tokenizer(preset: Preset, vocabulary: Vocabulary) -> list[Entry]:
    return [
        Entry("tokenizer.ggml.model", _STRING, "gpt2"),
        Entry("tokenizer.ggml.pre", _STRING, PRE_TOKENIZER),
        Entry("tokenizer.ggml.tokens", _ARRAY, vocabulary.tokens, _STRING),
        Entry("tokenizer.ggml.token_type", _ARRAY, vocabulary.types, _I32),
        Entry("tokenizer.ggml.merges", _ARRAY, vocabulary.merges, _STRING),
        Entry("tokenizer.ggml.eos_token_id", _U32, preset.config.ple.hash.eos),
        Entry("tokenizer.ggml.padding_token_id", _U32, preset.padding),
        Entry("tokenizer.ggml.add_bos_token", _BOOL, False),
        *([] if preset.chat is None else [Entry("tokenizer.chat_template", _STRING, preset.chat)]),
    ]


def shard_keys(number: int, count: int, tensors: int) -> list[Entry]:
    """What each shard of a split model says, without the model's own metadata; tensors: those of all shards."""
    return [
        Entry("general.architecture", _STRING, ARCHITECTURE),
        Entry("split.no", GGUFValueType.UINT16, number),
        Entry("split.count", GGUFValueType.UINT16, count),
        Entry("split.tensors.count", _I32, tensors),
    ]


def shard_paths(out: Path, count: int) -> list[Path]:
    """The names of a split model's shards, after `out`."""
    return [out.with_name(f"{out.name.removesuffix('.gguf')}-{n + 1:05d}-of-{count:05d}.gguf") for n in range(count)]
