"""Experts that are read when they are chosen: the same model, whatever the memory, the mode and the split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fast.engine.engine import FastEngine
from fast.engine.layered import grouped
from fast.engine.settings import EngineSettings
from fast.rows import MODES
from model_file.errors import InputError
from tests.fast.engines import LOGIT_BOUND, answers, opened, shared, worst_error

PLENTY = 2 << 30
FILES = ["tiny", "tiny-quant", "llama-arch"]  # the last with scales of experts, and gate and up in one tensor


def prompt(name: str = "tiny-quant") -> list[int]:
    return answers(name)["prompt_0"].tolist()[:90]


def store(engine: FastEngine) -> Any:
    return engine.step.store  # type: ignore[attr-defined]


def least(name: str) -> int:
    """The memory with which two experts are kept, of all."""
    with opened(name, memory_bytes=PLENTY) as engine:
        memory = engine.memory()
        (ring,) = store(engine)._rings
        return memory["total"] - memory["experts"] + 2 * ring.shape.size_bytes


@pytest.mark.parametrize("name", FILES)
def test_logits_are_those_of_the_model_in_memory(name: str) -> None:
    right = shared(name).new_sequence()
    expected = right.feed(prompt(name))
    with opened(name, memory_bytes=PLENTY) as engine:
        sequence = engine.new_sequence()
        assert worst_error(sequence.feed(prompt(name)), expected) < LOGIT_BOUND
        assert sequence.greedy(12) == right.greedy(12)
        assert engine.step.weights_bytes < shared(name).step.weights_bytes
        if name == "llama-arch":
            assert store(engine).shape(0).fused and store(engine)._scales[0] is not None


@pytest.mark.parametrize("name", FILES)
def test_memory_changes_no_bit(name: str) -> None:
    """Room for two experts of all: every one is read again and again, and the answer is the same to the last bit."""
    found = []
    for memory in (PLENTY, least(name)):
        with opened(name, memory_bytes=memory) as engine:
            sequence = engine.new_sequence()
            logits = sequence.feed(prompt(name))
            found.append((logits.tobytes(), tuple(sequence.generate(8)), store(engine).counters.read))
    assert found[0][:2] == found[1][:2]
    all_experts = shared(name).config.layers * shared(name).config.experts
    assert found[0][2] <= all_experts < found[1][2], "a ring that never turns proves nothing"


@pytest.mark.parametrize("mode", list(MODES))
def test_modes_change_no_bit(mode: str) -> None:
    with opened("tiny-quant", memory_bytes=PLENTY, expert_mode="mmap") as engine:
        expected = engine.new_sequence().feed(prompt()).tobytes()
        assert store(engine).mode == "mmap"
        engine.step.read_experts(mode)
        read = store(engine).counters.read
        assert engine.new_sequence().feed(prompt()).tobytes() == expected
        assert store(engine).mode == mode
        assert store(engine).counters.read > read or mode == "mmap", "another mode has read nothing yet"


def test_experts_are_read_as_rows_are_unless_told() -> None:
    with opened("tiny-quant", mode="prefetch", memory_bytes=PLENTY) as engine:
        assert store(engine).mode == "prefetch"
    with opened("tiny-quant", mode="resident", memory_bytes=PLENTY) as engine:
        assert store(engine).mode == "auto", "all experts would be in memory"
    with opened("tiny-quant", mode="mmap", memory_bytes=PLENTY, expert_mode="uring") as engine:
        assert store(engine).mode == "uring"


def test_splits_batches_and_ways_back_change_no_token() -> None:
    ids = prompt()
    with opened("tiny-quant", memory_bytes=PLENTY) as engine:
        whole = engine.new_sequence()
        whole.feed(ids, last_only=True)
        expected = whole.greedy(8)
        for size in (1, 7, 64):
            sequence = engine.new_sequence()
            for start in range(0, len(ids), size):
                sequence.feed(ids[start : start + size], last_only=True)
            saved = sequence.save()
            assert [token for token, _ in sequence.generate(8)] == expected
            sequence.truncate(len(ids) + 3)
            assert sequence.greedy(5) == expected[3:]
            sequence.restore(saved)
            assert sequence.greedy(8) == expected
        two = [engine.new_sequence(), engine.new_sequence()]
        engine.feed_batch([(two[0], ids), (two[1], ids[:11])], last_only=True)
        assert engine.greedy_batch(two, 8)[0] == expected


def test_every_intermediate_is_recorded() -> None:
    ids = prompt()[:40]
    engine = shared("tiny-quant")
    _, expected = engine.feed_recorded(engine.new_sequence(), ids)
    with opened("tiny-quant", memory_bytes=PLENTY) as lazy:
        _, found = lazy.feed_recorded(lazy.new_sequence(), ids)
    assert set(found) == set(expected)
    for name, values in expected.items():
        flat = np.asarray(values, np.float64).reshape(len(ids), -1)
        off = np.linalg.norm(found[name].reshape(flat.shape) - flat, axis=1) / np.linalg.norm(flat, axis=1)
        assert off.max() < 4 * LOGIT_BOUND, name


def test_nothing_is_compiled_after_warm_up() -> None:
    with opened("tiny-quant", memory_bytes=PLENTY) as engine:
        assert engine.warm_up() > 0 and engine.compilations > 0
        before = engine.compilations
        sequence = engine.new_sequence()
        sequence.feed(prompt())
        sequence.greedy(3)
        assert engine.compilations == before
        assert engine.timings.as_dict()["steps"][-1]["compile_s"] == 0


def test_padding_asks_for_no_expert() -> None:
    with opened("tiny-quant", memory_bytes=PLENTY) as engine:
        engine.new_sequence().feed([7], last_only=True)  # alone in a chunk of 1
        one = store(engine).counters.asked
        engine.new_sequence().feed([7, 7], last_only=True)  # padded to 64
        assert one == engine.config.layers * engine.config.experts_used
        assert store(engine).counters.asked <= 3 * one


def test_groups_hold_every_pair_once() -> None:
    rng = np.random.default_rng(2)
    chosen = np.stack([rng.permutation(12)[:3] for _ in range(50)]).astype(np.int32)
    shares = rng.random((50, 3)).astype(np.float32)
    real = np.arange(50) < 43
    pairs = []
    for group in grouped(chosen, shares, real, 12, 5):
        assert len(set(group.experts.tolist())) == len(group.experts) <= 5
        for tile in range(group.count):
            expert = int(group.experts[group.place[tile]])
            there = group.shares[tile] > 0
            tokens, values = group.token_of[tile][there].tolist(), group.shares[tile][there].tolist()
            pairs += [(token, expert, share) for token, share in zip(tokens, values, strict=True)]
        assert not group.shares[group.count :].any()
    expected = [(t, int(chosen[t, u]), float(shares[t, u])) for t in range(43) for u in range(3)]
    assert sorted(pairs) == sorted(expected)


def test_a_memory_that_holds_too_little_is_refused() -> None:
    memory = least("tiny-quant") - 1
    with (
        pytest.raises(
            InputError, match=r"a memory of .* MiB, expected .* MiB or more \(.*process 314, and two experts\)"
        ),
        opened("tiny-quant", memory_bytes=memory),
    ):
        pass


def test_a_failed_read_takes_the_step_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("tiny-quant", memory_bytes=PLENTY) as engine:
        sequence, ids = engine.new_sequence(), prompt()
        expected = engine.new_sequence().feed(ids).tobytes()
        sequence.feed(ids[:20])
        saved = sequence.save()
        with monkeypatch.context() as patch:
            patch.setattr(store(engine), "take", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
            with pytest.raises(OSError, match="Input/output error"):
                sequence.feed(ids[20:])
        with pytest.raises(RuntimeError, match="its state is lost: restore a saved one"):
            sequence.feed(ids[20:])
        sequence.restore(saved)
        sequence.feed(ids[20:])
        assert sequence.position == len(ids)
        assert engine.new_sequence().feed(ids).tobytes() == expected


def test_another_device_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    with pytest.raises(InputError, match="JAX computes on gpu, expected cpu"), opened("tiny", memory_bytes=PLENTY):
        pass


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"memory_bytes": 0}, "memory_bytes is 0"),
        ({"expert_mode": "mmap"}, "without memory_bytes"),
        ({"memory_bytes": 1, "draft": 2}, "draft is 2"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        EngineSettings(**wrong)
