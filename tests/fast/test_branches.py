"""Every branch inside the compiled programs is reached: a flip of it is seen in what its layer computes."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast.engine import programs
from fast.engine.settings import EngineSettings, plan_for
from fast.model import attention as attention_file
from fast.model import delta_net as delta_file
from fast.model import experts as experts_file
from fast.model import ple as ple_file
from fast.model import trunk
from fast.model.plan import Plan
from fast.model.state import SequenceState
from fast.model.weights import Weights, load_weights
from harness.faults.planting import planted_text
from harness.synth import ensure_model
from model_file.config import config_from
from model_file.gguf_file import open_gguf
from tests.fast.branches import BRANCHES, HIDDEN, Branch
from tests.fast.engine.test_rollback import FAULTS as ROLLBACK

ROOT = Path(__file__).parents[2]
CHUNK = 16
SEEN = 1e-4
"""Relative L2 difference of a token's output. Unplanted, two runs of one program give the same bits."""
Outputs = list[np.ndarray]


@cache
def model() -> tuple[Weights, Plan]:
    """`pico`, with more blocks than the first static width holds, and their number no multiple of a tile."""
    with open_gguf(ensure_model("pico")) as file:
        config = config_from(file)
        plan = plan_for(config, 0, EngineSettings(context=2400, chunk=CHUNK, buckets=(CHUNK,)))
        return load_weights(file, config), plan


