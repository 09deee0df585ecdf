"""The weights as the fast path wants them: float32, input-major, everything that reads one input side by side.

A matrix is stored `[in, out]`, so that a product needs no transpose, and matrices with the same input are one matrix:
a decode step is then few large products instead of many small ones. Quantized tensors become float32 through the
`gguf` package's dequantizers; a `.scale`, which multiplies a product's result, multiplies the weight.
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
from model_file.inventory import Inventory, inventory_to_load
from reference.shapes import Array, Float

FloatArray = npt.NDArray[np.float32]


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

    project: Float[Array, "d c_and_bw_and_2b"]
    taps: Float[Array, "K c"]
    dt: Float[Array, "b"]
    a: Float[Array, "b"]
    norm: Float[Array, "w"]
    out: Float[Array, "bw d"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attention:
    """`project` is attn_q (queries and gates by head), attn_k, attn_v, then indexer q and k; the last norms are None
    in a dense layer."""

    project: Float[Array, "d joined"]
    out: Float[Array, "hk d"]
    q_norm: Float[Array, "k"]
    k_norm: Float[Array, "k"]
    indexer_q_norm: Float[Array, "j"] | None
    indexer_k_norm: Float[Array, "j"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Experts:
    """`read` is the router, the shared expert's gate, its gate rows and its up rows; `gate_up` likewise per expert.

    `gate_up` and `down` alone stay output-major: `fast.model.experts` says why.
    """

    read: Float[Array, "d x_and_1_and_2m"]
    shared_down: Float[Array, "m d"]
    gate_up: Float[Array, "x ff d"]
    down: Float[Array, "x d f"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ple:
    """`project` is ple_key and ple_value."""

    project: Float[Array, "ne sd_and_d"]
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
class Weights:
    """All weights of the trunk but the PLE table."""

    embedding: Float[Array, "v d"]
    layers: tuple[Layer, ...]
    hc_out: HyperConnection
    head: Float[Array, "d v"]

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(self))


Take = Callable[[str], FloatArray]


def load_weights(model: GgufFile, config: ModelConfig) -> Weights:
    """All weights of an open model, each tensor of the file used exactly once.

    Raises: InputError naming every tensor that is missing, unused or of a wrong shape.
    """
    reading = _Reading(model, inventory_to_load(model, config))
    embedding = reading.take("token_embd.weight")
    has_head = "output.weight" in reading.inventory.weights
    weights = Weights(
        embedding=_device(embedding),
        layers=tuple(_layer(reading, config, layer) for layer in range(config.layers)),
        hc_out=_hyper_connection(reading.under("output_hc_"), config, inject=False),
        head=_device((reading.take("output.weight") if has_head else embedding).T),
    )
    assert not reading.untaken(), f"loaded tensors must be all of the file's: {sorted(reading.untaken())} were not"
    return weights


class _Reading:
    """Hands out dequantized tensors by name and remembers which."""

    def __init__(self, model: GgufFile, inventory: Inventory) -> None:
        self.model, self.inventory = model, inventory
        self.left = {*inventory.weights, *inventory.scales}

    def values(self, name: str) -> FloatArray:
        self.left.remove(name)
        info = self.inventory.weights.get(name) or self.inventory.scales[name]
        packed = self.model.packed(name)
        if info.type in _PLAIN:  # the dequantizer takes these as numbers, not as bytes
            return packed.view(_PLAIN[info.type]).astype(np.float32, copy=False).reshape(info.shape)
        return gguf.quants.dequantize(packed, info.type).reshape(info.shape)

    def take(self, name: str) -> FloatArray:
        values = self.values(name)
        scale = f"{name.removesuffix('.weight')}.scale"
        if scale not in self.inventory.scales:
            return values
        factors = self.values(scale)
        return values * factors.reshape(factors.shape + (1,) * (values.ndim - 1))

    def under(self, prefix: str) -> Take:
        return lambda name: self.take(prefix + name)

    def untaken(self) -> set[str]:
        return self.left


_PLAIN = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}


def _device(values: FloatArray) -> Array:
    """A contiguous float32 copy on the default device; a view into the mapped file would be read again and again."""
    return jnp.array(np.ascontiguousarray(values, dtype=np.float32), copy=True)


def _beside(*matrices: FloatArray) -> Array:
    """Matrices `[out, in]` of one input as one `[in, all outs]`."""
    return _device(np.concatenate(matrices, axis=-2).swapaxes(-1, -2))


def _layer(reading: _Reading, config: ModelConfig, layer: int) -> Layer:
    block = f"blk.{layer}."
    take = reading.under(block)
    linear = config.linear_layers[layer]
    return Layer(
        hc_mixer=_hyper_connection(reading.under(block + "hc_attn_"), config),
        mixer=_delta_net(take) if linear else _attention(take, indexed=config.compress_ratios[layer] > 0),
        hc_experts=_hyper_connection(reading.under(block + "hc_ffn_"), config),
        experts=_experts(take, fused=block + "ffn_gate_up_exps.weight" in reading.inventory.weights),
        ple=_ple(take, config) if layer == config.ple.layer else None,
    )


def _hyper_connection(take: Take, config: ModelConfig, inject: bool = True) -> HyperConnection:
    readers = [take("down.weight")] + ([take("inject.weight")] if inject else [])
    return HyperConnection(
        norm=_device(take("norm.weight").reshape(config.streams, config.width)),
        read=_beside(*readers),
        up=_device(take("up.weight").T),
    )


def _delta_net(take: Take) -> DeltaNet:
    readers = ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha")
    return DeltaNet(
        project=_beside(*(take(f"{name}.weight") for name in readers)),
        taps=_device(take("ssm_conv1d.weight").T),
        dt=_device(take("ssm_dt.bias")),
        a=_device(take("ssm_a")),
        norm=_device(take("ssm_norm.weight")),
        out=_device(take("ssm_out.weight").T),
    )


def _attention(take: Take, indexed: bool) -> Attention:
    readers = ["attn_q", "attn_k", "attn_v"] + (["indexer.q_proj", "indexer.k_proj"] if indexed else [])
    return Attention(
        project=_beside(*(take(f"{name}.weight") for name in readers)),
        out=_device(take("attn_output.weight").T),
        q_norm=_device(take("attn_q_norm.weight")),
        k_norm=_device(take("attn_k_norm.weight")),
        indexer_q_norm=_device(take("indexer.q_norm.weight")) if indexed else None,
        indexer_k_norm=_device(take("indexer.k_norm.weight")) if indexed else None,
    )


def _experts(take: Take, fused: bool) -> Experts:
    gate_up = (
        take("ffn_gate_up_exps.weight")
        if fused
        else np.concatenate([take("ffn_gate_exps.weight"), take("ffn_up_exps.weight")], axis=1)
    )
    return Experts(
        read=_beside(
            take("ffn_gate_inp.weight"),
            take("ffn_gate_inp_shexp.weight").reshape(1, -1),
            take("ffn_gate_shexp.weight"),
            take("ffn_up_shexp.weight"),
        ),
        shared_down=_device(take("ffn_down_shexp.weight").T),
        gate_up=_device(gate_up),
        down=_device(take("ffn_down_exps.weight")),
    )


def _ple(take: Take, config: ModelConfig) -> Ple:
    streams = (config.streams, config.width)
    return Ple(
        project=_beside(take("ple_key.weight"), take("ple_value.weight")),
        norm_key=_device(take("ple_norm_key.weight").reshape(streams)),
        norm_query=_device(take("ple_norm_query.weight").reshape(streams)),
        norm_conv=_device(take("ple_norm_conv.weight").reshape(streams)),
        taps=_device(take("ple_conv1d.weight").T.reshape(config.ple.conv_kernel, -1)),
    )
