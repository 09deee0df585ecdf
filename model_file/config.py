"""The architecture that a file describes. All problems of its metadata are collected and raised as one error."""

from __future__ import annotations

from dataclasses import dataclass

from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.hash_constants import HashConstants
from model_file.metadata import Keys, shortened

ARCHITECTURE = "qwen4exp"
_MOST_LAYERS = 4096  # Flash-Next has 48; with a damaged count, each layer would be reported as missing
_LAYER_KEYS = ("block_count", "nextn_predict_layers", "attention.recurrent_layers", "full_attention_interval")


@dataclass(frozen=True)
class PleConfig:
    """The hashed n-gram layer. `row_width` is e; `heads` is n."""

    layer: int
    hash: HashConstants
    row_width: int
    conv_kernel: int

    @property
    def heads(self) -> int:
        """n, the rows that each token reads."""
        return len(self.hash.sizes)

    @property
    def rows_needed(self) -> int:
        """The table must have at least this many rows: the end of the furthest head."""
        return max(offset + size for offset, size in zip(self.hash.offsets, self.hash.sizes, strict=True))


@dataclass(frozen=True)
class ModelConfig:
    """The architecture, without the choices of a run. Letters are those of `reference.shapes`."""

    name: str
    vocab: int
    context: int
    width: int  # d
    streams: int  # s
    low_rank: int  # r
    rms_eps: float
    linear_layers: tuple[bool, ...]  # one per trunk layer: delta net (True) or attention
    skipped_layers: tuple[int, ...]  # trailing MTP blocks; the first is the draft head, others are not run
    heads: int  # h
    kv_heads: int  # g
    head_width: int  # k
    attention_scale: float
    rope_width: int  # o
    rope_base: float
    rope_divisor: float
    indexer_heads: int  # i
    indexer_width: int  # j
    top_k: int
    compress_ratios: tuple[int, ...]  # z per trunk layer; 0 is dense attention
    head_ratio: int  # z of the draft head's attention
    delta_key_heads: int  # a
    delta_value_heads: int  # b
    delta_width: int  # w
    delta_conv_kernel: int
    experts: int  # x
    experts_used: int
    expert_width: int  # f
    shared_width: int  # m
    expert_weights_scale: float
    ple: PleConfig

    @property
    def layers(self) -> int:
        """Trunk layers, MTP blocks not counted."""
        return len(self.linear_layers)

    @property
    def delta_inner(self) -> int:
        """Width of the delta net's values, b*w."""
        return self.delta_value_heads * self.delta_width

    @property
    def delta_channels(self) -> int:
        """c, channels of the delta net's convolution."""
        return 2 * self.delta_key_heads * self.delta_width + self.delta_inner


def config_from(model: GgufFile) -> ModelConfig:
    """The configuration of an open model.

    Raises: InputError with every problem of the metadata, one line each.
    Source: the qwen4exp metadata contract shared by transformers and llama.cpp.
    """
    path = str(model.paths[0])
    if model.architecture != ARCHITECTURE:
        raise InputError(
            f"{path}: general.architecture: found {model.architecture or 'none'!r}, expected {ARCHITECTURE!r}: "
            "this command runs the whole model; `plegate rows` checks the table alone, for other architectures too"
        )
    keys = Keys(model.metadata, f"{ARCHITECTURE}.")
    general = Keys(model.metadata)
    linear, skipped = _layer_kinds(keys)
    ratios = keys.integers("attention.compress_ratios", default=())
    config = ModelConfig(
        name=general.text("general.name", default=""),
        vocab=_vocabulary(keys, model),
        context=keys.integer("context_length"),
        width=keys.integer("embedding_length"),
        streams=keys.integer("hyper_connection.count"),
        low_rank=keys.integer("hyper_connection.low_rank"),
        rms_eps=keys.real("attention.layer_norm_rms_epsilon"),
        linear_layers=linear,
        skipped_layers=skipped,
        heads=keys.integer("attention.head_count"),
        kv_heads=keys.integer("attention.head_count_kv"),
        head_width=keys.integer("attention.key_length"),
        attention_scale=keys.real("attention.scale", default=0.0),
        rope_width=keys.integer("rope.dimension_count"),
        rope_base=keys.real("rope.freq_base", default=10000.0),
        rope_divisor=_rope_divisor(keys),
        indexer_heads=keys.integer("attention.indexer.head_count"),
        indexer_width=keys.integer("attention.indexer.key_length"),
        top_k=keys.integer("attention.indexer.top_k"),
        compress_ratios=ratios[: len(linear)],
        head_ratio=ratios[len(linear)] if skipped and len(ratios) > len(linear) else 0,
        delta_key_heads=keys.integer("ssm.group_count"),
        delta_value_heads=keys.integer("ssm.time_step_rank"),
        delta_width=keys.integer("ssm.state_size"),
        delta_conv_kernel=keys.integer("ssm.conv_kernel", low=2),
        experts=keys.integer("expert_count"),
        experts_used=keys.integer("expert_used_count"),
        expert_width=keys.integer("expert_feed_forward_length"),
        shared_width=keys.integer("expert_shared_feed_forward_length"),
        expert_weights_scale=keys.real("expert_weights_scale", default=0.0),
        ple=_ple(keys),
    )
    _check_relations(keys, config)
    keys.problems += general.problems
    keys.raise_problems()
    return config


