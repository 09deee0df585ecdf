"""The weights as pytrees whose fields are the tensors of `model_file.tensors`, and what fills them from a file.

The PLE table is not here: it is read row by row, by whoever feeds the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from model_file.config import ModelConfig
from model_file.gguf_file import GgufFile
from model_file.tensors import MODEL, OUTPUT_CONNECTION, Group, head_groups, layer_groups
from model_file.weights import FloatArray, WeightSource
from reference.shapes import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HyperConnection:
    """How a block reads the residual streams and writes back to them; the output's has no `inject`."""

    norm: Float[Array, "s d"]
    down: Float[Array, "r sd"]
    up: Float[Array, "sd r"]
    inject: Float[Array, "s sd"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeltaNet:
    """Gated delta net, the linear token mixer."""

    attn_qkv: Float[Array, "c d"]
    attn_gate: Float[Array, "bw d"]
    ssm_conv1d: Float[Array, "c K"]
    ssm_dt: Float[Array, "b"]
    ssm_a: Float[Array, "b"]
    ssm_beta: Float[Array, "b d"]
    ssm_alpha: Float[Array, "b d"]
    ssm_norm: Float[Array, "w"]
    ssm_out: Float[Array, "d bw"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Indexer:
    """Scores blocks of keys, so that attention reads only the best."""

    q_proj: Float[Array, "ij d"]
    k_proj: Float[Array, "j d"]
    q_norm: Float[Array, "j"]
    k_norm: Float[Array, "j"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attention:
    """Gated grouped-query attention; `indexer` is None in a dense layer."""

    attn_q: Float[Array, "hk2 d"]
    attn_k: Float[Array, "gk d"]
    attn_v: Float[Array, "gk d"]
    attn_output: Float[Array, "d hk"]
    attn_q_norm: Float[Array, "k"]
    attn_k_norm: Float[Array, "k"]
    indexer: Indexer | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Experts:
    """Routed experts and the shared one."""

    ffn_gate_inp: Float[Array, "x d"]
    ffn_gate_exps: Float[Array, "x f d"]
    ffn_up_exps: Float[Array, "x f d"]
    ffn_down_exps: Float[Array, "x d f"]
    ffn_gate_inp_shexp: Float[Array, "d"]
    ffn_gate_shexp: Float[Array, "m d"]
    ffn_up_shexp: Float[Array, "m d"]
    ffn_down_shexp: Float[Array, "d m"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ple:
    """What turns a token's table rows into an addition to the streams."""

    ple_key: Float[Array, "sd ne"]
    ple_value: Float[Array, "d ne"]
    ple_norm_key: Float[Array, "s d"]
    ple_norm_query: Float[Array, "s d"]
    ple_norm_conv: Float[Array, "s d"]
    ple_conv1d: Float[Array, "sd P"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    """One trunk layer; `ple` in exactly one of them."""

    hc_attn: HyperConnection
    mixer: DeltaNet | Attention
    hc_ffn: HyperConnection
    experts: Experts
    ple: Ple | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftHead:
    """The MTP head: what joins a token with the trunk's residual, a layer, and what reads its streams."""

    eh_proj: Float[Array, "d d2"]
    enorm: Float[Array, "d"]
    hnorm: Float[Array, "s d"]
    layer: Layer
    hc_head: HyperConnection


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parameters:
    """All weights of the trunk."""

    token_embd: Float[Array, "v d"]
    layers: tuple[Layer, ...]
    output_hc: HyperConnection
    output: Float[Array, "v d"]


def load_parameters(model: GgufFile, config: ModelConfig) -> Parameters:
    """All weights of an open model as float32, each tensor of the file used exactly once.

    Raises: InputError naming every tensor that is missing, unused or of a wrong shape.
    """
    source = WeightSource(model, config)
    ends = _arrays(source.group("", MODEL))
    parameters = Parameters(
        token_embd=ends["token_embd"],
        layers=tuple(
            _layer(_parts(source, layer_groups(config, layer)), linear)
            for layer, linear in enumerate(config.linear_layers)
        ),
        output_hc=HyperConnection(**_arrays(source.group("output_hc_", OUTPUT_CONNECTION)), inject=None),
        output=ends.get("output", ends["token_embd"]),
    )
    source.check_all_read()
    return parameters


def load_draft_head(model: GgufFile, config: ModelConfig) -> DraftHead | None:
    """The MTP head of an open model; None where it has none. Raises: InputError as `load_parameters`."""
    source = WeightSource(model, config, head=True)
    if not source.left:
        return None
    parts = _parts(source, head_groups(config))
    head = DraftHead(
        **parts.pop("head"),
        hc_head=HyperConnection(**parts.pop("hc_head"), inject=None),
        layer=_layer(parts, linear=False),
    )
    source.check_all_read()
    return head


def _parts(source: WeightSource, groups: dict[str, tuple[str, Group]]) -> dict[str, dict[str, Array]]:
    return {part: _arrays(source.group(*place)) for part, place in groups.items()}


def _layer(parts: dict[str, dict[str, Array]], linear: bool) -> Layer:
    mixer: DeltaNet | Attention
    if linear:
        mixer = DeltaNet(**parts["mixer"])
    else:
        mixer = Attention(**parts["mixer"], indexer=Indexer(**parts["indexer"]) if "indexer" in parts else None)
    return Layer(
        hc_attn=HyperConnection(**parts["hc_attn"]),
        mixer=mixer,
        hc_ffn=HyperConnection(**parts["hc_ffn"]),
        experts=Experts(**parts["experts"]),
        ple=Ple(**parts["ple"]) if "ple" in parts else None,
    )


def _arrays(group: dict[str, FloatArray]) -> dict[str, Array]:
    return {field: jnp.asarray(values) for field, values in group.items()}
