"""Every engine that is here gives the golden's tokens, fed in two pieces; its margins are told or NaN."""

from __future__ import annotations

import math

import pytest

from fast.rows import locate_table, open_rows
from harness.answers.store import read_golden
from harness.cases.models import model_path
from harness.engines.protocol import run_of
from harness.engines.settings import engine_settings
from harness.engines.table import EngineName, load_engine
from harness.errors import CannotRun
from model_file.gguf_file import open_gguf


@pytest.mark.parametrize("name", EngineName)
def test_an_engine_gives_the_goldens_tokens(name: str) -> None:
    golden = read_golden("tiny")
    assert golden is not None
    prompt = golden.prompts[0]
    with open_gguf(model_path("tiny")) as model, open_rows(locate_table(model), "mmap") as reader:
        try:
            engine = load_engine(name, model, reader, engine_settings(len(prompt.ids) + 16))
        except CannotRun as reason:
            pytest.skip(str(reason))
        with engine:
            sequence = engine.new_sequence()
            sequence.feed(prompt.ids[:5])
            sequence.feed(prompt.ids[5:])
            found = run_of(sequence.generate(12))
    assert found.tokens == prompt.generated[:12]
    assert all(math.isnan(margin) or margin > 0 for margin in found.margins)
