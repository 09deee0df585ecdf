"""Acceptance on the whole small model: goldens in every chunk size, depth 8192 against the reference, speed and memory.

All marked slow: they make `nano` on first use, and measure. Times are compared within one run, in turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pytest

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import MODES, locate_table, open_rows
from fast.rows.residency import make_cold
from harness.answers.store import golden_folder, read_golden
from harness.cases.prompts import varied_ids
from harness.synth import cache_folder, ensure_model
from model_file.gguf_file import open_gguf
from tests.fast.engines import LOGIT_BOUND, worst_error

pytestmark = pytest.mark.slow

CASES = ["nano-texts", "nano-edges", "nano-repeats"]
NEAR_TIE = 2e-5
"""Relative gap between the last kept and the first dropped block or expert below which two correct engines may choose
differently: ten times the error of a score. Among thousands of blocks one query in a few hundred comes that close, and
what it chooses is carried on by the memories of all later layers."""


def nano() -> Path:
    return ensure_model("nano")


@contextmanager
def opened(mode: str = "resident", **settings: object) -> Iterator[FastEngine]:
    programs = cache_folder() / "programs"
    chosen = EngineSettings(**{"cache_dir": programs, **settings})  # type: ignore[arg-type]
    with (
        open_gguf(nano()) as file,
        open_rows(locate_table(file), mode) as reader,
        FastEngine(file, reader, chosen) as engine,
    ):
        yield engine


@pytest.mark.parametrize("chunk", [1, 5, 64, 256, 512])
def test_golden_tokens_in_every_chunk_size(chunk: int) -> None:
    with opened(context=1024, chunk=chunk, buckets=(chunk,)) as engine:
        for case in CASES:
            golden = read_golden(case, golden_folder())
            assert golden is not None
            for prompt in golden.prompts:
                sequence = engine.new_sequence()
                sequence.feed(prompt.ids, last_only=True)
                assert sequence.greedy(len(prompt.generated)) == list(prompt.generated), (case, prompt.name)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_golden_tokens_in_every_mode_at_depth_4096(mode: str) -> None:
    golden = read_golden("nano-4096", golden_folder())
    assert golden is not None
    prompt = golden.prompts[0]
    with opened(mode, context=len(prompt.ids) + len(prompt.generated), chunk=512) as engine:
        sequence = engine.new_sequence()
        sequence.feed(prompt.ids, last_only=True)
        assert sequence.greedy(len(prompt.generated)) == list(prompt.generated)


def test_logits_equal_the_references_to_depth_8192() -> None:
    """Windows of 64 tokens from the reference's own state at every depth, each compared up to its first near tie."""
    from tests.fast.deep import Reference

    depth, window, compared, worst = 8192, 64, 0, 0.0
    with opened(context=depth, chunk=64, buckets=(64,)) as engine, Reference(nano(), depth) as reference:
        ids = varied_ids(depth, engine.config.vocab, seed=5, avoid=(engine.config.ple.hash.eos,))
        sequence = engine.new_sequence()
        for start in range(0, depth, window):
            inside = ids[start : start + window]
            if start % (8 * window) and start < depth - 2 * window:
                reference.session.feed(inside)
                continue
            sequence.restore(reference.saved(engine, ids[:start]))
            expected, gap = reference.feed_with_gaps(inside)
            logits = sequence.feed(inside)
            near = np.flatnonzero(gap < NEAR_TIE)
            end = int(near[0]) if near.size else window
            if end:
                error = worst_error(logits[:end], expected[:end])
                assert error <= LOGIT_BOUND, f"depth {start}: {error} before the first near tie at {end}"
                margins = -np.diff(np.sort(expected[:end], axis=1)[:, -2:][:, ::-1], axis=1)[:, 0]
                decided = margins > 2 * LOGIT_BOUND * np.abs(expected[:end]).max(axis=1)
                same = logits[:end].argmax(axis=1) == expected[:end].argmax(axis=1)
                assert same[decided].all(), f"depth {start}: token {np.flatnonzero(decided & ~same)[0]} differs"
                compared, worst = compared + end, max(worst, error)
    print(f"{compared} positions at 18 depths up to {depth}, largest error {worst:.1e}")
    assert compared >= 400, "near ties left too little to compare"


