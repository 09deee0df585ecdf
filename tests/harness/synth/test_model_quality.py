"""The default model is worth testing with: varied greedy text, clear margins, a table that decides what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest

from harness.cases.prompts import BUILTIN_PROMPTS, encode
from harness.synth import make_model, make_recipe
from model_file.config import config_from
from model_file.gguf_file import open_gguf
from model_file.tensors import TABLE
from reference.decode import Session, greedy
from reference.parameters import Parameters, load_parameters

STEPS = 192
# Float32 noise on these logits is about 1e-5, between engines too: a hundred times that is a safe distance.
LEAST_MARGIN = 1e-3


@dataclass(frozen=True)
class Loaded:
    """The model in memory; `prompts` are the built-in ones as ids."""

    parameters: Parameters
    session_config: object
    table: np.ndarray
    prompts: dict[str, list[int]]

    def continuation(self, prompt: str, rows_scale: float = 1.0) -> list[tuple[int, float]]:
        """Greedy tokens with margins; `rows_scale` 0 hides the table."""

        def read_rows(ids: np.ndarray) -> np.ndarray:
            packed = self.table[ids.astype(np.int64)]
            return gguf.dequantize(packed, gguf.GGMLQuantizationType.IQ4_NL) * np.float32(rows_scale)

        session = Session(self.parameters, self.session_config, read_rows, room=1024)  # type: ignore[arg-type]
        logits = session.feed_in_chunks(self.prompts[prompt], 64)
        return list(greedy(session, logits[-1], STEPS))


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    path: Path = tmp_path_factory.mktemp("made") / "nano.gguf"
    make_model(make_recipe("nano"), path)
    with open_gguf(path) as model:
        config = config_from(model)
        prompts = {prompt.id: encode(model, prompt.text) for prompt in BUILTIN_PROMPTS}
        yield Loaded(load_parameters(model, config), config, model.packed(TABLE), prompts)


_QUICK = BUILTIN_PROMPTS[0].id
_CASES = [
    pytest.param(prompt.id, marks=[] if prompt.id == _QUICK else [pytest.mark.slow]) for prompt in BUILTIN_PROMPTS
]


@pytest.mark.parametrize("prompt", _CASES)
def test_greedy_text_is_varied_clear_and_made_by_the_table(prompt: str, nano: Loaded) -> None:
    steps = nano.continuation(prompt)
    tokens = [token for token, _ in steps]
    assert len(set(tokens)) >= 64
    assert min(tokens) >= 2  # never a reserved token: greedy text does not end
    margins = [margin for _, margin in steps]
    assert min(margins) >= LEAST_MARGIN
    assert np.median(margins) >= 0.1
    hidden = [token for token, _ in nano.continuation(prompt, rows_scale=0.0)]
    assert sum(a != b for a, b in zip(tokens, hidden, strict=True)) >= STEPS // 2
