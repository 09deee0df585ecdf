"""The engine around the model: nothing compiled twice, waits measured, failures without damage, memory as stated."""

from __future__ import annotations

import dataclasses
import re
import threading
import warnings
from pathlib import Path
from time import sleep
from typing import cast

import gguf
import numpy as np
import pytest

from fast.engine.engine import FastEngine
from fast.engine.memory import memory_bytes
from fast.engine.settings import EngineSettings, plan_for
from fast.model.state import SequenceState, size_bytes
from fast.model.weights import load_weights
from fast.rows import RowReader
from harness.cases.case import parse_modes
from harness.cases.registry import case_by_id
from harness.engines.runner import FastRunner, make_runner
from harness.gate import run as gate
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.inventory import UnappliedNotice
from reference.parameters import load_parameters
from tests.fast.engines import answers, find, opened, shared
from tests.gguf_edit import Keys, Tensors, edited


def test_nothing_is_compiled_after_warm_up() -> None:
    """Chunks of every length, decode, rollback, save, restore, fork, all logits and the last, to the context's end."""
    prompt = answers("tiny")["prompt_0"].tolist()
    with opened("tiny", chunk=64, buckets=(1, 16, 64)) as engine:
        assert engine.warm_up() > 0
        before = engine.compilations
        assert before > 0, "a warm-up that compiles nothing counts nothing"
        for length in (1, 2, 15, 16, 17, 63, 64, 65, 160):
            sequence = engine.new_sequence()
            sequence.feed(prompt[:length])
            sequence.feed(prompt[:length], last_only=True)
            sequence.greedy(3)
            saved = sequence.save()
            sequence.fork().greedy(3)
            sequence.truncate(sequence.position - 1)
            sequence.restore(saved)
            sequence.greedy(1)
        sequence = engine.new_sequence()
        sequence.feed((prompt * 6)[: engine.settings.context - 5], last_only=True)
        sequence.greedy(5)
        assert sequence.position == engine.settings.context
        assert engine.compilations == before


def test_the_compilation_counter_counts() -> None:
    with opened("tiny", chunk=64, context=91) as engine:
        engine.new_sequence().feed([1, 2, 3], last_only=True)
        assert engine.compilations > 0
        assert engine.timings.compile_s > 0


class Slow:
    """A reader that takes its time, and remembers what was asked of it and by whom."""

    def __init__(self, engine: FastEngine, seconds: float) -> None:
        self.inner, self.seconds, self.calls = engine.reader, seconds, list[tuple[int, str]]()

    def gather(self, ids, out=None):  # type: ignore[no-untyped-def]
        sleep(self.seconds)
        self.calls.append((len(ids), threading.current_thread().name))
        return self.inner.gather(ids, out)


def test_waits_for_rows_are_measured_and_mostly_hidden() -> None:
    prompt = answers("tiny")["prompt_0"].tolist()[:128]
    with opened("tiny", chunk=16) as engine:
        engine.warm_up(with_logits=False)
        engine.timings.reset()
        slow = Slow(engine, 0.05)
        engine.reader = engine.chunks.reader = slow
        sequence = engine.new_sequence()
        sequence.feed(prompt, last_only=True)
        steps = list(engine.timings.steps)
        assert [step.tokens for step in steps] == [16] * 8
        assert all(step.gather_s >= 0.05 for step in steps)
        # A chunk of this model computes in a few ms, so nearly all of a gather of 50 ms is waited for, and is shown.
        assert sum(step.exposed_wait_s for step in steps) >= 0.25
        assert sum(step.exposed_wait_s + step.compute_s for step in steps) >= 8 * 0.05
        assert all(thread.startswith("rows") for _, thread in slow.calls)
        engine.timings.reset()
        sequence.greedy(4)
        decoded = list(engine.timings.steps)
        assert [step.decode for step in decoded] == [True] * 4
        assert all(0.04 <= step.exposed_wait_s <= step.gather_s for step in decoded)
        report = engine.timings.as_dict()
        assert report["decode_tokens"] == len(report["steps"]) == 4


def test_no_row_is_read_that_no_token_names() -> None:
    with opened("tiny", chunk=16) as engine:
        slow = Slow(engine, 0)
        engine.reader = engine.chunks.reader = slow
        sequence = engine.new_sequence()
        sequence.feed([3] * 20, last_only=True)
        sequence.greedy(2)
        heads = engine.config.ple.heads
        assert [count for count, _ in slow.calls] == [16 * heads, 4 * heads, heads, heads]


def test_failed_gather_leaves_the_sequence_where_it_was() -> None:
    prompt = answers("tiny")["prompt_0"].tolist()[:64]
    with opened("tiny", chunk=16) as engine:
        honest, sequence = engine.reader, engine.new_sequence()
        whole = engine.new_sequence()
        whole.feed(prompt, last_only=True)

        class Failing:
            asked = 0

            def gather(self, ids, out=None):  # type: ignore[no-untyped-def]
                self.asked += 1
                if self.asked == 3:
                    raise InputError("model.gguf: row 7 is gone")
                return honest.gather(ids, out)

        engine.reader = engine.chunks.reader = Failing()
        with pytest.raises(InputError, match="row 7 is gone"):
            sequence.feed(prompt, last_only=True)
        assert sequence.position == 32
        engine.reader = engine.chunks.reader = honest
        sequence.feed(prompt[32:], last_only=True)
        np.testing.assert_array_equal(sequence.logits, whole.logits)

        class Broken:
            def gather(self, *_: object) -> None:
                raise InputError("model.gguf: row 8 is gone")

        engine.reader = Broken()
        with pytest.raises(InputError, match="row 8 is gone"):
            sequence.greedy(3)
        engine.reader = honest
        assert sequence.position == 64
        assert sequence.greedy(3) == whole.greedy(3)


