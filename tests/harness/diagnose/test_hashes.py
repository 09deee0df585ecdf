"""Rules of row ids: the right one is the oracle's, and every wrong one is another one on tokens where it must be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fast.rows import Segment, Table, locate_table
from harness.cases.models import model_path
from harness.diagnose.hashes import RIGHT, read_at_32_bits, read_in_lexical_order
from harness.diagnose.known import ROW_FAULTS
from harness.oracle import HashOracle, expected_packed
from model_file.gguf_file import open_gguf

LARGE_CONSTANTS_ONLY = {
    "the hash were divided as a signed number",
    "the hash were divided as a signed number, and the sign dropped",
    "the offsets of the heads had gone through float32",
    "offsets of rows had 32 bits",
    "the shards were put together in lexical order",
}


@pytest.fixture(name="oracle", scope="module")
def an_oracle() -> HashOracle:
    with open_gguf(model_path("tiny")) as model:
        return HashOracle(model)


def _tokens(oracle: HashOracle) -> list[int]:
    tokens = np.random.default_rng(11).integers(0, 300, 90).tolist()
    tokens[20] = tokens[21] = tokens[50] = oracle.eos
    return tokens


def test_the_right_rule_is_the_oracle(oracle: HashOracle) -> None:
    tokens = _tokens(oracle)
    np.testing.assert_array_equal(RIGHT.rows(oracle, tokens, [0] * len(tokens)), oracle.rows(tokens))
    np.testing.assert_array_equal(RIGHT.rows(oracle, tokens, [0] * len(tokens), 40), oracle.rows(tokens)[40:])


def test_a_lost_history_is_a_sequence_that_begins_there(oracle: HashOracle) -> None:
    tokens = _tokens(oracle)
    rows = RIGHT.rows(oracle, tokens, [0] * 33 + [33] * (len(tokens) - 33))
    np.testing.assert_array_equal(rows, np.concatenate([oracle.rows(tokens[:33]), oracle.rows(tokens[33:])]))


@pytest.mark.parametrize("name", sorted(ROW_FAULTS.keys() - LARGE_CONSTANTS_ONLY))
def test_a_wrong_rule_gives_other_rows(oracle: HashOracle, name: str) -> None:
    tokens = _tokens(oracle)
    assert (ROW_FAULTS[name].rows(oracle, tokens, [0] * len(tokens)) != oracle.rows(tokens)).any()


@pytest.mark.parametrize(
    "name", sorted(LARGE_CONSTANTS_ONLY - {n for n in LARGE_CONSTANTS_ONLY if "rows" in n or "shards" in n})
)
def test_a_wrong_rule_shows_with_the_constants_of_a_large_table(oracle: HashOracle, name: str) -> None:
    """Flash-Next's multipliers, and tokens whose products go beyond 2^63; offsets beyond 2^24."""
    large = object.__new__(HashOracle)
    vars(large).update(vars(oracle))
    large.multipliers = [23703573157769, 20109073645365, 8052911324071]
    large.sizes = [20000003 + 2 * head for head in range(oracle.heads)]
    large.offsets = [20000003 * head for head in range(oracle.heads)]
    tokens = np.random.default_rng(3).integers(0, 2**20, 60).tolist()
    assert (ROW_FAULTS[name].rows(large, tokens, [0] * 60) != RIGHT.rows(large, tokens, [0] * 60)).any()


def _sparse(folder: Path, names: list[str], rows: int, marks: dict[str, dict[int, bytes]]) -> Table:
    """F32 rows of 8 bytes in files of `rows` rows each; marks: bytes by file and offset."""
    segments = []
    for number, name in enumerate(names):
        with (folder / name).open("wb") as file:
            file.truncate(64 + rows * 8)
            for offset, content in marks.get(name, {}).items():
                file.seek(offset)
                file.write(content)
        segments.append(Segment(folder / name, 64, number * rows, rows))
    with open_gguf(model_path("tiny")) as model:
        kind = replace(locate_table(model))
    return Table(type(kind.type).F32, rows * len(names), 2, 8, tuple(segments))


def test_offsets_of_32_bits_read_the_row_4_gib_before(tmp_path: Path) -> None:
    row = (1 << 32) // 8 + 5
    table = _sparse(tmp_path, ["a"], row + 1, {"a": {64 + 5 * 8: b"before..", 64 + row * 8: b"right..."}})
    ids = np.array([row, 5], np.uint64)
    assert read_at_32_bits(table, ids).tobytes() == b"before..before.."
    assert expected_packed(table, ids).tobytes() == b"right...before.."


def test_shards_in_lexical_order(tmp_path: Path) -> None:
    marks = {name: {64: name.ljust(8).encode()} for name in ("t-1", "t-2", "t-10")}
    table = _sparse(tmp_path, ["t-1", "t-2", "t-10"], 3, marks)
    assert read_in_lexical_order(table, np.array([0, 3, 6], np.uint64)).tobytes() == b"t-1     t-10    t-2     "
