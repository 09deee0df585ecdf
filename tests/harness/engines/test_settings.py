"""The settings that every command's engine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from fast.engine.settings import EngineSettings
from harness.engines.settings import engine_settings
from harness.synth import cache_folder
from model_file.errors import InputError


def test_settings_are_the_engines_own_defaults() -> None:
    found = engine_settings(1000)
    assert found == EngineSettings(context=1024, cache_dir=cache_folder() / "programs")
    assert (found.chunk, found.bucket_sizes, found.overlap) == (512, (1, 16, 64, 256, 512), True)


def test_room_is_rounded_up_and_a_context_is_taken_as_it_is() -> None:
    assert engine_settings(1025).context == 2048
    assert engine_settings(1025, context=1025).context == 1025
    assert engine_settings(30, context=30).chunk == 30  # a longer one would only take memory


@pytest.mark.parametrize(
    ("name", "value"),
    [("chunk", 64), ("buckets", (8,)), ("precision", "high"), ("checkpoints", 3), ("checkpoint_every", 5),
     ("cache_dir", Path("elsewhere")), ("overlap", False)],
)  # fmt: skip
def test_every_setting_can_be_chosen(name: str, value: object) -> None:
    assert getattr(engine_settings(100, **{name: value}), name) == value


def test_a_setting_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="chunk is 0, expected at least 1"):
        engine_settings(100, chunk=0)
