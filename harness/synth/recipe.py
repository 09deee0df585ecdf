"""From a preset and its options to metadata and a list of tensors: all that decides the bytes of a made model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gguf import GGMLQuantizationType, GGUFValueType

from harness.synth.bits import BitStream, Bytes
from harness.synth.gguf_writer import Entry, PlannedTensor, file_bytes
from harness.synth.presets import PRESETS, Dimensions, Preset
from harness.synth.table import row_bytes, table_blocks
from harness.synth.vocabulary import PRE_TOKENIZER, Vocabulary, build_vocabulary
from harness.synth.weights import Weight, model_weights
from model_file.errors import InputError
from model_file.hash_constants import CHECKPOINT_SEED, checkpoint_multipliers, offsets_of, prime_sizes
from model_file.tensors import TABLE

RECIPE_VERSION = 1  # raise it whenever the bytes of a model change; then record its digests anew
_PIECE_BYTES = 8 << 20
_U32, _I32, _U64 = GGUFValueType.UINT32, GGUFValueType.INT32, GGUFValueType.UINT64
_F32, _BOOL, _STRING, _ARRAY = GGUFValueType.FLOAT32, GGUFValueType.BOOL, GGUFValueType.STRING, GGUFValueType.ARRAY


@dataclass(frozen=True)
class Recipe:
    """One model to make. Two equal recipes give equal bytes."""

    preset: Preset
    seed: int
    rows: int
    table_kind: GGMLQuantizationType

    @property
    def label(self) -> str:
        """The name that its recorded digest and its cached file go by."""
        sizes = self.preset.dimensions
        return f"{self.preset.name}-seed{self.seed}-{self.rows}x{sizes.row_width}-{self.table_kind.name}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one packed table row."""
        return row_bytes(self.table_kind, self.preset.dimensions.row_width)

    def entries(self) -> list[Entry]:
        """The metadata, in file order."""
        return _entries(self)

    def tensors(self) -> list[PlannedTensor]:
        """The tensors, in file order, each with its bytes to come."""
        return _tensors(self)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return file_bytes(self.entries(), self.tensors())


