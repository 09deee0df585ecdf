"""The reference against engines that are not ours, whole and in every split."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest

from model_file.config import ModelConfig, config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.tensors import TABLE
from reference.decode import ReadRows, Session, greedy
from reference.parameters import Parameters, load_parameters
from tests.conftest import FIXTURES, larger_fixture
from tests.gguf_edit import Keys, Tensors, edited

BOUND = 5e-5
"""Relative error per position, L2 over the vocabulary. Two float32 engines that add in other orders differ by up to
1.5e-5 on these files (measured, all positions); a wrong rounding mode, gate or tie shows as 1e-3 and more."""

CHUNKED = ["tiny.gguf", "tiny-quant.gguf", "llama-arch.gguf"]
MODELS = [*CHUNKED, *[f"split/tiny-quant-0000{shard}-of-00004.gguf" for shard in (1, 2, 3, 4)]]


def find(name: str) -> Path:
    own = FIXTURES / name
    return own if own.exists() else larger_fixture(name)


@cache
def load(path: Path) -> tuple[Parameters, ModelConfig, ReadRows]:
    model = open_gguf(path)
    config = config_from(model)
    packed, info = model.packed(TABLE), model.tensors[TABLE]

    def read_rows(ids: np.ndarray) -> np.ndarray:
        rows = packed[ids]
        return gguf.quants.dequantize(rows.view(np.float32) if info.type.name == "F32" else rows, info.type)

    return load_parameters(model, config), config, read_rows


@pytest.mark.parametrize("value", [1 << 25, "five", [5, 6]], ids=["too many", "text", "array"])
@pytest.mark.parametrize(
    "key", ["block_count", "rope.dimension_count", "ssm.inner_size", "attention.value_length", "ple.conv_kernel"]
)
def test_numbers_that_are_none_are_collected(tmp_path: Path, key: str, value: int | str | list[int]) -> None:
    """With the other problems of the file, and without filling the memory with so many layers."""
    kinds = {int: gguf.GGUFValueType.UINT32, str: gguf.GGUFValueType.STRING, list: gguf.GGUFValueType.ARRAY}
    element = gguf.GGUFValueType.INT32 if isinstance(value, list) else None

    def change(keys: Keys, _: Tensors) -> None:
        keys[f"qwen4exp.{key}"] = (value, kinds[type(value)], element)
        keys["qwen4exp.context_length"] = ("long", gguf.GGUFValueType.STRING, None)

    path = edited(find("tiny.gguf"), tmp_path / "changed.gguf", change)
    with open_gguf(path) as model, pytest.raises(InputError) as refused:
        config_from(model)
    lines = str(refused.value).splitlines()
    assert any("qwen4exp.context_length: found 'long', expected a whole number of at least 1" in line for line in lines)
    found = "array(" if isinstance(value, list) else repr(value)
    assert any(line.startswith(f"{path}: qwen4exp.{key}: found {found}") for line in lines)


def test_image_token_is_not_read(tmp_path: Path) -> None:
    """Nothing in this model depends on it, so that nothing in it can be wrong."""

    def change(keys: Keys, _: Tensors) -> None:
        keys["qwen4exp.ple.image_token_id"] = ("none", gguf.GGUFValueType.STRING, None)

    with open_gguf(edited(find("tiny.gguf"), tmp_path / "image.gguf", change)) as model:
        assert config_from(model).layers


def answers(name: str) -> dict[str, np.ndarray]:
    stem = "tiny-quant" if name.startswith("split/") else name.removesuffix(".gguf")
    with np.load(find(f"{stem}.npz")) as archive:
        return dict(archive)


def worst_error(found: np.ndarray, expected: np.ndarray) -> float:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return float(np.max(np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)))


@pytest.mark.parametrize("name", MODELS)
def test_reference_equals_other_engines(name: str) -> None:
    parameters, config, read_rows = load(find(name))
    expected = answers(name)
    for number in range(3):
        prompt = expected[f"prompt_{number}"].tolist()
        session = Session(parameters, config, read_rows, room=256)
        logits = session.feed_in_chunks(prompt, 64)
        assert worst_error(logits, expected[f"logits_{number}"]) <= BOUND
        steps = list(greedy(session, logits[-1], 32))
        assert [token for token, _ in steps] == expected[f"greedy_{number}"].tolist()
        margins = np.array([margin for _, margin in steps])
        assert np.max(np.abs(margins - expected[f"margin_{number}"])) <= 1e-3  # absolute, of logits of size 1 to 10


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
@pytest.mark.parametrize("name", CHUNKED)
def test_reference_is_the_same_in_chunks(name: str, chunk: int) -> None:
    parameters, config, read_rows = load(find(name))
    expected = answers(name)
    for number in range(3):
        prompt = expected[f"prompt_{number}"].tolist()
        session = Session(parameters, config, read_rows, room=256)
        logits = session.feed_in_chunks(prompt, chunk)
        assert worst_error(logits, expected[f"logits_{number}"]) <= BOUND
        assert [token for token, _ in greedy(session, logits[-1], 32)] == expected[f"greedy_{number}"].tolist()


def test_bound_catches_one_wrong_row() -> None:
    """The comparison can fail: one row of one head of one token exchanged moves the logits far past the bound."""
    parameters, config, read_rows = load(FIXTURES / "tiny.gguf")
    expected = answers("tiny.gguf")

    left = [1]

    def wrong_row(ids: np.ndarray) -> np.ndarray:
        ids = ids.copy()
        if left:
            ids[5] += left.pop()
        return read_rows(ids)

    session = Session(parameters, config, wrong_row, room=256)
    logits = session.feed_in_chunks(expected["prompt_0"].tolist(), 64)
    assert worst_error(logits, expected["logits_0"]) > 20 * BOUND


def test_two_sessions_share_no_state() -> None:
    parameters, config, read_rows = load(FIXTURES / "tiny.gguf")
    first, second = (Session(parameters, config, read_rows, room=64) for _ in range(2))
    alone = Session(parameters, config, read_rows, room=64)
    for tokens in ([5, 6, 7], [8, 1, 9]):
        expected = alone.feed(tokens)
        found = first.feed(tokens)
        second.feed(tokens[::-1])
        assert found.tobytes() == expected.tobytes()


def test_session_refuses_more_than_its_room() -> None:
    parameters, config, read_rows = load(FIXTURES / "tiny.gguf")
    session = Session(parameters, config, read_rows, room=4)
    session.feed([1, 2, 3])
    with pytest.raises(ValueError, match="3 tokens fed, 2 more do not fit the room of 4"):
        session.feed([4, 5])