def test_decode_at_depth_32768_takes_at_most_twice_the_time_of_depth_0() -> None:
    depth = 32768
    with opened(context=depth + 512, chunk=512) as engine:
        engine.warm_up(with_logits=False)
        compiled = engine.compilations
        ids = varied_ids(depth, engine.config.vocab, seed=6, avoid=(engine.config.ple.hash.eos,))
        deep = engine.new_sequence()
        deep.feed(ids, last_only=True)
        ratios = []
        for _ in range(5):
            times = []
            for sequence in (engine.new_sequence(), deep.fork()):
                sequence.feed(ids[:1], last_only=True)
                started = perf_counter()
                sequence.greedy(64)
                times.append(perf_counter() - started)
            ratios.append(times[1] / times[0])
        assert engine.compilations == compiled
    print(f"decode at depth {depth} takes {median(ratios):.2f} of the time at depth 0 ({ratios})")
    assert median(ratios) <= 2


def test_peak_memory_at_depth_32768_is_within_the_formula() -> None:
    command = [sys.executable, "-m", "tests.fast.peak_memory", str(nano())]
    for depth in ("600", "32768"):  # the first only to have the programs in the cache
        run = subprocess.run(
            [*command, depth], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
        )
        assert run.returncode == 0, run.stderr
    measured = json.loads(run.stdout.splitlines()[-1])
    print(measured)
    assert measured["peak_bytes"] <= 1.2 * measured["stated_bytes"]
    assert measured["peak_bytes"] >= 0.8 * measured["stated_bytes"], "the formula states far more than is used"


def test_prefill_of_8192_waits_for_few_rows_cold_and_for_none_warm() -> None:
    """In `auto`: cold at most 1.1 of the slower one of a resident prefill and the gather alone, warm at most 1.03."""
    depth, cold, warm = 8192, [], []
    with opened(context=depth, chunk=512) as engine, open_gguf(nano()) as file:
        table, honest = locate_table(file), engine.reader
        engine.warm_up(with_logits=False)
        ids = varied_ids(depth, engine.config.vocab, seed=7, avoid=(engine.config.ple.hash.eos,))
        rows = engine.chunks.hash.many(ids, []).reshape(-1)

        def prefill_s(reader: object) -> float:
            engine.reader = engine.chunks.reader = reader  # type: ignore[assignment]
            engine.timings.reset()
            sequence = engine.new_sequence()
            started = perf_counter()
            sequence.feed(ids, last_only=True)
            return perf_counter() - started

        def gather_s() -> float:
            make_cold(table)
            with open_rows(table, "auto") as reader:
                started = perf_counter()
                for start in range(0, rows.size, 512 * engine.config.ple.heads):
                    reader.gather(rows[start : start + 512 * engine.config.ple.heads])
                return perf_counter() - started

        for _ in range(5):
            resident, alone = prefill_s(honest), gather_s()
            eviction = make_cold(table)
            assert eviction.cold, eviction
            with open_rows(table, "auto") as reader:
                cold.append((prefill_s(reader) / max(resident, alone), engine.timings.exposed_wait_s))
                again = prefill_s(honest)
                warm.append((prefill_s(reader) / again, engine.timings.exposed_wait_s))
        engine.reader = engine.chunks.reader = honest
    ratio_cold, ratio_warm = (median(ratio for ratio, _ in runs) for runs in (cold, warm))
    print(f"cold {ratio_cold:.3f}, warm {ratio_warm:.3f}; exposed waits {cold} {warm}")
    assert ratio_cold <= 1.1
    assert ratio_warm <= 1.03
