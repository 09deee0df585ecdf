"""The one table of tensors: what a qwen4exp file must hold, in which shape, and what is special about each.

Everything that names a tensor goes by it: the check of a file, both loaders, the maker of models. Shapes are in NumPy
order (a GGUF matrix of ne = [in, out] is "out in") and in the letters of `reference.shapes`.

Source: the qwen4exp contract shared by transformers and llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from model_file.config import ModelConfig
from model_file.shard import TensorInfo


@dataclass(frozen=True)
class Tensor:
    """One kind of tensor.

    name: in the file, after the prefix of its layer and part. shape: as the model uses it. quantized: a large matrix,
    which writers store in a quantized type. scaled: may carry a `.scale`, which multiplies its product's result, and an
    `.input_scale`, which no engine applies. biased: may carry a `.bias`, which no engine applies. gain: stored as
    1 + w. optional: the model has something in its place.
    """

    name: str
    shape: str
    quantized: bool = False
    scaled: bool = False
    biased: bool = False
    gain: bool = False
    optional: bool = False

    @property
    def field(self) -> str:
        """What the pytrees of the reference call it."""
        return self.name.removesuffix(".weight").removesuffix(".bias")

    @property
    def stored(self) -> tuple[str, ...]:
        """The shapes that writers give it, the usual one first."""
        return _STORED.get(self.shape, (self.shape,))


_STORED = {"s d": ("sd", "s d"), "d": ("d", "1 d")}  # the same values, with one axis more or less


def _matrix(name: str, shape: str, *, biased: bool = False) -> Tensor:
    return Tensor(f"{name}.weight", shape, quantized=True, scaled=True, biased=biased)


def _gain(name: str, shape: str) -> Tensor:
    return Tensor(f"{name}.weight", shape, gain=True)


TABLE = "per_layer_token_embd.weight"  # [rows, e]; its rows are read one by one, by whoever feeds the model

MODEL = (
    Tensor("token_embd.weight", "v d", quantized=True),
    Tensor("output.weight", "v d", quantized=True, scaled=True, optional=True),  # absent: token_embd serves
)
OUTPUT_CONNECTION = (
    _gain("norm", "s d"),
    Tensor("down.weight", "r sd"),
    Tensor("up.weight", "sd r"),
)
HYPER_CONNECTION = (*OUTPUT_CONNECTION, Tensor("inject.weight", "s sd"))
DELTA_NET = (
    _matrix("attn_qkv", "c d"),
    _matrix("attn_gate", "bw d"),
    Tensor("ssm_conv1d.weight", "c K"),
    Tensor("ssm_dt.bias", "b"),
    Tensor("ssm_a", "b"),
    Tensor("ssm_beta.weight", "b d", scaled=True),
    Tensor("ssm_alpha.weight", "b d", scaled=True),
    Tensor("ssm_norm.weight", "w"),
    _matrix("ssm_out", "d bw"),
)
ATTENTION = (
    _matrix("attn_q", "hk2 d", biased=True),
    _matrix("attn_k", "gk d", biased=True),
    _matrix("attn_v", "gk d", biased=True),
    _matrix("attn_output", "d hk"),
    _gain("attn_q_norm", "k"),
    _gain("attn_k_norm", "k"),
)
INDEXER = (
    Tensor("q_proj.weight", "ij d"),
    Tensor("k_proj.weight", "j d"),
    _gain("q_norm", "j"),
    _gain("k_norm", "j"),
)
PLE = (
    Tensor("ple_key.weight", "sd ne", quantized=True),
    Tensor("ple_value.weight", "d ne", quantized=True),
    _gain("ple_norm_key", "s d"),
    _gain("ple_norm_query", "s d"),
    _gain("ple_norm_conv", "s d"),
    Tensor("ple_conv1d.weight", "sd P"),
)
EXPERTS = (
    Tensor("ffn_gate_inp.weight", "x d"),
    _matrix("ffn_gate_exps", "x f d"),
    _matrix("ffn_up_exps", "x f d"),
    _matrix("ffn_down_exps", "x d f"),
    Tensor("ffn_gate_inp_shexp.weight", "d"),
    _matrix("ffn_gate_shexp", "m d"),
    _matrix("ffn_up_shexp", "m d"),
    _matrix("ffn_down_shexp", "d m"),
)
HEAD = (
    _matrix("eh_proj", "d d2"),
    _gain("enorm", "d"),
    _gain("hnorm", "s d"),
)
"""Of an MTP block, beside everything that an attention layer holds."""
FUSED, FUSED_PARTS = _matrix("ffn_gate_up_exps", "x f2 d"), EXPERTS[1:3]
"""Some writers store the two parts as this one, the rows of the first before those of the second."""

Group = tuple[Tensor, ...]


def layer_groups(config: ModelConfig, layer: int) -> dict[str, tuple[str, Group]]:
    """The parts of a trunk layer, each with the prefix of its tensors, in the order of a file."""
    linear, ratio = config.linear_layers[layer], config.compress_ratios[layer]
    return _block_groups(f"blk.{layer}.", linear, ratio, ple=layer == config.ple.layer)


def head_groups(config: ModelConfig) -> dict[str, tuple[str, Group]]:
    """The parts of the draft head, the block behind the trunk; none where the model was made without one."""
    if not config.skipped_layers:
        return {}
    block = f"blk.{config.layers}."
    parts = {"head": (block + "nextn.", HEAD), "hc_head": (block + "nextn.hc_head_", OUTPUT_CONNECTION)}
    return _block_groups(block, linear=False, ratio=config.head_ratio, ple=False) | parts


def _block_groups(block: str, linear: bool, ratio: int, ple: bool) -> dict[str, tuple[str, Group]]:
    parts = {
        "hc_attn": (block + "hc_attn_", HYPER_CONNECTION),
        "hc_ffn": (block + "hc_ffn_", HYPER_CONNECTION),
        "mixer": (block, DELTA_NET if linear else ATTENTION),
    }
    if not linear and ratio:
        parts["indexer"] = (block + "indexer.", INDEXER)
    if ple:
        parts["ple"] = (block, PLE)
    return parts | {"experts": (block, EXPERTS)}


def trunk_groups(config: ModelConfig) -> Iterator[tuple[str, Group]]:
    """All tensors of a model but the PLE table: prefixes and groups, in the order of a file."""
    yield "", MODEL
    yield "output_hc_", OUTPUT_CONNECTION
    for layer in range(config.layers):
        yield from layer_groups(config, layer).values()


def as_stored(prefix: str, group: Group, present: Mapping[str, TensorInfo]) -> Group:
    """The group as a file has it: with the fused experts where the file has them."""
    if prefix + FUSED.name not in present:
        return group
    return tuple(dict.fromkeys(FUSED if tensor in FUSED_PARTS else tensor for tensor in group))


def sizes(shape: str, config: ModelConfig) -> tuple[int, ...]:
    """A shape in letters as numbers. A term of several letters or digits is their product: "hk2" is h * k * 2."""
    letters = _letters(config)
    return tuple(prod(int(sign) if sign.isdigit() else letters[sign] for sign in term) for term in shape.split())


def _letters(config: ModelConfig) -> dict[str, int]:
    return {
        "v": config.vocab,
        "d": config.width,
        "s": config.streams,
        "r": config.low_rank,
        "h": config.heads,
        "g": config.kv_heads,
        "k": config.head_width,
        "i": config.indexer_heads,
        "j": config.indexer_width,
        "c": config.delta_channels,
        "b": config.delta_value_heads,
        "w": config.delta_width,
        "K": config.delta_conv_kernel,
        "x": config.experts,
        "f": config.expert_width,
        "m": config.shared_width,
        "n": config.ple.heads,
        "e": config.ple.row_width,
        "P": config.ple.conv_kernel,
    }