def _vocabulary(keys: Keys, model: GgufFile) -> int:
    if keys.has("vocab_size"):
        return keys.integer("vocab_size")
    tokens = "tokenizer.ggml.tokens"
    if tokens in keys.metadata and keys.metadata.type_of(tokens)[1] is not None:
        return keys.metadata.count_of(tokens)
    embedding = model.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding else keys.integer("vocab_size")


def _layer_kinds(keys: Keys) -> tuple[tuple[bool, ...], tuple[int, ...]]:
    """Which trunk layers are delta nets, and the numbers of the blocks behind the trunk."""
    blocks = keys.integer("block_count", high=_MOST_LAYERS)
    mtp = keys.integer("nextn_predict_layers", low=0, default=0)
    trunk = blocks - mtp
    if trunk < 1:
        if keys.sound("block_count", "nextn_predict_layers"):
            keys.problem("nextn_predict_layers", mtp, f"fewer than block_count {blocks}")
        trunk = 1
    flags = keys.flags("attention.recurrent_layers", default=())
    if flags:
        if len(flags) < trunk:
            keys.problem("attention.recurrent_layers", f"{len(flags)} values", f"one for each of {trunk} layers")
        linear = flags[:trunk] + (True,) * (trunk - len(flags))
    else:
        interval = keys.integer("full_attention_interval", default=4)
        linear = tuple((layer + 1) % interval != 0 for layer in range(trunk))
    return linear, tuple(range(trunk, blocks))


def _rope_divisor(keys: Keys) -> float:
    kind = keys.text("rope.scaling.type", default="none")
    factor = keys.real("rope.scaling.factor", default=0.0)
    if kind == "none" or (kind == "linear" and factor == 0):
        return 1.0
    if kind == "linear":
        return factor
    if keys.sound("rope.scaling.type"):
        expected = "none or linear: other scaling is not supported yet"
        keys.problem("rope.scaling.type", f"{kind!r} with factor {factor}", expected)
    return 1.0


def _ple(keys: Keys) -> PleConfig:
    layers = keys.integers("ple.layers")
    if keys.sound("ple.layers") and len(layers) != 1:
        keys.problem("ple.layers", list(layers), "exactly one layer")
    order = keys.integer("ple.ngram_size", low=2)
    per_order = keys.integer("ple.heads_per_ngram")
    heads = (order - 1) * per_order if keys.sound("ple.ngram_size", "ple.heads_per_ngram") else None
    hash_constants = HashConstants(
        multipliers=keys.uint64s("ple.layer_multipliers", order if keys.sound("ple.ngram_size") else None),
        sizes=keys.uint64s("ple.head_vocab_sizes", heads),
        offsets=keys.uint64s("ple.head_offsets", heads),
        heads_per_ngram=per_order,
        eos=keys.integer("ple.eos_token_id", low=0),
    )
    if any(size == 0 for size in hash_constants.sizes):
        keys.problem("ple.head_vocab_sizes", "a size of 0", "at least 1 row per head")
    return PleConfig(
        layer=layers[0] if layers else 0,
        hash=hash_constants,
        row_width=keys.integer("embedding_length_per_layer_input"),
        conv_kernel=keys.integer("ple.conv_kernel"),
    )