def test_memory_is_what_the_formula_says() -> None:
    engine = shared("tiny")
    parts = memory_bytes(engine.plan, engine.settings, engine.step.weights_bytes)
    assert parts["total"] == sum(value for name, value in parts.items() if name != "total")
    state = SequenceState.fresh(engine.plan)
    assert parts["caches"] == size_bytes(state.caches)
    once = parts["recurrent"] // (1 + engine.settings.checkpoints)
    # The formula leaves out the last raw indexer keys, a few hundred bytes.
    assert abs(once - size_bytes(state.recurrent)) <= 0.02 * once
    assert engine.memory() == parts
    double = memory_bytes(engine.plan, engine.settings, engine.step.weights_bytes, sequences=2)
    assert double["caches"] == 2 * parts["caches"]
    assert double["weights"] == parts["weights"]


def test_programs_are_shared_by_engines_of_equal_shapes() -> None:
    config = shared("tiny").config
    one = plan_for(config, 0, EngineSettings(context=960, chunk=64, checkpoints=3))
    assert one is plan_for(config, 0, EngineSettings(context=960, chunk=64, checkpoints=9))
    assert one is not plan_for(config, 0, EngineSettings(context=960, chunk=64, precision="default"))


def test_weights_use_every_tensor_once() -> None:
    with open_gguf(find("tiny-quant.gguf")) as model:
        weights = load_weights(model, shared("tiny-quant").config)
        assert len(weights.layers) == shared("tiny-quant").config.layers
        lost = dict(model.tensors)
        del lost["blk.2.ssm_out.weight"]
        model.tensors = lost
        with pytest.raises(InputError, match=r"blk\.2\.ssm_out\.weight"):
            load_weights(model, shared("tiny-quant").config)


@pytest.fixture
def with_bias(tmp_path: Path) -> Path:
    """`tiny` with one more tensor, which no engine applies."""

    def add_bias(_: Keys, tensors: Tensors) -> None:
        layer = next(name.split(".")[1] for name in tensors if name.endswith("attn_q.weight"))
        rows = tensors[f"blk.{layer}.attn_q.weight"][0].shape[0]
        tensors[f"blk.{layer}.attn_q.bias"] = (np.ones(rows, np.float32), gguf.GGMLQuantizationType.F32)

    return edited(find("tiny.gguf"), tmp_path / "bias.gguf", add_bias)


@pytest.mark.parametrize("how", ["reference", "fast", "gate"])
def test_tensors_that_are_not_applied_are_told_once(with_bias: Path, how: str) -> None:
    def load() -> None:
        if how == "gate":
            case = dataclasses.replace(case_by_id("tiny"), generate=0)
            gate.run_gate(with_bias, [case], parse_modes(["mmap"]), gate.GateOptions())
            return
        with open_gguf(with_bias) as model:
            {"reference": load_parameters, "fast": load_weights}[how](model, config_from(model))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load()
        load()
    told = [str(warning.message) for warning in caught if warning.category is UnappliedNotice]
    assert len(told) == 1
    assert re.search(r"bias\.gguf: 1 tensors .* not applied, as in llama\.cpp: blk\.\d+\.attn_q\.bias$", told[0])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"context": 0}, "context is 0, expected at least 1"),
        ({"chunk": 0}, "chunk is 0"),
        ({"precision": "bf16"}, "precision is 'bf16', expected one of highest, high, default"),
        ({"buckets": ()}, "expected lengths of at least 1"),
        ({"context": 1 << 20}, "expected at most"),
        ({"checkpoints": 0, "checkpoint_every": 0}, "checkpoints is 0, .*; checkpoint_every is 0"),
    ],
)
def test_settings_refuse_what_makes_no_sense(choices: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings(**choices)  # type: ignore[arg-type]


def test_buckets_hold_every_length() -> None:
    assert EngineSettings(chunk=512).bucket_sizes == (1, 16, 64, 256, 512)
    assert EngineSettings(chunk=5, buckets=(5,)).bucket_sizes == (1, 8)
    assert EngineSettings(chunk=100, buckets=(3, 40)).bucket_sizes == (1, 4, 48, 112)
    settings = EngineSettings(chunk=512)
    assert [settings.bucket(n) for n in (1, 2, 16, 17, 64, 200, 257, 512)] == [1, 16, 16, 64, 64, 256, 512, 512]


@pytest.mark.parametrize("precision", ["high", "default"])
def test_another_precision_is_another_program_and_never_the_gates(precision: str) -> None:
    with opened("tiny", chunk=16, precision=precision) as engine:
        with open_gguf(find("tiny.gguf")) as model:
            runner = make_runner("fast", model, cast(RowReader, engine.reader), room=64)
            assert isinstance(runner, FastRunner)
            assert runner.engine.plan.precision == "highest" != engine.plan.precision == precision
            runner.close()
        assert engine.new_sequence().feed([1, 2, 3], last_only=True).shape == (engine.config.vocab,)
