"""The writer's files, read back by the `gguf` package's reader; and everything that can go wrong while writing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

from harness.synth import gguf_writer
from harness.synth.gguf_writer import Entry, PlannedTensor, file_bytes, header, write_gguf
from model_file.errors import InputError

_V = GGUFValueType
ENTRIES = [
    Entry("general.architecture", _V.STRING, "qwen4exp"),
    Entry("a.u32", _V.UINT32, 2**32 - 1),
    Entry("a.i32", _V.INT32, -(2**31)),
    Entry("a.u64", _V.UINT64, 2**64 - 1),
    Entry("a.f32", _V.FLOAT32, 1e-6),
    Entry("a.no", _V.BOOL, False),
    Entry("a.yes", _V.BOOL, True),
    Entry("a.text", _V.STRING, "größer → 大"),
    Entry("a.ints", _V.ARRAY, [3, -2, 1], _V.INT32),
    Entry("a.longs", _V.ARRAY, [2**64 - 1, 0], _V.UINT64),
    Entry("a.words", _V.ARRAY, ["", "Ġthe", "🙂"], _V.STRING),
]


def _tensor(name: str, values: np.ndarray, kind: GGMLQuantizationType = GGMLQuantizationType.F32) -> PlannedTensor:
    def blocks() -> Iterator[np.ndarray]:
        data = np.frombuffer(values.tobytes(), dtype=np.uint8)
        yield data[:5]
        yield data[5:]

    shape = values.shape if kind == GGMLQuantizationType.F32 else (values.shape[0], values.shape[1] // 18 * 32)
    return PlannedTensor(name, shape, kind, blocks)


FLOATS = np.arange(21, dtype=np.float32).reshape(3, 7)
PACKED = np.arange(36, dtype=np.uint8).reshape(1, 36)
TENSORS = [_tensor("floats", FLOATS), _tensor("packed", PACKED, GGMLQuantizationType.IQ4_NL), _tensor("one", FLOATS[0])]


def test_written_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    seen_bytes: list[int] = []
    digest = write_gguf(path, header(ENTRIES, TENSORS), TENSORS, on_bytes=seen_bytes.append)
    assert path.stat().st_size == file_bytes(header(ENTRIES, TENSORS), TENSORS) == sum(seen_bytes)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    reader = GGUFReader(path)
    for entry in ENTRIES:
        field = reader.fields[entry.key]
        expected = np.float32(entry.value) if entry.kind == _V.FLOAT32 else entry.value
        assert field.contents() == expected, entry.key
        assert field.types == [entry.kind, *([] if entry.items is None else [entry.items])]
    assert [tensor.name for tensor in reader.tensors] == ["floats", "packed", "one"]
    assert all(tensor.data_offset % 32 == 0 for tensor in reader.tensors)
    assert np.array_equal(reader.tensors[0].data, FLOATS)
    assert np.array_equal(reader.tensors[1].data, PACKED)
    assert reader.tensors[1].tensor_type == GGMLQuantizationType.IQ4_NL
    assert np.array_equal(reader.tensors[2].data, FLOATS[0])
    assert (path.stat().st_mode & 0o777) == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(InputError, match=r"a\.gguf: exists already.*--force"):
        write_gguf(path, header(ENTRIES, TENSORS), TENSORS)
    assert path.read_bytes() == b"precious"
    write_gguf(path, header(ENTRIES, TENSORS), TENSORS, force=True)
    assert path.read_bytes()[:4] == b"GGUF"


def test_folder_and_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_gguf(tmp_path, header(ENTRIES, TENSORS), TENSORS, force=True)
    with pytest.raises(InputError, match=r"no such folder.*--out"):
        write_gguf(tmp_path / "none" / "a.gguf", header(ENTRIES, TENSORS), TENSORS)
    assert list(tmp_path.iterdir()) == []


def test_no_space_is_said_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = gguf_writer.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(gguf_writer.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InputError, match=r"no space: 1,000 bytes are free, [\d,]+ are needed.*--out"):
        write_gguf(tmp_path / "a.gguf", header(ENTRIES, TENSORS), TENSORS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(28, os.strerror(28)), "No space left"), (PermissionError(13, os.strerror(13)), "Permission denied")],
)
def test_error_while_writing_leaves_nothing(tmp_path: Path, error: OSError, said: str) -> None:
    def blocks() -> Iterator[np.ndarray]:
        yield np.zeros(4, dtype=np.uint8)
        raise error

    broken = PlannedTensor("broken", (10,), GGMLQuantizationType.F32, blocks)
    with pytest.raises(InputError, match=rf"a\.gguf: .*{said}.*--out"):
        write_gguf(tmp_path / "a.gguf", header(ENTRIES, [broken]), [broken])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="Permission denied"):
        write_gguf(tmp_path / "a.gguf", header(ENTRIES, TENSORS), TENSORS)
    tmp_path.chmod(0o755)


def test_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"precious")

    def interrupted(count_bytes: int) -> None:
        if count_bytes == FLOATS.nbytes - 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, header(ENTRIES, TENSORS), TENSORS, force=True, on_bytes=interrupted)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gguf"]
    assert path.read_bytes() == b"precious"


def test_a_tensor_of_the_wrong_size_is_caught(tmp_path: Path) -> None:
    short = PlannedTensor("short", (4,), GGMLQuantizationType.F32, lambda: iter([np.zeros(12, dtype=np.uint8)]))
    with pytest.raises(AssertionError, match="short: 12 bytes made, its shape needs 16"):
        write_gguf(tmp_path / "a.gguf", header(ENTRIES, [short]), [short])
    assert list(tmp_path.iterdir()) == []