def _check_relations(keys: Keys, config: ModelConfig) -> None:
    """What must hold between values that are each fine alone."""

    def divides(key: str, small: int, of: str, large: int) -> None:
        if keys.sound(key, of) and large % small:
            keys.problem(key, small, f"a divisor of {of} = {large}")

    def equals(key: str, expected: int, *others: str) -> None:
        found = keys.integer(key, default=expected)
        if keys.sound(key, *others) and found != expected:
            keys.problem(key, found, f"{expected}, the {' * '.join(others)}")

    divides("attention.head_count_kv", config.kv_heads, "attention.head_count", config.heads)
    divides("ssm.group_count", config.delta_key_heads, "ssm.time_step_rank", config.delta_value_heads)
    equals("ssm.inner_size", config.delta_inner, "ssm.time_step_rank", "ssm.state_size")
    equals("attention.value_length", config.head_width, "attention.key_length")
    if keys.sound("expert_used_count", "expert_count") and config.experts_used > config.experts:
        keys.problem("expert_used_count", config.experts_used, f"at most expert_count {config.experts}")
    _check_rope(keys, config)
    _check_ratios(keys, config)
    _check_ple(keys, config)


def _check_rope(keys: Keys, config: ModelConfig) -> None:
    widths = ("attention.key_length", "attention.indexer.key_length")
    if not keys.sound("rope.dimension_count", *widths):
        return
    if config.rope_width % 2 or config.rope_width > min(config.head_width, config.indexer_width):
        keys.problem(
            "rope.dimension_count",
            config.rope_width,
            f"an even number up to the head width {config.head_width} and the indexer width {config.indexer_width}",
        )
    if config.rope_base == 0:
        keys.problem("rope.freq_base", "0", "a number above 0")
    sections = keys.integers("rope.dimension_sections", default=())
    axes = (*sections, 0, 0, 0)[:3]
    unclaimed = [pair for pair in range(config.rope_width // 2) if pair >= 3 * axes[pair % 3]]
    if sections and unclaimed:
        keys.problem(
            "rope.dimension_sections",
            shortened(list(sections)) + f", which leave rotary pairs {shortened(unclaimed[:20])} to no axis",
            f"sections that claim all {config.rope_width // 2} pairs: engines read the unclaimed ones differently",
        )


def _check_ratios(keys: Keys, config: ModelConfig) -> None:
    ratios, key = config.compress_ratios, "attention.compress_ratios"
    if not keys.sound(key, "attention.indexer.top_k", *_LAYER_KEYS):
        return
    if len(ratios) < config.layers:
        keys.problem(key, f"{len(ratios)} values", f"one for each of {config.layers} layers")
    for layer, ratio in enumerate(ratios):
        if ratio < 0 or (ratio and not config.linear_layers[layer] and config.top_k < ratio):
            keys.problem(key, f"{ratio} for layer {layer}", f"0 to top_k = {config.top_k}")


def _check_ple(keys: Keys, config: ModelConfig) -> None:
    ple = config.ple
    if not keys.sound("ple.layers", *_LAYER_KEYS):
        return
    if ple.layer < 0 or ple.layer >= config.layers:
        keys.problem("ple.layers", ple.layer, f"a layer from 0 to {config.layers - 1}")
    elif not config.linear_layers[ple.layer]:
        linear = [layer for layer, is_linear in enumerate(config.linear_layers) if is_linear]
        keys.problem("ple.layers", f"{ple.layer}, an attention layer", f"a linear layer, one of {linear}")
    _check_rows(keys, config)


def _check_rows(keys: Keys, config: ModelConfig) -> None:
    ple, constants = config.ple, ("ple.head_vocab_sizes", "ple.head_offsets", "embedding_length_per_layer_input")
    if keys.sound("embedding_length", *constants) and ple.heads * ple.row_width != config.width:
        keys.problem(
            "embedding_length_per_layer_input",
            ple.row_width,
            f"{config.width // ple.heads}: {ple.heads} heads of it make embedding_length {config.width}",
        )
    if keys.sound("ple.eos_token_id", "vocab_size") and ple.hash.eos >= config.vocab:
        keys.problem("ple.eos_token_id", ple.hash.eos, f"a token below vocab_size {config.vocab}")
