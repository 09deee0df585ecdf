"""The layout of tensors in a file: what writers make is taken, everything else refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from tests import gguf_edit
from tests.conftest import larger_fixture

F32 = gguf.GGMLQuantizationType.F32
SIZES = {"first": 25, "second": 8, "third": 40}  # floats: 100 bytes padded to 128, 32, 160


def made(path: Path, alignment: int = 32) -> Path:
    """Three tensors by the `gguf` package's writer."""
    keys: gguf_edit.Keys = {"general.architecture": ("gemma4", gguf.GGUFValueType.STRING, None)}
    writer = gguf.GGUFWriter(path, keys["general.architecture"][0])
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for name, count in SIZES.items():
        writer.add_tensor(name, np.arange(count, dtype=np.float32), raw_dtype=F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def move(path: Path, **offsets: int) -> None:
    """Give tensors other offsets in the header; the data stay where they are."""
    content = bytearray(path.read_bytes())
    for name, offset in offsets.items():
        at = content.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name) + 4 + 8 + 4
        content[at : at + 8] = struct.pack("<Q", offset)
    path.write_bytes(content)


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_what_the_package_writes_is_taken(tmp_path: Path, alignment: int) -> None:
    with open_gguf(made(tmp_path / "a.gguf", alignment)) as model:
        for name, count in SIZES.items():
            assert model.packed(name).view(np.float32).tolist() == list(range(count))


@pytest.mark.parametrize("name", ["llama-arch.gguf", "tiny-mtp.gguf", "split/tiny-quant-00001-of-00004.gguf"])
def test_what_llama_cpp_and_its_split_tool_write_is_taken(name: str) -> None:
    with open_gguf(larger_fixture(name)) as model:
        assert model.tensors


def test_more_bytes_behind_the_last_tensor_are_left_alone(tmp_path: Path) -> None:
    path = made(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes() + bytes(1000))
    with open_gguf(path) as model:
        assert set(model.tensors) == {*SIZES}


@pytest.mark.parametrize(
    ("offsets", "found", "how"),
    [
        ({"second": 0}, ("second", 0, 128, "first", 0, 99), "overlap"),
        ({"second": 96}, ("second", 96, 128, "first", 0, 99), "overlap"),  # by four bytes
        ({"third": 128}, ("third", 128, 160, "second", 128, 159), "overlap"),
        ({"second": 192}, ("second", 192, 128, "first", 0, 99), "64 bytes between them"),
        ({"second": 160}, ("second", 160, 128, "first", 0, 99), "32 bytes between them"),  # one alignment too many
        ({"first": 192, "second": 160, "third": 0}, ("first", 192, 0, None, 0, 0), "192 bytes between them"),
        ({"second": 131}, ("second", 131, 128, "first", 0, 99), "3 bytes between them"),  # not aligned
        ({"third": 2**63}, ("third", 2**63, 160, "second", 128, 159), "bytes between them"),
    ],
)
def test_a_layout_that_no_writer_makes_is_refused(
    tmp_path: Path, offsets: dict[str, int], found: tuple[str, int, int, str | None, int, int], how: str
) -> None:
    path = made(tmp_path / "a.gguf")
    with open_gguf(path) as model:
        start = model.tensors["first"].offset_bytes
    move(path, **offsets)
    with pytest.raises(InputError) as raised:
        open_gguf(path)
    name, at, expected, before, low, high = found
    behind = f"tensor '{before}' (bytes {start + low} to {start + high})" if before else "the header"
    assert str(raised.value).startswith(
        f"{path}: tensor '{name}' starts at byte {start + at}, expected {start + expected}, the first multiple of 32 "
        f"behind {behind}: "
    )
    assert how in str(raised.value)
    assert "fetch or convert it again" in str(raised.value)


def with_alignment(kind: gguf.GGUFValueType, value: object) -> Callable[[gguf_edit.Keys, gguf_edit.Tensors], None]:
    def change(keys: gguf_edit.Keys, _: gguf_edit.Tensors) -> None:
        keys["general.alignment"] = (value, kind, None)

    return change


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (gguf.GGUFValueType.BOOL, True, "found True, expected a whole number of at least 1"),
        (gguf.GGUFValueType.STRING, "32", "found '32', expected a whole number"),
        (gguf.GGUFValueType.FLOAT32, 32.0, r"found 32\.0, expected a whole number"),
        (gguf.GGUFValueType.UINT32, 0, "found 0, expected a whole number"),
        (gguf.GGUFValueType.UINT32, 48, "found 48, expected a power of two"),
        (gguf.GGUFValueType.INT32, -32, "found -32, expected a whole number"),
    ],
)
def test_an_alignment_that_is_none_is_refused(
    tiny: Path, tmp_path: Path, kind: gguf.GGUFValueType, value: object, said: str
) -> None:
    path = gguf_edit.edited(tiny, tmp_path / "a.gguf", with_alignment(kind, value))
    with pytest.raises(InputError, match=rf"a\.gguf: general\.alignment: {said}"):
        open_gguf(path)
