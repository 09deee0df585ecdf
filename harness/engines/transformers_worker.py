"""transformers in a process of its own: JSON lines in, JSON lines out. Run by `harness.engines.transformers`.

Imports torch, transformers, gguf and NumPy, never jax: any Python with these can run it.
"""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from harness.engines.transformers_weights import state_dict
from model_file.config import ModelConfig, config_from
from model_file.gguf_file import GgufFile, open_gguf


def build(model: GgufFile, config: ModelConfig) -> Any:
    """The model with the file's weights and hash constants, float32."""
    import torch
    from transformers import Qwen4ExpForCausalLM
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

    ple = config.ple
    settings = Qwen4ExpTextConfig(
        vocab_size=config.vocab,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.context,
        rms_norm_eps=config.rms_eps,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config.rope_base,
            "partial_rotary_factor": config.rope_width / config.head_width,
            "mrope_section": [int(n) for n in model.metadata["qwen4exp.rope.dimension_sections"]][:3],
        },
        head_dim=config.head_width,
        linear_conv_kernel_dim=config.delta_conv_kernel,
        linear_key_head_dim=config.delta_width,
        linear_value_head_dim=config.delta_width,
        linear_num_key_heads=config.delta_key_heads,
        linear_num_value_heads=config.delta_value_heads,
        moe_intermediate_size=config.expert_width,
        shared_expert_intermediate_size=config.shared_width,
        num_experts_per_tok=config.experts_used,
        num_experts=config.experts,
        layer_types=["linear_attention" if linear else "indexed_attention" for linear in config.linear_layers],
        eos_token_id=ple.hash.eos,
        hc_count=config.streams,
        hc_lowrank=config.low_rank,
        ple_layer_ids=[ple.layer + 1],
        ple_conv_kernel_size=ple.conv_kernel,
        ngram_size=ple.hash.order,
        heads_per_ngram=ple.hash.heads_per_ngram,
        ngram_vocab_size_base=2,  # the real sizes and the real table take the place of what this makes
        indexer_n_heads=config.indexer_heads,
        indexer_kv_heads=1,
        indexer_head_dim=config.indexer_width,
        indexer_budget=config.top_k,
        indexer_compress_ratio=1,  # each layer's own is set below
        output_gate_type="sigmoid",
        attn_implementation="eager",
    )
    built: Any = Qwen4ExpForCausalLM(settings).eval().float()
    for layer, ratio, linear in zip(built.model.layers, config.compress_ratios, config.linear_layers, strict=True):
        if not linear:
            indexer, budget = layer.self_attn.indexer, config.top_k if ratio else config.context
            indexer.compress_ratio, indexer.token_budget = max(ratio, 1), budget  # without an indexer: all tokens
            indexer.block_topk = budget // indexer.compress_ratio
    weights = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state_dict(model, config).items()}
    embedding = built.model.layers[ple.layer].ple.ple_embedding
    table = weights[f"model.layers.{ple.layer}.ple.ple_embedding.ngram_embedding.weight"]
    embedding.ngram_embedding = torch.nn.Embedding(*table.shape, _weight=table)
    for name, values in (
        ("layer_multipliers", ple.hash.multipliers),
        ("ngram_heads_vocab_sizes", ple.hash.sizes),
        ("ngram_heads_offsets", ple.hash.offsets),
    ):
        getattr(embedding, name).copy_(torch.from_numpy(np.array(values, np.uint64).view(np.int64)))
    missing, unexpected = built.load_state_dict(weights, strict=False)
    buffers = {name for name, _ in built.named_buffers()}
    assert not unexpected, f"transformers has no place for {unexpected}"
    assert set(missing) <= buffers, f"transformers waits for {set(missing) - buffers}"
    return built


def answer(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Feed `tokens`, continue greedily by `count`; times of both. All logits go to the file `logits`, if named."""
    import torch

    tokens, count = torch.tensor([request["tokens"]]), int(request["count"])
    everything = request.get("logits")
    with torch.inference_mode():
        started = perf_counter()
        out = model(input_ids=tokens, use_cache=True, logits_to_keep=0 if everything else 1)
        prompt_s = perf_counter() - started
        if everything:
            np.save(everything, out.logits[0].numpy())
        chosen: list[int] = []
        margins: list[float] = []
        started = perf_counter()
        for step in range(count):
            best = torch.topk(out.logits[0, -1], 2)
            token = int(torch.argmax(out.logits[0, -1]))
            chosen.append(token)
            margins.append(float(best.values[0] - best.values[1]))
            if step + 1 < count:
                out = model(input_ids=torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
        decode_s = perf_counter() - started
    return {"tokens": chosen, "margins": margins, "prompt_s": prompt_s, "decode_s": decode_s}


def main() -> None:
    """Arguments: model file, threads. Says `{"ready": ...}`, then answers a line with a line until the input ends.

    A line `{"open": FILE}` takes another model, and says so again, or `{"refused": WHY}`.
    """
    import torch
    import transformers

    torch.set_num_threads(int(sys.argv[2]))
    model: Any = None
    for request in chain([{"open": sys.argv[1]}], map(json.loads, sys.stdin)):
        if "open" in request:
            try:
                with open_gguf(Path(request["open"])) as file:
                    model = build(file, config_from(file))
            except Exception as error:
                if model is None:
                    raise
                print(json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)
                continue
            print(json.dumps({"ready": [torch.__version__, transformers.__version__]}), flush=True)
        else:
            print(json.dumps(answer(model, request)), flush=True)


if __name__ == "__main__":
    main()
