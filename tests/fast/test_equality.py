"""The fast engine against engines that are not ours: every fixture, chunk size and access mode, and batches."""

from __future__ import annotations

import numpy as np
import pytest

from fast.rows import MODES, ModeCannotRun, locate_table, open_rows
from model_file.gguf_file import open_gguf
from tests.fast.engines import LOGIT_BOUND, answers, find, opened, shared, worst_error

CHUNKS = [1, 5, 64, 256, 512]
PROMPTS = range(3)


# Every pair is tested; those marked slow only spare the normal suite their compilation.
@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        pytest.param(name, chunk, marks=[pytest.mark.slow] if name == "tiny-quant" and chunk != 64 else [])
        for name in ("tiny", "tiny-quant")
        for chunk in CHUNKS
    ],
)
def test_tokens_and_logits_equal_other_engines(name: str, chunk: int) -> None:
    expected = answers(name)
    with opened(name, chunk=chunk) as engine:
        for number in PROMPTS:
            sequence = engine.new_sequence()
            logits = sequence.feed(expected[f"prompt_{number}"].tolist())
            assert worst_error(logits, expected[f"logits_{number}"]) <= LOGIT_BOUND
            assert sequence.greedy(32) == expected[f"greedy_{number}"].tolist()
            # A margin is a difference of two logits, each within the bound of the largest one.
            slack = 2 * LOGIT_BOUND * float(np.abs(logits).max())
            assert np.abs(np.array(sequence.margins) - expected[f"margin_{number}"]).max() <= slack


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [5, 64])
def test_scales_biases_and_fused_experts_equal_llama_cpp(chunk: int) -> None:
    expected = answers("llama-arch")
    with opened("llama-arch", chunk=chunk) as engine:
        for number in PROMPTS:
            sequence = engine.new_sequence()
            logits = sequence.feed(expected[f"prompt_{number}"].tolist())
            assert worst_error(logits, expected[f"logits_{number}"]) <= LOGIT_BOUND
            assert sequence.greedy(32) == expected[f"greedy_{number}"].tolist()


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_access_mode_gives_the_same_bits(mode: str) -> None:
    expected = answers("tiny-quant")
    prompt = expected["prompt_0"].tolist()
    baseline = shared("tiny-quant").new_sequence()
    logits, tokens = baseline.feed(prompt), baseline.greedy(32)
    with open_gguf(find("tiny-quant.gguf")) as model:
        try:
            reader = open_rows(locate_table(model), mode)
        except ModeCannotRun as reason:
            pytest.skip(f"{mode} cannot run here: {reason}")
        with reader:
            if reader.fallback_reason is not None:
                pytest.skip(f"{mode} would be {reader.effective_mode} here: {reader.fallback_reason}")
    with opened("tiny-quant", mode=mode) as engine:
        sequence = engine.new_sequence()
        np.testing.assert_array_equal(sequence.feed(prompt), logits)
        assert sequence.greedy(32) == tokens == expected["greedy_0"].tolist()
        assert getattr(engine.reader, "effective_mode", None) == mode


def test_batched_sequences_equal_single_ones() -> None:
    expected, engine = answers("tiny"), shared("tiny")
    sequences = [engine.new_sequence() for _ in PROMPTS]
    prompts = [expected[f"prompt_{number}"].tolist() for number in PROMPTS]
    assert len({len(prompt) for prompt in prompts}) == len(prompts), "the lengths must differ to test anything"
    batch = engine.feed_batch(list(zip(sequences, prompts, strict=True)))
    chosen = engine.greedy_batch(sequences, 32)
    for number in PROMPTS:
        assert worst_error(batch[number], expected[f"logits_{number}"]) <= LOGIT_BOUND
        assert chosen[number] == expected[f"greedy_{number}"].tolist()
        assert sequences[number].position == len(prompts[number]) + 32


def test_recorded_intermediates_have_the_references_names_and_values() -> None:
    from fast.rows.dequantize import dequantize_numpy
    from model_file.config import config_from
    from reference.decode import Session
    from reference.parameters import load_parameters

    prompt = answers("tiny")["prompt_0"].tolist()[:64]
    engine = shared("tiny")
    sequence = engine.new_sequence()
    logits, named = engine.feed_recorded(sequence, prompt)
    with open_gguf(find("tiny.gguf")) as model, open_rows(locate_table(model), "mmap") as reader:
        config = config_from(model)
        kind = reader.table.type
        session = Session(
            load_parameters(model, config), config, lambda ids: dequantize_numpy(reader.gather(ids), kind), room=64
        )
        expected_logits, expected = session.feed_recorded(prompt)
    assert worst_error(logits, expected_logits) <= LOGIT_BOUND
    assert len(named) == 3 * config.layers + 1
    for name, value in named.items():
        flat = (len(prompt), -1)
        assert worst_error(value.reshape(flat), expected[name].reshape(flat)) <= LOGIT_BOUND, name
    assert sequence.position == len(prompt)


def test_a_wrong_row_is_seen_in_the_logits() -> None:
    """The bound can fail: one row of one token taken from elsewhere is far outside of it."""
    expected, engine = answers("tiny"), shared("tiny")
    prompt = expected["prompt_0"].tolist()
    honest = engine.chunks.reader

    class Swapping:
        def gather(self, ids, out=None):  # type: ignore[no-untyped-def]
            ids = np.array(ids)
            ids[20] = (ids[20] + 1) % engine.config.ple.rows_needed
            return honest.gather(ids, out)

    engine.chunks.reader = Swapping()
    try:
        logits = engine.new_sequence().feed(prompt)
    finally:
        engine.chunks.reader = honest
    assert worst_error(logits, expected["logits_0"]) > 10 * LOGIT_BOUND
