"""The metadata of a model, read strictly: every value of its declared type, all problems in one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from tests import gguf_edit

_V = gguf.GGUFValueType


def problems(source: Path, path: Path, changes: dict[str, Any]) -> list[str]:
    """What is said of a copy with other keys: None takes one out, else value, type and element type."""

    def change(keys: gguf_edit.Keys, _: gguf_edit.Tensors) -> None:
        for key, value in changes.items():
            name = key if key.startswith("general.") else f"qwen4exp.{key}"
            if value is None:
                del keys[name]
            else:
                keys[name] = value

    with open_gguf(gguf_edit.edited(source, path, change)) as model, pytest.raises(InputError) as raised:
        config_from(model)
    return [line.removeprefix(f"{path}: ").removeprefix("qwen4exp.") for line in str(raised.value).splitlines()]


ABSENT = "found no such key, expected the key: convert the model again with a current converter"
WHOLE = "expected a whole number of at least 1 and at most 16777216"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("context_length", (True, _V.BOOL, None), f"found True, {WHOLE}"),
        ("context_length", (4096.0, _V.FLOAT32, None), f"found 4096.0, {WHOLE}"),
        ("context_length", ("4096", _V.STRING, None), f"found '4096', {WHOLE}"),
        ("context_length", ([4096], _V.ARRAY, _V.INT32), f"found array([4096], dtype=int32), {WHOLE}"),
        ("context_length", (0, _V.UINT32, None), f"found 0, {WHOLE}"),
        ("context_length", (-1, _V.INT32, None), f"found -1, {WHOLE}"),
        ("context_length", (2**40, _V.UINT64, None), f"found {2**40}, {WHOLE}"),
        ("rope.freq_base", (True, _V.BOOL, None), "found True, expected a finite number of at least 0"),
        ("rope.freq_base", (float("nan"), _V.FLOAT32, None), "found nan, expected a finite number of at least 0"),
        ("rope.freq_base", (float("inf"), _V.FLOAT32, None), "found inf, expected a finite number of at least 0"),
        ("rope.freq_base", (0.0, _V.FLOAT32, None), "found 0, expected a number above 0"),
        ("rope.scaling.type", (5, _V.UINT32, None), "found 5, expected a text"),
        ("general.name", (5, _V.UINT32, None), "found 5, expected a text"),
        ("ssm.inner_size", (True, _V.BOOL, None), f"found True, {WHOLE}"),
        ("attention.compress_ratios", ([False, True], _V.ARRAY, _V.BOOL), "expected an array of whole numbers"),
        ("attention.recurrent_layers", ([1, 1, 2, 0], _V.ARRAY, _V.INT32), "expected flags, each 0 or 1"),
        ("attention.recurrent_layers", ([1.0, 0.0], _V.ARRAY, _V.FLOAT32), "expected an array of flags"),
        ("ple.layers", (1, _V.UINT32, None), "found 1, expected an array of whole numbers"),
        ("block_count", (1 << 20, _V.UINT32, None), "expected a whole number of at least 1 and at most 4096"),
    ],
)
def test_a_value_of_another_type_is_one_problem(tiny: Path, tmp_path: Path, key: str, value: Any, said: str) -> None:
    """One, and nothing that follows from the value that stands in for it."""
    found = problems(tiny, tmp_path / "a.gguf", {key: value})
    assert len(found) == 1
    assert found[0].startswith(f"{key}: found ") and found[0].endswith(said)


NEEDED = [
    "context_length", "embedding_length", "block_count", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count", "expert_count",
    "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length", "ssm.conv_kernel",
    "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "hyper_connection.count", "hyper_connection.low_rank",
    "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k",
    "embedding_length_per_layer_input", "ple.ngram_size", "ple.heads_per_ngram",
    "ple.layers", "ple.conv_kernel", "ple.eos_token_id", "ple.layer_multipliers",
    "ple.head_offsets", "ple.head_vocab_sizes",
]  # fmt: skip


@pytest.mark.parametrize("key", NEEDED)
def test_an_absent_key_is_one_problem(tiny: Path, tmp_path: Path, key: str) -> None:
    """No stand-in is reported as if the file said it."""
    assert problems(tiny, tmp_path / "a.gguf", {key: None}) == [f"{key}: {ABSENT}"]


def test_all_problems_are_raised_together(tiny: Path, tmp_path: Path) -> None:
    changes = {
        "expert_count": None,
        "ple.eos_token_id": (1 << 20, _V.UINT32, None),
        "attention.head_count_kv": (3, _V.UINT32, None),
        "ssm.inner_size": (65, _V.UINT32, None),
        "rope.scaling.type": ("yarn", _V.STRING, None),
    }
    found = problems(tiny, tmp_path / "a.gguf", changes)
    assert sorted(line.split(":")[0] for line in found) == sorted(changes)


def test_hash_constants_in_32_bits_are_refused(tiny: Path, tmp_path: Path) -> None:
    found = problems(tiny, tmp_path / "a.gguf", {"ple.head_offsets": ([0, 1009, 2022, 3041], _V.ARRAY, _V.INT32)})
    assert found == [
        "ple.head_offsets: found elements of INT32, expected UINT64: 32 bits cut the hash constants, convert again"
    ]


HOSTILE: list[Any] = [
    (True, _V.BOOL, None),
    (0, _V.UINT32, None),
    (1, _V.UINT32, None),
    (2**32 - 1, _V.UINT32, None),
    (-1, _V.INT32, None),
    (2**64 - 1, _V.UINT64, None),
    (float("nan"), _V.FLOAT32, None),
    (-1e30, _V.FLOAT32, None),
    ("", _V.STRING, None),
    ([0], _V.ARRAY, _V.UINT64),
    ([2**63], _V.ARRAY, _V.UINT64),
    ([-1] * 5000, _V.ARRAY, _V.INT32),
    (["x"], _V.ARRAY, _V.STRING),
    (None, _V.BOOL, None),
]


def test_any_value_of_any_key_is_refused_or_read(tiny: Path, tmp_path: Path) -> None:
    """Every key of the model with every kind of wrong value: an error that names it, or a configuration."""
    keys, _ = gguf_edit.read(tiny)
    keys = {name: value for name, value in keys.items() if not name.startswith("tokenizer.ggml.")}
    refused = 0
    for name in keys.keys() - {"general.architecture"}:  # which the package's writer makes a text of
        for value in HOSTILE:
            changed = {**keys, name: value}
            if value[0] is None:
                del changed[name]
            try:
                with open_gguf(gguf_edit.write(tmp_path / "a.gguf", changed, {})) as model:
                    config_from(model)
            except InputError as error:
                refused += 1
                by_itself = value[1] is not _V.UINT32  # one that is fine alone may contradict another, which is named
                assert (name if by_itself else str(tmp_path)) in str(error), (name, value)
    assert refused > 9 * len(keys)
