"""The weights as the fast path wants them: float32, input-major, everything that reads one input side by side.

A matrix is stored `[in, out]`, so that a product needs no transpose, and matrices with the same input are one matrix:
a decode step is then few large products instead of many small ones. `model_file.weights` reads them, by the one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fast.model.packed import Beside, Packed, PackedMatrix, PackedRows
from fast.model.packed_product import side_by_side
from model_file.config import ModelConfig
from model_file.gguf_file import GgufFile
from model_file.tensors import MODEL, OUTPUT_CONNECTION, Group, head_groups, layer_groups
from model_file.weights import FloatArray, PackedTensor, WeightSource
from reference.shapes import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HyperConnection:
    """`read` is hc down and, where there is one, hc inject: they share the normalised streams."""

    norm: Float[Array, "s d"]
    read: Float[Array, "sd r_and_s"]
    up: Float[Array, "r sd"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeltaNet:
    """`project` is attn_qkv, attn_gate, ssm_beta and ssm_alpha, in this order."""

    project: Float[Array, "d c_and_bw_and_2b"] | Packed
    taps: Float[Array, "K c"]
    dt: Float[Array, "b"]
    a: Float[Array, "b"]
    norm: Float[Array, "w"]
    out: Float[Array, "bw d"] | Packed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attention:
    """`project` is attn_q (queries and gates by head), attn_k, attn_v, then indexer q and k; the last norms are None
    in a dense layer."""

    project: Float[Array, "d joined"] | Packed
    out: Float[Array, "hk d"] | Packed
    q_norm: Float[Array, "k"]
    k_norm: Float[Array, "k"]
    indexer_q_norm: Float[Array, "j"] | None
    indexer_k_norm: Float[Array, "j"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Experts:
    """`read` is the router, the shared expert's gate, its gate rows and its up rows; `gate_up` likewise per expert.

    `gate_up` and `down` alone stay output-major: `fast.model.experts` says why. None where the host brings them.
    """

    read: Float[Array, "d x_and_1_and_2m"] | Packed
    shared_down: Float[Array, "m d"] | Packed
    gate_up: Float[Array, "x ff d"] | None
    down: Float[Array, "x d f"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ple:
    """`project` is ple_key and ple_value."""

    project: Float[Array, "ne sd_and_d"] | Packed
    norm_key: Float[Array, "s d"]
    norm_query: Float[Array, "s d"]
    norm_conv: Float[Array, "s d"]
    taps: Float[Array, "P sd"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    """One trunk layer; `ple` in exactly one of them."""

    hc_mixer: HyperConnection
    mixer: DeltaNet | Attention
    hc_experts: HyperConnection
    experts: Experts
    ple: Ple | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftHead:
    """The MTP head. `from_token` and `from_residual` are the two halves of eh_proj."""

    from_token: Float[Array, "d d"]
    from_residual: Float[Array, "d d"]
    enorm: Float[Array, "d"]
    hnorm: Float[Array, "s d"]
    layer: Layer
    hc_out: HyperConnection


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    """All weights of the trunk but the PLE table, and the draft head where one is used."""

    embedding: Float[Array, "v d"] | PackedRows
    layers: tuple[Layer, ...]
    hc_out: HyperConnection
    head: Float[Array, "d v"] | Packed
    draft: DraftHead | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(self))


def load_weights(model: GgufFile, config: ModelConfig, packed: bool = False) -> Weights:
    """All weights of an open model, each tensor of the file used exactly once.

    packed: large matrices stay in their file's blocks, and the routed experts are left out.
    Raises: InputError naming every tensor that is missing, unused or of a wrong shape.
    """
    source = WeightSource(model, config, packed=packed)
    ends = source.group("", MODEL)
    weights = Weights(
        embedding=_rows(ends["token_embd"]),
        layers=tuple(_layer(source, layer_groups(config, layer)) for layer in range(config.layers)),
        hc_out=_hyper_connection(source.group("output_hc_", OUTPUT_CONNECTION)),
        head=_turned(ends.get("output", ends["token_embd"])),
    )
    source.check_all_read()
    return weights


def load_draft_head(model: GgufFile, config: ModelConfig) -> DraftHead:
    """The MTP head of an open file that has one. Raises: InputError as `load_weights`."""
    source, groups = WeightSource(model, config, head=True), head_groups(config)
    part = source.group(*groups["head"])
    from_token, from_residual = np.split(part["eh_proj"], 2, axis=1)
    head = DraftHead(
        from_token=_device(from_token.T),
        from_residual=_device(from_residual.T),
        enorm=_device(part["enorm"]),
        hnorm=_device(part["hnorm"]),
        layer=_layer(source, {name: place for name, place in groups.items() if name not in ("head", "hc_head")}),
        hc_out=_hyper_connection(source.group(*groups["hc_head"])),
    )
    source.check_all_read()
    return head


Part = dict[str, Any]
"""Tensors of a group of the table by their fields."""


def _device(values: FloatArray) -> Array:
    """A contiguous float32 copy on the default device; a view into the mapped file would be read again and again."""
    return jnp.array(np.ascontiguousarray(values, dtype=np.float32), copy=True)


def _rows(matrix: FloatArray | PackedTensor) -> Any:
    """A matrix `[out, in]` whose rows are looked up."""
    if not isinstance(matrix, PackedTensor):
        return _device(matrix)
    return PackedRows(jnp.array(matrix.data, copy=True), int(matrix.type))


def _turned(matrix: FloatArray | PackedTensor) -> Any:
    """A matrix `[out, in]` as `[in, out]`; a packed one turns itself."""
    if not isinstance(matrix, PackedTensor):
        return _device(matrix.T)
    factor = None if matrix.factor is None else jnp.float32(matrix.factor)
    parts = tuple(jnp.asarray(part) for part in side_by_side(matrix.data, matrix.type))
    return PackedMatrix(parts, factor, len(matrix.data), int(matrix.type))


def _beside(*matrices: FloatArray | PackedTensor) -> Any:
    """Matrices `[out, in]` of one input as one `[in, all outs]`."""
    if any(isinstance(matrix, PackedTensor) for matrix in matrices):
        return Beside(tuple(_turned(matrix) for matrix in matrices))
    return _device(np.concatenate(matrices, axis=-2).swapaxes(-1, -2))  # type: ignore[arg-type]


def _layer(source: WeightSource, groups: dict[str, tuple[str, Group]]) -> Layer:
    parts = {name: source.group(*place) for name, place in groups.items()}
    linear = "ssm_a" in parts["mixer"]
    return Layer(
        hc_mixer=_hyper_connection(parts["hc_attn"]),
        mixer=_delta_net(parts["mixer"]) if linear else _attention(parts["mixer"], parts.get("indexer")),
        hc_experts=_hyper_connection(parts["hc_ffn"]),
        experts=_experts(parts["experts"]),
        ple=_ple(parts["ple"]) if "ple" in parts else None,
    )


def _hyper_connection(part: Part) -> HyperConnection:
    readers = [part[name] for name in ("down", "inject") if name in part]
    return HyperConnection(norm=_device(part["norm"]), read=_beside(*readers), up=_device(part["up"].T))


def _delta_net(part: Part) -> DeltaNet:
    return DeltaNet(
        project=_beside(*(part[name] for name in ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha"))),
        taps=_device(part["ssm_conv1d"].T),
        dt=_device(part["ssm_dt"]),
        a=_device(part["ssm_a"]),
        norm=_device(part["ssm_norm"]),
        out=_turned(part["ssm_out"]),
    )


def _attention(part: Part, indexer: Part | None) -> Attention:
    readers = [part["attn_q"], part["attn_k"], part["attn_v"]]
    if indexer:
        readers += [indexer["q_proj"], indexer["k_proj"]]
    return Attention(
        project=_beside(*readers),
        out=_turned(part["attn_output"]),
        q_norm=_device(part["attn_q_norm"]),
        k_norm=_device(part["attn_k_norm"]),
        indexer_q_norm=_device(indexer["q_norm"]) if indexer else None,
        indexer_k_norm=_device(indexer["k_norm"]) if indexer else None,
    )


def _experts(part: Part) -> Experts:
    routed = "ffn_down_exps" in part
    return Experts(
        read=_beside(
            part["ffn_gate_inp"],
            part["ffn_gate_inp_shexp"].reshape(1, -1),
            part["ffn_gate_shexp"],
            part["ffn_up_shexp"],
        ),
        shared_down=_turned(part["ffn_down_shexp"]),
        gate_up=_device(np.concatenate([part["ffn_gate_exps"], part["ffn_up_exps"]], axis=1)) if routed else None,
        down=_device(part["ffn_down_exps"]) if routed else None,
    )


def _ple(part: Part) -> Ple:
    return Ple(
        project=_beside(part["ple_key"], part["ple_value"]),
        norm_key=_device(part["ple_norm_key"]),
        norm_query=_device(part["ple_norm_query"]),
        norm_conv=_device(part["ple_norm_conv"]),
        taps=_device(part["ple_conv1d"].T),
    )
