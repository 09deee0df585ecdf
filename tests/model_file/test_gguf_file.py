"""The header reader against the `gguf` package's own, on real files, and on files damaged byte by byte."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness import supervise
from harness.cli import app
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from tests import gguf_edit
from tests.conftest import FIXTURES, larger_fixture

_V = gguf.GGUFValueType


@pytest.mark.parametrize("name", ["tiny.gguf", "tiny-quant.gguf", "llama-arch.gguf"])
def test_reader_agrees_with_gguf_package(name: str) -> None:
    path = FIXTURES / name if (FIXTURES / name).exists() else larger_fixture(name)
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        expected_keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
        assert ours.metadata.keys() == expected_keys
        for key in expected_keys:
            field = theirs.fields[key]
            kind, element = ours.metadata.type_of(key)
            found, expected = ours.metadata[key], field.contents()
            assert kind == field.types[0]
            if isinstance(expected, list) and expected:  # of an empty array, the package keeps no element type
                assert element == field.types[-1]
            assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected
            assert ours.metadata.count_of(key) == (len(expected) if isinstance(expected, list) else 1)
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
            assert (info.type, info.offset_bytes, info.size_bytes) == (
                tensor.tensor_type,
                tensor.data_offset,
                tensor.n_bytes,
            )
            assert ours.packed(tensor.name).tobytes() == np.asarray(tensor.data).tobytes()


def test_packed_is_a_read_only_view(tiny: Path) -> None:
    with open_gguf(tiny) as model:
        packed = model.packed("token_embd.weight")
    assert packed.shape == (512, 512)
    assert not packed.flags.writeable
    assert not packed.flags.owndata


def test_split_opens_from_any_shard(tiny_quant: Path, tmp_path: Path) -> None:
    whole = open_gguf(tiny_quant)
    for path in gguf_edit.split(tiny_quant, tmp_path, "model", 4):
        parts = open_gguf(path)
        assert parts.paths == tuple(sorted(tmp_path.glob("*.gguf")))
        assert parts.metadata["qwen4exp.block_count"] == 8
        assert set(parts.tensors) == set(whole.tensors)
        assert all(parts.packed(name).tobytes() == whole.packed(name).tobytes() for name in whole.tensors)


def test_split_with_a_missing_shard_names_it(tiny_quant: Path, tmp_path: Path) -> None:
    paths = gguf_edit.split(tiny_quant, tmp_path, "model", 4)
    paths[2].unlink()
    with pytest.raises(InputError, match=r"missing in .*: model-00003-of-00004\.gguf"):
        open_gguf(paths[0])


def test_split_with_swapped_shards_names_both(tiny_quant: Path, tmp_path: Path) -> None:
    paths = gguf_edit.split(tiny_quant, tmp_path, "model", 4)
    paths[1].rename(tmp_path / "aside")
    paths[2].rename(paths[1])
    (tmp_path / "aside").rename(paths[2])
    with pytest.raises(InputError) as raised:
        open_gguf(paths[0])
    assert "00002-of-00004.gguf: split.no 2 of split.count 4, expected 1 of 4" in str(raised.value)
    assert "00003-of-00004.gguf: split.no 1" in str(raised.value)


def test_split_under_another_name_is_refused(tiny_quant: Path, tmp_path: Path) -> None:
    paths = gguf_edit.split(tiny_quant, tmp_path, "model", 4)
    renamed = paths[1].rename(tmp_path / "mine.gguf")
    with pytest.raises(InputError, match=r"expected a name ending in -0000N-of-00004\.gguf"):
        open_gguf(renamed)


def test_shards_in_order_open_under_any_names(tiny_quant: Path, tmp_path: Path) -> None:
    whole = open_gguf(tiny_quant)
    paths = gguf_edit.split(tiny_quant, tmp_path, "model", 3)
    renamed = [path.rename(tmp_path / name) for path, name in zip(paths, ["b", "c.gguf", "a.part"], strict=True)]
    with open_gguf(renamed) as model:
        assert model.paths == tuple(renamed)
        assert all(model.packed(name).tobytes() == whole.packed(name).tobytes() for name in whole.tensors)
    with open_gguf([tiny_quant]) as model:
        assert set(model.tensors) == set(whole.tensors)


ODD = [b"a, b.gguf", b"\xff\xfe.part", "\u2028 c@d=e.gguf".encode()]


@pytest.mark.hostile
def test_a_list_of_shards_is_a_model_for_every_command(tiny_quant: Path, tmp_path: Path) -> None:
    """Names of any bytes but a newline, from the folder of the list; `rows` reads the shard that holds the table."""
    (tmp_path / "elsewhere").mkdir()
    names = [os.fsencode(tmp_path / "elsewhere") + b"/" + name for name in ODD[:2]] + [b"sub/" + ODD[2]]
    (tmp_path / "sub").mkdir()
    listed = tmp_path / "model.shards"
    listed.write_bytes(b"\n".join(names) + b"\n\n")
    for path, name in zip(gguf_edit.split(tiny_quant, tmp_path, "model", 3), names, strict=True):
        path.rename(tmp_path / os.fsdecode(name))
    with open_gguf(listed) as model, open_gguf(tiny_quant) as whole:
        assert [os.fsencode(path) for path in model.paths] == [*names[:2], os.fsencode(tmp_path) + b"/" + names[2]]
        assert all(model.packed(name).tobytes() == whole.packed(name).tobytes() for name in whole.tensors)
        assert supervise._named_models([str(listed), f"mmap@{listed}"]) == 2 * [str(path) for path in model.paths]
    for command in (
        ["inspect", listed],
        ["rows", listed, "--against", tiny_quant, "--mode", "mmap", "--mode", f"uring@{tiny_quant}", "--no-cold"],
        ["rows", tiny_quant, "--mode", f"direct@{listed}", "--no-cold"],
        ["gate", listed, "--generate", "0", "--mode", "direct"],
    ):
        done = CliRunner().invoke(app, list(map(str, command)))
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("content", [b"", b"\n \n", b"GGUF\0\0\0", b"a.gguf\0b.gguf"])
def test_a_list_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    listed = tmp_path / "model.shards"
    listed.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.shards: found no list of names, expected all shards"):
        open_gguf(listed)


def test_a_list_names_what_is_missing_or_not_in_order(tiny_quant: Path, tmp_path: Path) -> None:
    paths = gguf_edit.split(tiny_quant, tmp_path, "model", 3)
    listed = tmp_path / "model.shards"
    for order, said in (([0, 2, 1], "not in order"), ([0, 1], r"split\.count 3, expected 0 of 2")):
        listed.write_text("\n".join(paths[number].name for number in order))
        with pytest.raises(InputError, match=said):
            open_gguf(listed)
    listed.write_text("no.gguf")
    with pytest.raises(InputError, match=r"no\.gguf: no such file"):
        open_gguf(listed)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([1, 0, 2], r"split\.no 1 of split\.count 3, expected 0 of 3: .*not in order"),
        ([0, 1, 1], r"split\.no 1 of split\.count 3, expected 2 of 3"),
        ([0, 1], r"split\.no 0 of split\.count 3, expected 0 of 2"),
        ([], "no file named"),
    ],
)
def test_shards_that_are_not_all_in_order_are_refused(
    tiny_quant: Path, tmp_path: Path, order: list[int], said: str
) -> None:
    paths = gguf_edit.split(tiny_quant, tmp_path, "model", 3)
    with pytest.raises(InputError, match=said):
        open_gguf([paths[number] for number in order])


def left_over(count: object, kind: gguf.GGUFValueType, tensors: int) -> Callable[[gguf_edit.Keys, object], None]:
    def change(keys: gguf_edit.Keys, _: object) -> None:
        keys["split.count"] = (count, kind, None)
        keys["split.tensors.count"] = (tensors, gguf.GGUFValueType.INT32, None)

    return change


@pytest.mark.parametrize(
    ("count", "kind", "tensors", "said"),
    [
        (4, _V.UINT16, 113, r"holds all 113 tensors.*left over.*gguf-set-metadata .* split\.count 0"),
        (4, _V.UINT16, 300, r"expected a name ending in -0000N-of-00004\.gguf; this file holds 113 of 300 tensors"),
        (4, _V.UINT16, 0, r"expected a name ending in -0000N-of-00004\.gguf: rename the shards"),
        (True, _V.BOOL, 113, r"split\.count: found True, expected a whole number"),
        ("4", _V.STRING, 113, r"split\.count: found '4', expected a whole number"),
    ],
)
def test_a_single_file_with_a_left_over_split_count(
    tiny: Path, tmp_path: Path, count: object, kind: gguf.GGUFValueType, tensors: int, said: str
) -> None:
    path = gguf_edit.edited(tiny, tmp_path / "whole.gguf", left_over(count, kind, tensors))
    with pytest.raises(InputError, match=rf"whole\.gguf: .*{said}"):
        open_gguf(path)


def test_the_advice_for_a_left_over_split_count_works(tiny: Path, tmp_path: Path) -> None:
    path = gguf_edit.edited(tiny, tmp_path / "whole.gguf", left_over(4, _V.UINT16, 113))
    with pytest.raises(InputError) as raised:
        open_gguf(path)
    program, *arguments = str(raised.value).split("`")[1].split()
    command = [Path(sys.executable).with_name(program), *arguments]
    subprocess.run(command, check=True, capture_output=True, input=b"YES\n")
    with open_gguf(path) as model:
        assert len(model.tensors) == 113


def test_every_truncation_is_refused(tiny: Path, tmp_path: Path) -> None:
    """Cut anywhere in the header or data, the file is refused with an error that names it: never a crash or a hang."""
    content = tiny.read_bytes()
    cuts = [*range(0, 600, 7), *range(600, 19264, 997), 19264, 30_000, len(content) - 1]
    path = tmp_path / "cut.gguf"
    for cut in cuts:
        path.write_bytes(content[:cut])
        with pytest.raises(InputError, match=r"cut\.gguf") as raised:
            open_gguf(path)
        assert "expected" in str(raised.value) or "truncated download?" in str(raised.value)


@given(st.integers(0, 19_263), st.integers(0, 255))
def test_any_changed_header_byte_opens_or_is_refused(at: int, value: int) -> None:
    """Damage may go unseen, but it may not crash, hang or allocate without bound."""
    content = bytearray((FIXTURES / "tiny.gguf").read_bytes())
    content[at] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.gguf"
        path.write_bytes(content)
        try:
            open_gguf(path)
        except InputError as error:
            assert "changed.gguf" in str(error)


@pytest.mark.parametrize("place", ["tensor count", "metadata count", "string length", "array count"])
def test_enormous_lengths_are_refused_at_once(tiny: Path, tmp_path: Path, place: str) -> None:
    content = bytearray(tiny.read_bytes())
    tokens = content.index(b"tokenizer.ggml.tokens")
    offset = {"tensor count": 8, "metadata count": 16, "string length": 24, "array count": tokens + 21 + 8}[place]
    content[offset : offset + 8] = struct.pack("<Q", 2**63 - 1)
    path = tmp_path / "huge.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"huge\.gguf: .* at byte \d+: found \d+ bytes left"):
        open_gguf(path)
