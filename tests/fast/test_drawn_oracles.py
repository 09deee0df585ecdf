"""Architectures drawn from a seed, the reference against engines that are not ours: `nox -s oracles`.

PLEGATE_ORACLE_SEED is the first seed (printed, so that a night can be repeated), PLEGATE_ORACLE_MODELS how many.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fast.rows import locate_table, open_rows
from fast.rows.dequantize import dequantize_numpy
from harness.engines.program import find_server
from harness.engines.transformers import VARIABLE, TransformersEngine
from harness.errors import CannotRun
from harness.synth.making import make_model
from harness.synth.random_models import for_llama_cpp, random_recipe, random_tokens, smallest
from harness.synth.recipe import Recipe
from model_file.config import config_from
from model_file.gguf_file import open_gguf
from reference.closeness import gaps
from reference.decode import Session
from reference.parameters import load_parameters
from tests.conftest import FIXTURES
from tests.fast.engines import LOGIT_BOUND
from tests.fast.test_outside_engines import exact

pytestmark = pytest.mark.slow
FIRST = int(os.environ.get("PLEGATE_ORACLE_SEED", random.SystemRandom().randrange(1 << 30)))
MODELS = int(os.environ.get("PLEGATE_ORACLE_MODELS", "64"))
TOKENS, STEPS = 64, 16
TIE, STEEP = 2e-5, 3e-5  # relative gap of a selection, argument of the PLE gate: below, engines may rightly differ
CLOSE = 1e-4  # of a greedy step's margin, by the size of the logits: below, engines may rightly choose another token


class Right:
    """What the reference answers: logits, greedy tokens, and how far both may be compared."""

    def __init__(self, path: Path, seed: int) -> None:
        with open_gguf(path) as model, open_rows(locate_table(model), "mmap") as reader:
            config, kind = config_from(model), reader.table.type
            self.ids = random_tokens(seed, config, TOKENS)
            weights = load_parameters(model, config)
            session = Session(weights, config, lambda rows: dequantize_numpy(reader.gather(rows), kind), TOKENS + STEPS)
            self.logits, named = session.feed_recorded(self.ids)
            self.untied = self._first_tie(gaps(named, config), TOKENS)
            self.tokens: list[int] = []
            last, tied = self.logits[-1], self.untied < TOKENS
            while not tied and len(self.tokens) < STEPS:
                second, best = np.sort(last)[-2:]
                if best - second < CLOSE * float(np.abs(last).max()):
                    break
                self.tokens.append(int(np.argmax(last)))
                logits, named = session.feed_recorded(self.tokens[-1:])
                last, tied = logits[-1], self._first_tie(gaps(named, config), 1) < 1

    @staticmethod
    def _first_tie(found: dict[str, np.ndarray], count: int) -> int:
        tied = np.zeros(count, bool)
        for name, values in found.items():
            close = STEEP if name.endswith("ple_agreement") else TIE
            tied |= (np.abs(values) < close).reshape(count, -1).any(axis=1)
        return int(np.argmax(tied)) if tied.any() else count


def differs(right: Right, logits: np.ndarray | None, tokens: list[int]) -> str | None:
    """How an engine's answer differs from the reference's before the first tie; None: it does not."""
    if logits is not None:
        error = np.linalg.norm(logits - right.logits, axis=1) / np.linalg.norm(right.logits, axis=1)
        bad = np.flatnonzero(~(error[: right.untied] <= LOGIT_BOUND))
        if bad.size:
            return f"position {bad[0]}: error {error[bad[0]]:.2g}, expected at most {LOGIT_BOUND:g}"
    count = len(right.tokens)
    return None if tokens[:count] == right.tokens else f"greedy tokens {tokens[:count]}, expected {right.tokens}"


@pytest.fixture(scope="module")
def transformers() -> Iterator[TransformersEngine]:
    try:
        engine = TransformersEngine(FIXTURES / "tiny.gguf", threads=2)
    except CannotRun as reason:
        pytest.skip(f"{reason} (or {VARIABLE} is not set)")
    with engine:
        yield engine


def asked(engine: TransformersEngine, recipe: Recipe, path: Path) -> tuple[Right, str | None]:
    make_model(recipe, path, force=True)
    engine.open(path)
    right = Right(path, recipe.seed)
    answer = engine.complete(right.ids, STEPS, with_logits=True)
    return right, differs(right, answer.logits, answer.tokens)


def fails(engine: TransformersEngine, recipe: Recipe, path: Path) -> bool:
    """Whether the answers differ; not so of a model that transformers refuses."""
    try:
        return asked(engine, recipe, path)[1] is not None
    except CannotRun:
        return False


def test_transformers_agrees_on_drawn_architectures(transformers: TransformersEngine, tmp_path: Path) -> None:
    count: Counter[str] = Counter()
    print(f"PLEGATE_ORACLE_SEED={FIRST} PLEGATE_ORACLE_MODELS={MODELS}")
    for seed in range(FIRST, FIRST + MODELS):
        recipe, path = random_recipe(seed), tmp_path / f"{seed}.gguf"
        try:
            right, found = asked(transformers, recipe, path)
        except CannotRun as reason:
            count["refused"] += 1
            print(f"seed {seed}: {str(reason).splitlines()[-1].strip()[:200]}")
            continue
        if found is not None:
            small = smallest(recipe, lambda other, path=path: fails(transformers, other, path))
            fails(transformers, small, path)
            again = f"PLEGATE_ORACLE_SEED={seed} PLEGATE_ORACLE_MODELS=1"
            pytest.fail(f"{again}: {found}; the smallest model that differs is kept as {path}: {small.preset.config}")
        count += Counter(models=1, positions=right.untied, tokens=len(right.tokens))
        count += Counter(
            {"positions after a tie": TOKENS - right.untied, "tokens not asked for": STEPS - len(right.tokens)}
        )
        path.unlink()
    print("transformers:", dict(count))
    assert count["positions"] > count["positions after a tie"]


def why(refusal: CannotRun) -> str:
    """What llama.cpp says is wrong with a file; its last line says only that it ends."""
    lines = str(refusal).splitlines()
    return next((line for line in lines if "error loading model:" in line), lines[-1]).strip()[:200]


def test_llama_cpp_agrees_on_what_it_accepts(tmp_path: Path) -> None:
    """Greedy tokens; a model that it refuses to load is counted, and it takes all that were drawn for it."""
    try:
        program = find_server()
    except CannotRun as reason:
        pytest.skip(str(reason))
    count: Counter[str] = Counter()
    print(f"PLEGATE_ORACLE_SEED={FIRST} PLEGATE_ORACLE_MODELS={MODELS}")
    for seed in range(FIRST, FIRST + MODELS):
        path = tmp_path / f"{seed}.gguf"
        make_model(random_recipe(seed), path)
        right = Right(path, seed)
        try:
            with (adapter := exact(program, path)).server:
                tokens = adapter.complete(right.ids, STEPS).tokens
        except CannotRun as reason:
            assert not for_llama_cpp(seed), f"PLEGATE_ORACLE_SEED={seed} PLEGATE_ORACLE_MODELS=1: {reason}"
            count["refused"] += 1
            print(f"seed {seed}: {why(reason)}")
            continue
        finally:
            path.unlink()
        found = differs(right, None, tokens)
        assert found is None, f"PLEGATE_ORACLE_SEED={seed} PLEGATE_ORACLE_MODELS=1: {found}"
        count += Counter(models=1, tokens=len(right.tokens))
        count += Counter({"tokens not asked for": STEPS - len(right.tokens)})
    print("llama.cpp:", dict(count))