def make_recipe(
    name: str,
    *,
    seed: int | None = None,
    rows: int | None = None,
    gib: float | None = None,
    table_kind: GGMLQuantizationType | None = None,
    row_width: int | None = None,
) -> Recipe:
    """The recipe of a preset; an option left out takes the preset's default.

    Raises: InputError for an option that does not fit the preset, naming it.
    """
    if name not in PRESETS:
        raise InputError(f"{name}: no such preset; choose one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    seed = preset.seed if seed is None else seed
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: expected a number in 0..2^63-1")
    if rows is not None and gib is not None:
        raise InputError("--rows and --gib both give the table's size: use one of them")
    if row_width is not None:
        if preset.complete:
            raise InputError(f"--width {row_width}: rows of {name} have a fixed width; leave it out, or use `table`")
        sizes = preset.dimensions
        preset = replace(preset, dimensions=replace(sizes, width=row_width * sizes.ple_heads))
    kind = preset.table_kind if table_kind is None else table_kind
    packed_bytes = row_bytes(kind, preset.dimensions.row_width)
    if gib is not None:
        if not math.isfinite(gib * 2**30):
            raise InputError(f"--gib {gib}: expected a number of GiB, such as 6 or 0.5")
        rows = int(gib * 2**30) // packed_bytes
    recipe = Recipe(preset, seed, preset.rows if rows is None else rows, kind)
    head_sizes(recipe)
    return recipe


def head_sizes(recipe: Recipe) -> tuple[int, ...]:
    """Consecutive primes, one per head, that together fit in the table's rows, as high as they fit.

    The table of Flash-Next's own size (or more) gets Flash-Next's own primes. Raises: InputError when there are too
    few rows.
    """
    heads = recipe.preset.dimensions.ple_heads
    fewest_rows = sum(prime_sizes(2, heads))
    if not fewest_rows <= recipe.rows < 2**40:
        raise InputError(
            f"a table of {recipe.rows} rows: expected {fewest_rows} (for {heads} heads) up to 2^40 - 1 rows"
        )
    base = recipe.rows // heads
    if recipe.preset.base_limit is not None:
        base = min(base, recipe.preset.base_limit)
    while (excess := sum(sizes := prime_sizes(base, heads)) - recipe.rows) > 0:
        base -= -(-excess // heads)
    return sizes


def _tensors(recipe: Recipe) -> list[PlannedTensor]:
    preset, sizes = recipe.preset, recipe.preset.dimensions
    table = PlannedTensor(TABLE, (recipe.rows, sizes.row_width), recipe.table_kind, partial(_table_pieces, recipe))
    if not preset.complete:
        return [table]
    quiet = build_vocabulary(preset.vocab, preset.special).quiet
    weights = model_weights(sizes, preset.vocab, quiet, preset.weight_kind)
    return [*(_planned(weight, recipe) for weight in weights), table]


def _planned(weight: Weight, recipe: Recipe) -> PlannedTensor:
    def pieces() -> Iterator[Bytes]:
        return weight.fill(BitStream(recipe.preset.name, recipe.seed, weight.name), weight.kind, weight.shape)

    return PlannedTensor(weight.name, weight.shape, weight.kind, pieces)


def _table_pieces(recipe: Recipe) -> Iterator[Bytes]:
    stream = BitStream(recipe.preset.name, recipe.seed, TABLE)
    at_once = max(_PIECE_BYTES // recipe.row_bytes // 4 * 4, 4)  # times 4: whole 8-byte words, no leftover to copy
    for start in range(0, recipe.rows, at_once):
        count = min(at_once, recipe.rows - start)
        yield table_blocks(stream.take(count * recipe.row_bytes), recipe.table_kind)


def _entries(recipe: Recipe) -> list[Entry]:
    preset = recipe.preset
    vocabulary = build_vocabulary(preset.vocab, preset.special)
    return [
        Entry("general.architecture", _STRING, "qwen4exp"),
        Entry("general.name", _STRING, f"plegate {recipe.label}"),
        Entry("general.description", _STRING, "Random weights made by plegate synth, for tests and benchmarks"),
        Entry("plegate.synth.preset", _STRING, preset.name),
        Entry("plegate.synth.seed", _U64, recipe.seed),
        Entry("plegate.synth.recipe", _U32, RECIPE_VERSION),
        *_architecture(preset.dimensions, preset.vocab),
        *_ple(recipe),
        *_tokenizer(preset, vocabulary),
    ]


def _arch(key: str, kind: GGUFValueType, value: Any) -> Entry:
    return Entry(f"qwen4exp.{key}", kind, value)


def _array(key: str, items: GGUFValueType, value: list[int]) -> Entry:
    return Entry(f"qwen4exp.{key}", _ARRAY, value, items)


def _architecture(sizes: Dimensions, vocab: int) -> list[Entry]:
    ratios = [sizes.compress_ratio if sizes.is_attention(block) else 0 for block in range(sizes.blocks)]
    return [
        _arch("vocab_size", _U32, vocab),
        _arch("block_count", _U32, sizes.blocks),
        _arch("context_length", _U32, sizes.context),
        _arch("embedding_length", _U32, sizes.width),
        _arch("feed_forward_length", _U32, sizes.expert_width),
        _arch("attention.head_count", _U32, sizes.query_heads),
        _arch("attention.head_count_kv", _U32, sizes.kv_heads),
        _arch("attention.key_length", _U32, sizes.head_width),
        _arch("attention.value_length", _U32, sizes.head_width),
        _arch("attention.layer_norm_rms_epsilon", _F32, 1e-6),
        _arch("rope.freq_base", _F32, 1e7),
        _arch("rope.dimension_count", _U32, sizes.rotated),
        _array("rope.dimension_sections", _I32, list(sizes.rope_sections)),
        _arch("expert_count", _U32, sizes.experts),
        _arch("expert_used_count", _U32, sizes.experts_used),
        _arch("expert_feed_forward_length", _U32, sizes.expert_width),
        _arch("expert_shared_feed_forward_length", _U32, sizes.expert_width),
        _arch("ssm.conv_kernel", _U32, sizes.conv_kernel),
        _arch("ssm.state_size", _U32, sizes.state_width),
        _arch("ssm.group_count", _U32, sizes.key_heads),
        _arch("ssm.time_step_rank", _U32, sizes.value_heads),
        _arch("ssm.inner_size", _U32, sizes.value_heads * sizes.state_width),
        _arch("full_attention_interval", _U32, sizes.attention_interval),
        _arch("hyper_connection.count", _U32, sizes.streams),
        _arch("hyper_connection.low_rank", _U32, sizes.low_rank),
        _arch("attention.indexer.head_count", _U32, sizes.indexer_heads),
        _arch("attention.indexer.key_length", _U32, sizes.indexer_width),
        _arch("attention.indexer.top_k", _U32, sizes.top_k),
        _array("attention.compress_ratios", _I32, ratios),
    ]


def _ple(recipe: Recipe) -> list[Entry]:
    preset, sizes = recipe.preset, recipe.preset.dimensions
    heads = head_sizes(recipe)
    multipliers = checkpoint_multipliers(CHECKPOINT_SEED, 0, sizes.ngram, preset.vocab)
    entries = [
        _arch("embedding_length_per_layer_input", _U32, sizes.row_width),
        _array("ple.layers", _I32, [sizes.ple_layer]),
        _arch("ple.ngram_size", _U32, sizes.ngram),
        _arch("ple.heads_per_ngram", _U32, sizes.heads_per_ngram),
        _arch("ple.conv_kernel", _U32, sizes.ple_conv_kernel),
        _arch("ple.eos_token_id", _U32, preset.eos),
        _array("ple.layer_multipliers", _U64, list(multipliers)),
        _array("ple.head_offsets", _U64, list(offsets_of(heads))),
        _array("ple.head_vocab_sizes", _U64, list(heads)),
    ]
    return entries if preset.image is None else [*entries, _arch("ple.image_token_id", _U32, preset.image)]


def _tokenizer(preset: Preset, vocabulary: Vocabulary) -> list[Entry]:
    return [
        Entry("tokenizer.ggml.model", _STRING, "gpt2"),
        Entry("tokenizer.ggml.pre", _STRING, PRE_TOKENIZER),
        Entry("tokenizer.ggml.tokens", _ARRAY, vocabulary.tokens, _STRING),
        Entry("tokenizer.ggml.token_type", _ARRAY, vocabulary.types, _I32),
        Entry("tokenizer.ggml.merges", _ARRAY, vocabulary.merges, _STRING),
        Entry("tokenizer.ggml.eos_token_id", _U32, preset.eos),
        Entry("tokenizer.ggml.padding_token_id", _U32, preset.padding),
        Entry("tokenizer.ggml.add_bos_token", _BOOL, False),
    ]
