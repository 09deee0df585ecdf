"""The MTP head of the reference against llama.cpp: every id, and every count of guesses made and accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from fast.rows import locate_table, open_rows
from fast.rows.dequantize import dequantize_numpy
from model_file.config import ModelConfig, config_from
from model_file.gguf_file import GgufFile, open_gguf
from reference.decode import Session
from reference.draft_head import Drafter, greedy_with_drafts
from reference.parameters import DraftHead, Parameters, load_draft_head, load_parameters
from tests.conftest import FIXTURES

ANSWERS: dict[str, Any] = json.loads((FIXTURES / "tiny-mtp.json").read_text())


@pytest.fixture(scope="module")
def file() -> Iterator[GgufFile]:
    with open_gguf(FIXTURES / "tiny-mtp.gguf") as model:
        yield model


@cache
def loaded(file: GgufFile) -> tuple[ModelConfig, Parameters, DraftHead]:
    config = config_from(file)
    head = load_draft_head(file, config)
    assert head is not None
    return config, load_parameters(file, config), head


def generate(file: GgufFile, prompt: list[int], count: int, most: int, **wrong: Any) -> tuple[list[int], int, int]:
    """Ids and counts; `wrong` replaces fields of the head."""
    config, parameters, head = loaded(file)
    head = DraftHead(**{**vars(head), **wrong})
    room = len(prompt) + count + most
    with open_rows(locate_table(file), "mmap") as reader:
        session = Session(parameters, config, lambda ids: dequantize_numpy(reader.gather(ids), reader.table.type), room)
        drafter = Drafter(parameters, head, config, room)
        for token in prompt:
            streams = session.feed_streams([token])
            drafter.follow([token], streams)
        tokens = list(greedy_with_drafts(session, drafter, session.logits_of(streams)[-1], count, most))
    return tokens, drafter.drafted, drafter.accepted


@pytest.mark.parametrize("run", ANSWERS["runs"], ids=lambda run: f"prompt{run['prompt']}-drafts{run['n']}")
def test_ids_and_counts_are_those_of_llama_cpp(file: GgufFile, run: dict[str, Any]) -> None:
    tokens, drafted, accepted = generate(file, ANSWERS["prompts"][run["prompt"]], len(run["tokens"]), run["n"])
    assert tokens == run["tokens"]
    assert (drafted, accepted) == (run["draft_n"] or 0, run["draft_n_accepted"] or 0)


def test_a_wrong_head_changes_counts_and_no_id(file: GgufFile) -> None:
    run = next(run for run in ANSWERS["runs"] if run["n"] == 2)
    _, _, head = loaded(file)
    tokens, _, accepted = generate(
        file, ANSWERS["prompts"][run["prompt"]], len(run["tokens"]), run["n"], eh_proj=head.eh_proj[:, ::-1]
    )
    assert tokens == run["tokens"]
    assert accepted < run["draft_n_accepted"]


def test_following_in_one_piece_is_following_token_by_token(file: GgufFile) -> None:
    config, parameters, head = loaded(file)
    prompt = ANSWERS["prompts"][1]
    with open_rows(locate_table(file), "mmap") as reader:
        guesses = []
        for piece in (1, 7, len(prompt)):
            session = Session(
                parameters, config, lambda ids: dequantize_numpy(reader.gather(ids), reader.table.type), 128
            )
            drafter = Drafter(parameters, head, config, 128)
            for start in range(0, len(prompt), piece):
                tokens = prompt[start : start + piece]
                drafter.follow(tokens, session.feed_streams(tokens))
            guesses.append(drafter.draft(5, 3))
    for other in guesses[1:]:
        assert [token for token, _ in other] == [token for token, _ in guesses[0]]
        np.testing.assert_allclose([p for _, p in other], [p for _, p in guesses[0]], rtol=1e-4)


def test_a_model_without_a_head_has_none() -> None:
    with open_gguf(FIXTURES / "tiny.gguf") as model:
        assert load_draft_head(model, config_from(model)) is None
