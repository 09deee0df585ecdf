"""A wrong detail in the reference is named by its layer, tensor and first position, by comparison with `fast`."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from fast.engine.settings import EngineSettings
from fast.rows import locate_table, open_rows
from harness.engines.recorded import recorded
from harness.engines.table import load_engine
from harness.faults.planting import planted_text
from harness.gate.place import Place, first_place
from model_file.config import ModelConfig, config_from
from model_file.gguf_file import open_gguf
from reference import attention, delta_net, experts, ngram, ple
from tests.conftest import FIXTURES

pytestmark = pytest.mark.slow
MODEL, BOUND = FIXTURES / "tiny-quant.gguf", 2e-3
BOUND_REASON = "sound engines differ by 2e-5 on this file, the faults by more than 1e-2"
IDS = np.load(FIXTURES / "tiny-quant.npz")["prompt_0"].tolist()[:64]

# The function and the text that are changed, into what; the kind of layer that must be named, and the tensor.
FAULTS: dict[str, tuple[ModuleType, str, str, str, str, str]] = {
    "silu for the output gate": (
        delta_net, "delta_net", "jax.nn.sigmoid(x @ weights.attn_gate.T)", "jax.nn.silu(x @ weights.attn_gate.T)",
        "linear", "mixer",
    ),
    "grouped value heads": (
        delta_net, "delta_net", "(jnp.tile(query, tile), jnp.tile(key, tile),",
        "(jnp.repeat(query, tile[1], axis=1), jnp.repeat(key, tile[1], axis=1),", "linear", "mixer",
    ),
    "a missing scale of the delta net": (
        delta_net, "delta_net", "_unit(query.reshape(count, keys, width), config.rms_eps) * width**-0.5",
        "_unit(query.reshape(count, keys, width), config.rms_eps)", "linear", "mixer",
    ),
    "a missing scale of attention": (
        attention, "attention", "state.keys) * scale", "state.keys)", "attention", "mixer",
    ),
    "last member's position for a block": (
        attention, "block_scores", "jnp.arange(mean_keys.shape[0]) * ratio",
        "jnp.arange(mean_keys.shape[0]) * ratio + ratio - 1", "blocks", "mixer",
    ),
    "router weights not renormalised": (
        experts, "route", "best / jnp.sum(best, axis=-1, keepdims=True)", "best", "any", "experts",
    ),
    "convolution not dilated": (ple, "ple", "dilation=config.ple.hash.order", "dilation=1", "ple", "ple"),
    "EOS cutting one lag": (ngram, "context", "cut = cut | (", "cut = (", "ple", "ple"),
}  # fmt: skip


def layers_of(kind: str, config: ModelConfig) -> list[int]:
    """Where it must show first; other positions of blocks only show in a layer that then chooses other blocks."""
    linear, ratios = config.linear_layers, config.compress_ratios
    return {
        "any": [0],
        "ple": [config.ple.layer],
        "linear": [linear.index(True)],
        "attention": [linear.index(False)],
        "blocks": [layer for layer, ratio in enumerate(ratios) if ratio],
    }[kind]


class Played:
    """An engine that answers as it did before: `fast` need not be compiled for every fault."""

    def __init__(self, pieces: list[tuple[int, dict[str, Any]]]) -> None:
        self._pieces = pieces

    def new_sequence(self) -> Played:
        return Played(list(self._pieces))

    def record(self, _: object) -> tuple[Any, dict[str, Any]]:
        _, named = self._pieces.pop(0)
        return named["logits"], named


@pytest.fixture(scope="module")
def right() -> Any:
    settings = EngineSettings(context=64, chunk=64)
    with (
        open_gguf(MODEL) as model,
        open_rows(locate_table(model), "mmap") as reader,
        load_engine("fast", model, reader, settings) as engine,
    ):
        return Played(list(recorded(engine, IDS)))


def place_of_difference(right: Any) -> tuple[Place | None, ModelConfig]:
    with (
        open_gguf(MODEL) as model,
        open_rows(locate_table(model), "mmap") as reader,
        load_engine("reference", model, reader, EngineSettings(context=64, chunk=64)) as mine,
    ):
        return first_place(mine, right, IDS, BOUND), config_from(model)


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """What was compiled before a fault is planted does not hold it, and what is compiled with it must not stay."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_detail_is_named_by_its_layer(name: str, right: Any) -> None:
    module, function, old, new, kind, tensor = FAULTS[name]
    with planted_text(module, function, old, new):
        place, config = place_of_difference(right)
    assert place is not None, name
    assert place.tensor in [f"blk.{layer}.{tensor}" for layer in layers_of(kind, config)], (name, place)
    if name == "EOS cutting one lag":  # seen where a token has an EOS before it, and something before that
        eos = config.ple.hash.eos
        ends = [at for at in range(2, len(IDS)) if eos in IDS[at - config.ple.hash.order + 2 : at]]
        assert place.position in ends, (place, ends)


def test_nothing_is_named_where_nothing_is_planted(right: Any) -> None:
    place, _ = place_of_difference(right)
    assert place is None, BOUND_REASON
