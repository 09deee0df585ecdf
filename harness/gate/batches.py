"""Which rows the rows gate compares: random ones, and those that prompts read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fast.rows import Table
from fast.rows.resident import available_bytes
from harness.cases.prompt_choice import choose_prompts
from harness.cases.prompts import check_ids
from model_file.errors import InputError
from model_file.gguf_file import GgufFile

Ids = npt.NDArray[np.uint64]
UNKNOWN_MEMORY_BYTES = 4 << 30  # where the system does not say how much there is
HASHED = "qwen4exp"
_HASH_KEY = HASHED + ".ple.layer_multipliers"


@dataclass(frozen=True)
class RowBatch:
    """Row ids with a name; `heads` of them belong to one token (0: to no token)."""

    name: str
    ids: Ids
    heads: int


def choose_batches(
    model: GgufFile,
    path: Path,
    table: Table,
    rows: int,
    seed: int,
    texts: Sequence[str] = (),
    text_files: Sequence[Path] = (),
    token_files: Sequence[Path] = (),
) -> tuple[list[RowBatch], list[str]]:
    """Random rows, then the rows of prompts: those given, else the built-in ones. Returns (batches, notes).

    Raises: InputError for prompts that were given and cannot be used.
    """
    check_count(table, rows)
    batches = [RowBatch("random", random_rows(table, rows, seed), 0)]
    given = bool(texts or text_files or token_files)
    try:
        prompts = choose_prompts(path, texts, text_files, token_files)
    except InputError as error:
        if given:
            raise
        return batches, [f"no built-in prompts: {error}"]
    for prompt in prompts:
        ids, heads = _rows_of(model, table, prompt.name, prompt.ids)
        batches.append(RowBatch(prompt.name, ids, heads))
    return batches, []


def check_count(table: Table, count: int) -> None:
    """Raises: InputError for more random rows than memory holds, as stored and as float32, found and expected."""
    available = available_bytes()
    if available is None:
        available = UNKNOWN_MEMORY_BYTES
    most = available // (3 * (table.row_bytes + 4 * table.row_width) + 64)
    if count > most:
        raise InputError(
            f"--rows {count:,}: rows of {table.row_width} values, expected at most {most:,} for the memory available "
            f"({available / 2**30:.1f} GiB): use fewer; --against FILE compares whole tables of any size"
        )


def random_rows(table: Table, count: int, seed: int) -> Ids:
    """Random rows, and those that go wrong first: first and last, both sides of a shard's end, neighbours, repeats.

    A third of many rows are neighbours: enough that a window of them is longer than small staging memory.
    """
    ends = [segment.first_row for segment in table.segments] + [segment.first_row - 1 for segment in table.segments[1:]]
    special = [
        0,
        table.rows - 1,
        *ends,
        *range(table.rows // 2, min(table.rows // 2 + max(50, count // 3), table.rows)),
        0,
        table.rows - 1,
    ]
    drawn = np.random.default_rng(seed).integers(0, table.rows, max(count - len(special), 0), dtype=np.uint64)
    return np.concatenate([np.array(special, np.uint64), drawn])[: max(count, 1)]


def _rows_of(model: GgufFile, table: Table, name: str, tokens: Sequence[int]) -> tuple[Ids, int]:
    """The rows a prompt reads, and how many a token: by the hash where the file has one, else row = token id."""
    if _HASH_KEY in model.metadata:
        from harness.oracle import HashOracle

        oracle = HashOracle(model)
        check_ids(tokens, _vocab_of(model), name)
        return oracle.rows(tokens).reshape(-1), oracle.heads
    if model.architecture == HASHED:
        raise InputError(f"{model.paths[0]}: {_HASH_KEY} is missing, expected the hash constants of a {HASHED} file")
    bad = next((place for place, token in enumerate(tokens) if not 0 <= token < table.rows), None)
    if bad is not None:
        raise InputError(
            f"{name}: token {bad} is {tokens[bad]}, expected 0 to {table.rows - 1}: in a {model.architecture} file "
            "a token's row has the token's id"
        )
    return np.array(tokens, np.uint64), 1


def _vocab_of(model: GgufFile) -> int:
    """Tokens that a hashed model knows: as its metadata say, else its vocabulary or its embedding.

    Raises: InputError where none of them tells.
    """
    key, listed, embedding = f"{HASHED}.vocab_size", "tokenizer.ggml.tokens", model.tensors.get("token_embd.weight")
    if key not in model.metadata and listed in model.metadata:
        return model.metadata.count_of(listed)
    found = model.metadata.get(key, embedding.shape[0] if embedding is not None else None)
    if not isinstance(found, int):
        raise InputError(f"{model.paths[0]}: {key} is {found!r}, expected how many tokens the model knows")
    return found
