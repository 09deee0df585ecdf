"""What settings are refused, and that every one of them takes effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from fast.engine import step
from fast.engine.settings import EngineSettings, plan_for
from fast.rows import RowReader
from harness.engines.fast import FastAdapter
from harness.engines.settings import engine_settings
from harness.engines.table import load_engine
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from tests.fast.engines import find, opened, shared


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"context": 0}, "context is 0, expected at least 1"),
        ({"chunk": 0}, "chunk is 0"),
        ({"draft": 65}, "draft is 65, expected 0 to 64 guesses"),
        ({"mtp": "head.gguf"}, "mtp is head.gguf, of which draft = 0 makes no use, expected 1 guess or more"),
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


def test_programs_are_shared_by_engines_of_equal_shapes() -> None:
    config = shared("tiny").config
    one = plan_for(config, 0, EngineSettings(context=960, chunk=64, checkpoints=3))
    assert one is plan_for(config, 0, EngineSettings(context=960, chunk=64, checkpoints=9))
    assert one is not plan_for(config, 0, EngineSettings(context=960, chunk=64, precision="default"))


@pytest.mark.parametrize("precision", ["high", "default"])
def test_another_precision_is_another_program_and_never_the_gates(precision: str) -> None:
    with opened("tiny", chunk=16, precision=precision) as engine:
        with open_gguf(find("tiny.gguf")) as model:
            reader = cast(RowReader, engine.reader)
            with load_engine("fast", model, reader, engine_settings(64, cache_dir=None)) as judged:
                assert isinstance(judged, FastAdapter)
                assert judged.inner.plan.precision == "highest" != engine.plan.precision == precision
        assert engine.new_sequence().feed([1, 2, 3], last_only=True).shape == (engine.config.vocab,)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"overlap": "never"}, "overlap is 'never', expected True or False"),
        ({"chunk": "64", "overlap": 1}, "chunk is '64', expected a whole number; overlap is 1, expected True or False"),
        ({"buckets": [16]}, "expected a tuple of whole numbers or None"),
    ],
)
def test_settings_are_of_their_declared_types(choices: dict[str, object], message: str) -> None:
    chosen = EngineSettings()
    for name, value in choices.items():
        object.__setattr__(chosen, name, value)  # the tests' own checker would stop it on the usual way
    with pytest.raises(InputError, match=message):
        chosen.__post_init__()


TOKENS = list(range(3, 43))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs of steps, in the order in which they are started."""
    names: list[str] = []

    def watched(name: str) -> Any:
        program = getattr(step, name)

        def run(*arguments: Any) -> Any:
            names.append(name)
            return program(*arguments)

        return run

    for name in ("advance", "decode_before_ple", "decode_from_ple"):
        monkeypatch.setattr(step, name, watched(name))
    return names


@pytest.mark.parametrize("overlap", [True, False])
def test_overlap_is_two_programs_a_step_and_without_it_is_one(overlap: bool, started: list[str]) -> None:
    with opened("tiny", chunk=16, overlap=overlap) as engine:
        sequence = engine.new_sequence()
        sequence.feed(TOKENS[:3], last_only=True)
        started.clear()
        sequence.greedy(3)
    two = ["decode_before_ple", "decode_from_ple"]
    # The first part of the next step is started right behind the second part of this one.
    assert started == ([two[0], two[1], two[0], two[1], two[0], two[1]] if overlap else ["advance"] * 3)


def test_chunk_and_buckets_are_the_lengths_that_run() -> None:
    def lengths(**settings: Any) -> list[int]:
        with opened("tiny", **settings) as engine:
            found: list[int] = []
            make = engine.chunks.make
            engine.chunks.make = lambda cut: (chunk := make(cut), found.append(chunk.tokens.shape[1]))[0]  # type: ignore[method-assign]
            engine.new_sequence().feed(TOKENS[:21], last_only=True)
            return found

    assert lengths(chunk=16) == [16, 16]
    assert lengths(chunk=16, buckets=(4, 8)) == [16, 8]
    assert lengths(chunk=1) == [1] * 21


def test_context_is_the_room() -> None:
    with opened("tiny", chunk=16, context=20) as engine:
        sequence = engine.new_sequence()
        sequence.feed(TOKENS[:20], last_only=True)
        with pytest.raises(InputError, match="expected at most the context of 20"):
            sequence.feed([1])


def test_checkpoints_are_as_many_and_as_far_apart_as_asked() -> None:
    def positions(**settings: int) -> list[int]:
        with opened("tiny", chunk=16, **settings) as engine:
            sequence = engine.new_sequence()
            sequence.feed(TOKENS[:16], last_only=True)
            sequence.greedy(9)
            return [point.position for point in sequence._checkpoints]

    assert positions(checkpoints=8, checkpoint_every=3) == [16, 19, 22, 25]
    assert positions(checkpoints=8, checkpoint_every=5) == [16, 21]
    assert len(positions(checkpoints=2, checkpoint_every=1)) == 2


def test_programs_are_kept_in_the_cache_folder(tmp_path: Path) -> None:
    with opened("tiny", chunk=1, cache_dir=tmp_path, context=77) as engine:
        engine.new_sequence().feed([1], last_only=True)
    assert list(tmp_path.glob("jit_advance-*"))
    assert np.isfinite(shared("tiny").new_sequence().feed([1])).all()