def random(*shape: int, seed: int = 1, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def like(tree: Any, seed: int) -> Any:
    """A tree of random arrays of the same shapes."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    drawn = [jnp.asarray(random(*leaf.shape, seed=seed + i)) for i, leaf in enumerate(leaves)]
    return jax.tree_util.tree_unflatten(structure, drawn)


def last_layer() -> int:
    return model()[1].config.layers - 1


def run_attention(weights: Any, plan: Plan, ratio: int, starts: list[int]) -> Outputs:
    """From a state of random keys at each start: a whole chunk, a padded one, and single tokens to the next block."""
    state = SequenceState.fresh(plan)
    layer = jax.jit(attention_file.attention, static_argnums=(6, 7))
    found = []
    for start in starts:
        index, cache = like(state.recurrent.mixers[last_layer()], 11), like(state.caches[0], 22)
        at = start
        for number, (length, count) in enumerate([(CHUNK, CHUNK), (CHUNK, 4), (1, 1), (1, 1), (1, 1)]):
            projected = random(length, weights.project.shape[1], seed=100 + number)
            out, index, cache = layer(weights, projected, np.int32(at), np.int32(count), index, cache, ratio, plan)
            found.append(np.asarray(out)[:count])
            at += count
        if ratio:  # keys of complete blocks, by which later tokens choose
            found.append(np.asarray(cache.blocks)[:, : at // ratio].T)
    return found


def indexed() -> Outputs:
    weights, plan = model()
    ratio = plan.config.compress_ratios[last_layer()]
    # Few blocks; inside a block, behind more than the budget; beyond the first static width; the last tile.
    return run_attention(weights.layers[-1].mixer, plan, ratio, [0, 200, 1600, 2350])


def dense() -> Outputs:
    weights, plan = model()
    mixer: Any = weights.layers[-1].mixer
    wide = 2 * plan.config.heads * plan.config.head_width + 2 * plan.config.kv_heads * plan.config.head_width
    mixer = replace(mixer, project=mixer.project[:, :wide], indexer_q_norm=None, indexer_k_norm=None)
    ratios = (*plan.config.compress_ratios[:-1], 0)
    plan = replace(plan, config=replace(plan.config, compress_ratios=ratios))
    return run_attention(mixer, plan, 0, [0, 512 - CHUNK + 1, 700])


def delta() -> Outputs:
    weights, plan = model()
    mixer: Any = weights.layers[0].mixer
    state = like(SequenceState.fresh(plan).recurrent.mixers[0], 5)
    layer, found = jax.jit(delta_file.delta_net, static_argnums=4), []
    for number, (length, count) in enumerate([(CHUNK, CHUNK), (CHUNK, 5), (1, 1)]):
        projected = random(length, mixer.project.shape[1], seed=number)
        out, state = layer(mixer, projected, state, np.int32(count), plan)
        found.append(np.asarray(out)[:count])
    return found


def routed() -> Outputs:
    weights, plan = model()
    layer = jax.jit(experts_file.experts, static_argnums=2)
    return [np.asarray(layer(weights.layers[0].experts, random(n, plan.config.width), plan)) for n in (CHUNK, 1)]


def ple() -> Outputs:
    """A chunk, a padded one and a token; then rows whose keys agree with the streams by less than 1e-6."""
    weights, plan = model()
    config, own = plan.config, weights.layers[plan.config.ple.layer].ple
    assert own is not None

    @jax.jit
    def layer(rows: Any, streams: Any, state: Any, count: Any) -> Any:
        gated = ple_file.ple_gated(own, rows, streams, plan)
        return gated, ple_file.ple_smoothed(own, gated, state, count, plan)

    state, found = like(SequenceState.fresh(plan).recurrent.ple, 3), []
    for number, (length, count) in enumerate([(CHUNK, CHUNK), (CHUNK, 5), (1, 1)]):
        rows = random(length, config.ple.heads * config.ple.row_width, seed=number)
        streams = random(length, config.streams, config.width, seed=50 + number)
        gated, (added, state) = layer(rows, streams, state, np.int32(count))
        found += [np.asarray(gated)[:count], np.asarray(added)[:count]]
    small = random(1, config.streams, config.width, seed=60, scale=1e-11)
    gated, _ = layer(random(1, config.ple.heads * config.ple.row_width, seed=61), small, state, np.int32(1))
    found.append(np.asarray(gated))
    return found


def best() -> Outputs:
    """Scores of few different values, in as many groups as need the second form of the choice."""
    budget, width = 8, 512
    run = jax.jit(attention_file._best_blocks, static_argnums=(0, 1))
    scores = np.floor(np.random.default_rng(2).exponential(0.6, (CHUNK, width))).astype(np.float32)
    asking = np.eye(CHUNK, dtype=np.float32)[:, None, :]
    return [np.asarray(run(budget, width, asking, scores, np.full(CHUNK, width, np.int32)))]


def finish() -> Outputs:
    weights, plan = model()
    streams = random(2 * CHUNK, plan.config.streams, plan.config.width)
    states = (SequenceState.fresh(plan), SequenceState.fresh(plan))
    run = jax.jit(trunk.finish, static_argnums=4)
    return [np.asarray(run(weights, streams, states, np.array([CHUNK, 3], np.int32), plan)[0])]


def outcome() -> Outputs:
    logits = random(5, 40)
    logits[0, [7, 30]] = 9
    logits[1, 5] = -np.inf
    logits[2, 6] = np.inf
    logits[3, 8] = np.nan
    found = jax.jit(programs.outcome_of)(logits)
    return [np.asarray(found.tokens)[[0, 1, 4]], np.asarray(found.margins)]


def marked() -> Outputs:
    streams = random(3 * 4, 2, 6)
    streams[3] = np.nan  # padding of the first sequence
    streams[5, 1, 2] = np.inf  # a token of the second
    state = programs.Outcome(jnp.zeros(3, jnp.int32), jnp.ones(3), jnp.asarray(random(3, 5)))
    found = jax.jit(programs.marked)(state, streams, np.array([3, 4, 4], np.int32))
    return [np.asarray(found.margins)]


LAYERS: dict[str, Callable[[], Outputs]] = {
    "attention": indexed,
    "dense attention": dense,
    "delta net": delta,
    "experts": routed,
    "ple": ple,
    "best blocks": best,
    "finish": finish,
    "outcome": outcome,
    "marked": marked,
}


@cache
def unplanted(layer: str) -> Outputs:
    return LAYERS[layer]()


def difference(found: Outputs, expected: Outputs) -> float:
    """The largest relative difference of an output; infinite where one has NaN and the other has not."""
    worst = 0.0
    for ours, right in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (right.dtype, right.shape)
        if not np.array_equal(np.isnan(ours), np.isnan(right)) or not np.array_equal(np.isinf(ours), np.isinf(right)):
            return float("inf")
        ours, right = (np.where(np.isfinite(x), x, 0).astype(np.float64) for x in (ours, right))
        ours, right = (x.reshape(x.shape[0], -1) for x in (ours, right))
        errors = np.linalg.norm(ours - right, axis=1) / np.maximum(np.linalg.norm(right, axis=1), 1e-30)
        worst = max(worst, float(errors.max(initial=0)))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("branch", BRANCHES, ids=lambda branch: branch.name)
def test_a_flip_of_every_branch_is_seen(branch: Branch) -> None:
    expected = unplanted(branch.layer)
    module = importlib.import_module(branch.file.removesuffix(".py").replace("/", "."))
    with planted_text(module, branch.function, branch.old, branch.new):
        jax.clear_caches()
        try:
            found = difference(LAYERS[branch.layer](), expected)
        finally:
            jax.clear_caches()
    print(f"{branch.name}: {found:.1e}")
    assert found > SEEN


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_without_a_flip_a_layer_gives_the_same_bits(layer: str) -> None:
    """What the flips are compared with."""
    expected = unplanted(layer)
    jax.clear_caches()
    for ours, right in zip(LAYERS[layer](), expected, strict=True):
        np.testing.assert_array_equal(ours, right)


BRANCHING = re.compile(r"\b(where|switch|cond|fori_loop|while_loop|clip|maximum|minimum|tril|dynamic_slice_in_dim)$")


def test_every_branch_of_the_compiled_code_is_listed() -> None:
    """A new `where`, `switch`, loop or clip in `fast/model` or the programs needs a line in the table.

    Those of a step that checks guesses are in the table of faults. `follow` slices by the count of a padded piece:
    `test_the_head_follows_padded_pieces_as_single_tokens` sees it.
    """
    listed = {(branch.file, branch.function) for branch in BRANCHES}
    apart = {"score", "add_row", "last", "follow"}  # inside of listed ones, but the last
    apart |= {"_group"}  # tiles by their number: tests/fast/model/test_packed_product.py takes every row out
    listed |= {(f"{module.replace('.', '/')}.py", function) for _, module, function, *_ in ROLLBACK.values()}
    for path in [*sorted((ROOT / "fast/model").glob("*.py")), ROOT / "fast/engine/programs.py"]:
        for function in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                name = ast.unparse(call.func)
                if BRANCHING.search(name) is None or name.startswith("np."):
                    continue
                file = str(path.relative_to(ROOT))
                inner = {node.name for node in ast.walk(function) if isinstance(node, ast.FunctionDef)}
                known = any((file, each) in listed for each in inner) or function.name in apart
                assert known, f"{file}: {function.name} has {name}, which tests/fast/branches.py does not list"


def test_hidden_branches_are_still_there() -> None:
    for hidden in HIDDEN:
        assert (ROOT / hidden.file).read_text().count(hidden.text) == 1, hidden
