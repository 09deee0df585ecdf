"""A qwen4exp GGUF as transformers' weights: the names, the order of value heads, and gains stored without their 1.

NumPy only, so that it runs wherever torch does. The table is dequantized whole: this is for small models.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from model_file.config import ModelConfig
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.inventory import take_inventory
from model_file.tensors import TABLE, trunk_groups
from model_file.weights import FloatArray, dequantized

Take = Callable[[str], FloatArray]


def state_dict(model: GgufFile, config: ModelConfig) -> dict[str, FloatArray]:
    """Every parameter by its name in transformers' Qwen4ExpForCausalLM. Raises: InputError for scales: it has none."""
    inventory = take_inventory(model, config)
    if inventory.scales:
        raise InputError(f"{model.paths[0]}: has {min(inventory.scales)}: transformers' model has no place for scales")

    gains = {prefix + each.name for prefix, group in trunk_groups(config) for each in group if each.gain}

    def take(name: str) -> FloatArray:
        values = dequantized(model, name)
        return values - 1 if name in gains else np.array(values)

    embedding = take("token_embd.weight")
    out = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": take("output.weight") if "output.weight" in inventory.weights else embedding,
        **_hyper_connection(take, "output_hc_", "model.hyper_connection_mixer.", inject=False),
    }
    for layer, linear in enumerate(config.linear_layers):
        block, prefix = f"blk.{layer}.", f"model.layers.{layer}."
        out |= _hyper_connection(take, block + "hc_attn_", prefix + "attn_hyper_connection.")
        out |= _hyper_connection(take, block + "hc_ffn_", prefix + "mlp_hyper_connection.")
        out |= _delta_net(take, block, prefix, config) if linear else _attention(take, block, prefix, config)
        out |= _experts(take, block, prefix, fused=block + "ffn_gate_up_exps.weight" in inventory.weights)
        if layer == config.ple.layer:
            out |= _ple(take, block, prefix, config)
    return out


def grouped_order(config: ModelConfig) -> npt.NDArray[np.int64]:
    """The value head of the file that stands at each place of the checkpoint.

    The file tiles (head j uses key head j modulo their number); checkpoints group (h uses h divided by the copies).
    """
    keys, copies = config.delta_key_heads, config.delta_value_heads // config.delta_key_heads
    heads = np.arange(config.delta_value_heads)
    return (heads % copies) * keys + heads // copies


def _hyper_connection(take: Take, source: str, target: str, inject: bool = True) -> dict[str, FloatArray]:
    out = {
        target + "hc_norm.weight": take(source + "norm.weight").reshape(-1),
        target + "input_mix_weight_down.weight": take(source + "down.weight"),
        target + "input_mix_weight_up.weight": take(source + "up.weight"),
    }
    if inject:
        out[target + "block_inject_weight.weight"] = take(source + "inject.weight")
    return out


def _delta_net(take: Take, source: str, target: str, config: ModelConfig) -> dict[str, FloatArray]:
    order, width = grouped_order(config), config.delta_width
    rows = (order[:, None] * width + np.arange(width)).reshape(-1)
    key_rows = 2 * config.delta_key_heads * width

    def regroup_channels(values: FloatArray) -> FloatArray:
        return np.concatenate([values[:key_rows], values[key_rows:][rows]])

    prefix = target + "linear_attn."
    return {
        prefix + "in_proj_qkv.weight": regroup_channels(take(source + "attn_qkv.weight")),
        prefix + "in_proj_z.weight": take(source + "attn_gate.weight")[rows],
        prefix + "in_proj_b.weight": take(source + "ssm_beta.weight")[order],
        prefix + "in_proj_a.weight": take(source + "ssm_alpha.weight")[order],
        prefix + "conv1d.weight": regroup_channels(take(source + "ssm_conv1d.weight"))[:, None, :],
        prefix + "dt_bias": take(source + "ssm_dt.bias")[order],
        prefix + "A_log": np.log(-take(source + "ssm_a"))[order],
        prefix + "norm.weight": take(source + "ssm_norm.weight"),
        prefix + "out_proj.weight": take(source + "ssm_out.weight")[:, rows],
    }


def _attention(take: Take, source: str, target: str, config: ModelConfig) -> dict[str, FloatArray]:
    prefix, layer = target + "self_attn.", int(source.split(".")[1])
    width, zeros = config.indexer_width, np.zeros(config.indexer_width, np.float32)
    index = [np.zeros(((config.indexer_heads + 1) * width, config.width), np.float32)]  # all tokens are chosen then
    norms = dict.fromkeys(("q", "k"), zeros)
    if config.compress_ratios[layer]:
        index = [take(source + f"indexer.{part}_proj.weight") for part in ("q", "k")]
        norms = {part: take(source + f"indexer.{part}_norm.weight") for part in ("q", "k")}
    return {
        prefix + "q_proj.weight": take(source + "attn_q.weight"),
        prefix + "k_proj.weight": take(source + "attn_k.weight"),
        prefix + "v_proj.weight": take(source + "attn_v.weight"),
        prefix + "o_proj.weight": take(source + "attn_output.weight"),
        prefix + "q_norm.weight": take(source + "attn_q_norm.weight"),
        prefix + "k_norm.weight": take(source + "attn_k_norm.weight"),
        prefix + "indexer.index_qk_proj.weight": np.concatenate(index),
        prefix + "indexer.q_layernorm.weight": norms["q"],
        prefix + "indexer.k_layernorm.weight": norms["k"],
    }


def _experts(take: Take, source: str, target: str, fused: bool) -> dict[str, FloatArray]:
    prefix = target + "mlp."
    both = (
        take(source + "ffn_gate_up_exps.weight")
        if fused
        else np.concatenate([take(source + f"ffn_{part}_exps.weight") for part in ("gate", "up")], axis=1)
    )
    return {
        prefix + "gate.weight": take(source + "ffn_gate_inp.weight"),
        prefix + "experts.gate_up_proj": both,
        prefix + "experts.down_proj": take(source + "ffn_down_exps.weight"),
        prefix + "shared_expert.gate_proj.weight": take(source + "ffn_gate_shexp.weight"),
        prefix + "shared_expert.up_proj.weight": take(source + "ffn_up_shexp.weight"),
        prefix + "shared_expert.down_proj.weight": take(source + "ffn_down_shexp.weight"),
        prefix + "shared_expert_gate.weight": take(source + "ffn_gate_inp_shexp.weight").reshape(1, -1),
    }


def _ple(take: Take, source: str, target: str, config: ModelConfig) -> dict[str, FloatArray]:
    prefix = target + "ple."
    taps = take(source + "ple_conv1d.weight").reshape(config.streams * config.width, -1)
    return {
        prefix + "ple_embedding.ngram_embedding.weight": take(TABLE),
        prefix + "key_proj.weight": take(source + "ple_key.weight"),
        prefix + "value_proj.weight": take(source + "ple_value.weight"),
        prefix + "norm_key.weight": take(source + "ple_norm_key.weight").reshape(-1),
        prefix + "norm_query.weight": take(source + "ple_norm_query.weight").reshape(-1),
        prefix + "norm_conv.weight": take(source + "ple_norm_conv.weight").reshape(-1),
        prefix + "conv1d.weight": taps[:, None, :],
    }
