"""A number that is not finite ends a run with the position, the tensor and what it came from."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import locate_table, open_rows
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from tests.fast.engines import answers, find, opened
from tests.gguf_edit import Keys, Tensors, edited

TOKENS = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
BAD = 13  # the place of the token that is made bad


class Spoiling:
    """A reader that gives a NaN in one row: which is not finite in the table's own type."""

    def __init__(self, engine: FastEngine, row: int, value: float) -> None:
        self.inner, self.row, self.value = engine.reader, row, value

    def gather(self, ids, out=None):  # type: ignore[no-untyped-def]
        rows = self.inner.gather(ids, out)
        rows[np.asarray(ids) == self.row, :4] = np.array([self.value], np.float32).view(np.uint8)
        return rows


def spoiled_row(engine: FastEngine, tokens: list[int]) -> int:
    """A row that the bad token reads and no token before it."""
    rows = engine.chunks.hash.many(tokens, [])
    return int(next(row for row in rows[BAD] if row not in rows[:BAD]))


def test_a_row_that_is_not_finite_is_named_with_position_and_tensor() -> None:
    with opened("tiny", chunk=16) as engine:
        row, layer = spoiled_row(engine, TOKENS), engine.config.ple.layer
        for value in (np.nan, np.inf, -np.inf):
            engine.reader = Spoiling(engine, row, value)
            expected = (
                rf"^tiny\.gguf: position {BAD}, token {TOKENS[BAD]}: blk\.{layer}\.ple is the first tensor .* finite: "
                rf"row {row} of per_layer_token_embd\.weight holds NaN or infinity"
            )
            sequences = [engine.new_sequence() for _ in range(4)]
            with pytest.raises(InputError, match=expected):
                sequences[0].feed(TOKENS)
            with pytest.raises(InputError, match=expected):
                engine.feed_batch([(sequences[1], [3, 4]), (sequences[2], TOKENS)], last_only=True)
            with pytest.raises(InputError, match=expected):
                engine.feed_recorded(sequences[3], TOKENS[:16])
            engine.reader = engine.reader.inner
        assert np.isfinite(engine.new_sequence().feed(TOKENS)).all()


def test_decode_stops_at_the_first_position() -> None:
    prompt = answers("tiny")["prompt_0"].tolist()[:10]
    for overlap in (True, False):
        with opened("tiny", chunk=16, overlap=overlap) as engine:
            sequence = engine.new_sequence()
            sequence.feed(prompt, last_only=True)
            chosen = sequence.greedy(6)
            row = spoiled_row(engine, prompt + chosen)
            engine.reader = Spoiling(engine, row, np.nan)
            again = engine.new_sequence()
            again.feed(prompt, last_only=True)
            with pytest.raises(InputError, match=rf"position {BAD}, token {chosen[BAD - 10]}: blk"):
                again.greedy(6)


@pytest.mark.parametrize("guesses_right", [True, False])
def test_decode_with_drafts_stops_at_the_first_position(guesses_right: bool) -> None:
    """In the middle of a step's guesses, and as its only token."""
    with opened("tiny-mtp", draft=4) as engine:
        sequence = engine.new_sequence()
        sequence.feed(TOKENS[:10], last_only=True)
        chosen = sequence.greedy(8)
        engine.planted = lambda tokens, guesses: [
            chosen[len(tokens) - 10 + place] if guesses_right and len(tokens) + place < 18 else 0
            for place in range(len(guesses))
        ]
        engine.reader = Spoiling(engine, spoiled_row(engine, TOKENS[:10] + chosen), np.nan)
        again = engine.new_sequence()
        again.feed(TOKENS[:10], last_only=True)
        with pytest.raises(InputError, match=rf"position {BAD}, token {chosen[BAD - 10]}: blk"):
            again.greedy(8)


@pytest.mark.parametrize(
    ("tensor", "place", "message"),
    [
        ("token_embd.weight", (TOKENS[BAD], 3), rf"position {BAD}, .*row {TOKENS[BAD]} of token_embd\.weight holds"),
        ("output.weight", (17, 3), r"position 0, token 5: the logits is the first tensor"),
        ("blk.2.attn_qkv.weight", (0, 0), r"position 0, token 5: blk\.2\.mixer is .*: its layer's weights hold"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_named(
    tensor: str, place: tuple[int, ...], message: str, value: float, tmp_path: Path
) -> None:
    def spoil(_: Keys, tensors: Tensors) -> None:
        name = tensor if tensor in tensors else "token_embd.weight"
        values = np.array(tensors[name][0], np.float32)
        values[place] = value
        tensors[tensor] = (values, gguf.GGMLQuantizationType.F32)

    path = edited(find("tiny.gguf"), tmp_path / "tiny.gguf", spoil)
    settings = EngineSettings(context=1008, chunk=16, buckets=(16,))
    with (
        open_gguf(path) as model,
        open_rows(locate_table(model), "resident") as reader,
        FastEngine(model, reader, settings) as engine,
        pytest.raises(InputError, match=message),
    ):
        engine.new_sequence().feed(TOKENS)
