"""The weights as pytrees named after the GGUF tensors, and the one function that fills them from a file.

Quantized weights become float32 through the `gguf` package's own dequantizers. A `.scale` multiplies its matmul's
result, which is the same as multiplying the weight; fused gate/up experts are cut in two. The PLE table is not here:
it is read row by row, by whoever feeds the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from model_file.config import ModelConfig
from model_file.gguf_file import GgufFile
from model_file.tensors import Inventory, inventory_to_load
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
class Parameters:
    """All weights of the trunk."""

    token_embd: Float[Array, "v d"]
    layers: tuple[Layer, ...]
    output_hc: HyperConnection
    output: Float[Array, "v d"]


Take = Callable[[str], Float[Array, "..."]]


def load_parameters(model: GgufFile, config: ModelConfig) -> Parameters:
    """All weights of an open model as float32, each tensor of the file used exactly once.

    Raises: InputError naming every tensor that is missing, unused or of a wrong shape.
    """
    reading = _Reading(model, inventory_to_load(model, config))
    embedding = reading.take("token_embd.weight")
    parameters = Parameters(
        token_embd=embedding,
        layers=tuple(_layer(reading, config, layer) for layer in range(config.layers)),
        output_hc=_hyper_connection(reading.under("output_hc_"), config, inject=False),
        output=reading.take("output.weight") if "output.weight" in reading.inventory.weights else embedding,
    )
    assert not reading.untaken(), f"loaded tensors must be all of the file's: {sorted(reading.untaken())} were not"
    return parameters


class _Reading:
    """Hands out tensors by name and remembers which."""

    def __init__(self, model: GgufFile, inventory: Inventory) -> None:
        self.model, self.inventory = model, inventory
        self.taken: set[str] = set()

    def array(self, name: str) -> npt.NDArray[np.float32]:
        assert name not in self.taken, f"{name} is read twice"
        self.taken.add(name)
        info = self.inventory.weights.get(name) or self.inventory.scales[name]
        values = gguf.quants.dequantize(_typed(self.model.packed(name), info.type), info.type)
        return values.astype(np.float32, copy=False).reshape(info.shape)

    def take(self, name: str) -> Float[Array, "..."]:
        values = self.array(name)
        scale_name = name.removesuffix(".weight") + ".scale"
        if scale_name in self.inventory.scales:
            scale = self.array(scale_name)  # [1], or one for each expert, the first axis
            values = values * scale.reshape(-1, *[1] * (values.ndim - 1))
        return jnp.asarray(values)

    def under(self, prefix: str) -> Take:
        return lambda name: self.take(prefix + name)

    def untaken(self) -> set[str]:
        return (set(self.inventory.weights) | set(self.inventory.scales)) - self.taken


def _typed(packed: npt.NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.generic]:
    """gguf's dequantizer takes bytes of quantized types, and typed arrays of the two plain ones."""
    plain = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
    return packed.view(plain[kind]) if kind in plain else packed


def _layer(reading: _Reading, config: ModelConfig, layer: int) -> Layer:
    block = f"blk.{layer}."
    take = reading.under(block)
    if config.linear_layers[layer]:
        mixer: DeltaNet | Attention = _delta_net(take)
    else:
        mixer = _attention(take, indexed=config.compress_ratios[layer] > 0)
    return Layer(
        hc_attn=_hyper_connection(reading.under(block + "hc_attn_"), config),
        mixer=mixer,
        hc_ffn=_hyper_connection(reading.under(block + "hc_ffn_"), config),
        experts=_experts(take, fused=block + "ffn_gate_up_exps.weight" in reading.inventory.weights),
        ple=_ple(take, config) if layer == config.ple.layer else None,
    )


def _hyper_connection(take: Take, config: ModelConfig, inject: bool = True) -> HyperConnection:
    return HyperConnection(
        norm=take("norm.weight").reshape(config.streams, config.width),
        down=take("down.weight"),
        up=take("up.weight"),
        inject=take("inject.weight") if inject else None,
    )


def _delta_net(take: Take) -> DeltaNet:
    return DeltaNet(
        attn_qkv=take("attn_qkv.weight"),
        attn_gate=take("attn_gate.weight"),
        ssm_conv1d=take("ssm_conv1d.weight"),
        ssm_dt=take("ssm_dt.bias"),
        ssm_a=take("ssm_a"),
        ssm_beta=take("ssm_beta.weight"),
        ssm_alpha=take("ssm_alpha.weight"),
        ssm_norm=take("ssm_norm.weight"),
        ssm_out=take("ssm_out.weight"),
    )


def _attention(take: Take, indexed: bool) -> Attention:
    indexer = None
    if indexed:
        indexer = Indexer(
            q_proj=take("indexer.q_proj.weight"),
            k_proj=take("indexer.k_proj.weight"),
            q_norm=take("indexer.q_norm.weight"),
            k_norm=take("indexer.k_norm.weight"),
        )
    return Attention(
        attn_q=take("attn_q.weight"),
        attn_k=take("attn_k.weight"),
        attn_v=take("attn_v.weight"),
        attn_output=take("attn_output.weight"),
        attn_q_norm=take("attn_q_norm.weight"),
        attn_k_norm=take("attn_k_norm.weight"),
        indexer=indexer,
    )


def _experts(take: Take, fused: bool) -> Experts:
    if fused:
        gate, up = jnp.split(take("ffn_gate_up_exps.weight"), 2, axis=1)
    else:
        gate, up = take("ffn_gate_exps.weight"), take("ffn_up_exps.weight")
    return Experts(
        ffn_gate_inp=take("ffn_gate_inp.weight"),
        ffn_gate_exps=gate,
        ffn_up_exps=up,
        ffn_down_exps=take("ffn_down_exps.weight"),
        ffn_gate_inp_shexp=take("ffn_gate_inp_shexp.weight").reshape(-1),
        ffn_gate_shexp=take("ffn_gate_shexp.weight"),
        ffn_up_shexp=take("ffn_up_shexp.weight"),
        ffn_down_shexp=take("ffn_down_shexp.weight"),
    )


def _ple(take: Take, config: ModelConfig) -> Ple:
    streams = (config.streams, config.width)
    return Ple(
        ple_key=take("ple_key.weight"),
        ple_value=take("ple_value.weight"),
        ple_norm_key=take("ple_norm_key.weight").reshape(streams),
        ple_norm_query=take("ple_norm_query.weight").reshape(streams),
        ple_norm_conv=take("ple_norm_conv.weight").reshape(streams),
        ple_conv1d=take("ple_conv1d.weight"),
    )
