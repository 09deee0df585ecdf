"""GGUF v3 files, read lazily: header scanned once, metadata decoded on demand, tensors as views of a mapping.

The `gguf` package's own reader makes one object per metadata string, 9 s for a vocabulary of 248,320 tokens. This one
walks the same header in well under a second, bounds every length by the bytes that are there before it uses it, opens
a split model from any of its shards, and touches no tensor data. Enums and block sizes are the package's.

Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import reprlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from model_file.errors import InputError
from model_file.gguf_scan import SCALARS, Scanner, Value

_MAGIC = b"GGUF"
_SHARD_NAME = re.compile(r"^(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_MAX_DIMENSIONS = 4  # ggml's own limit


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in NumPy order: a GGUF tensor of ne = [90, 1000] has shape (1000, 90)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    path: Path
    offset_bytes: int
    size_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one packed row, the last axis."""
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // block * block_bytes


class Metadata:
    """The metadata of a file as a read-only mapping; values are decoded when asked for.

    Numeric arrays come as NumPy arrays, string arrays as lists of str, everything else as Python scalars.
    """

    def __init__(self, path: Path, data: mmap.mmap, values: dict[str, Value]) -> None:
        self._path, self._data, self._values = path, data, values

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> list[str]:
        """All keys, in file order."""
        return list(self._values)

    def type_of(self, key: str) -> tuple[GGUFValueType, GGUFValueType | None]:
        """The stored type, and the element type of an array. Raises KeyError."""
        value = self._values[key]
        return value.kind, value.element

    def count_of(self, key: str) -> int:
        """How many elements an array has, without decoding it; 1 for a scalar. Raises KeyError."""
        return self._values[key].count

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where the key is absent."""
        return self[key] if key in self._values else default

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if value.element is None:
            if value.kind is GGUFValueType.STRING:
                return self._strings(key, value.start, 1)[0]
            return struct.unpack_from(SCALARS[value.kind], self._data, value.start)[0]
        if value.element is GGUFValueType.STRING:
            return self._strings(key, value.start, value.count)
        return np.frombuffer(self._data, np.dtype(SCALARS[value.element]), value.count, value.start).copy()

    def _strings(self, key: str, start: int, count: int) -> list[str]:
        strings = []
        for index in range(count):
            (size,) = struct.unpack_from("<Q", self._data, start)
            raw = self._data[start + 8 : start + 8 + size]
            try:
                strings.append(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{self._path}: metadata {key!r}, string {index} at byte {start + 8}: not UTF-8 ({error.reason}); "
                    "expected text: the file is damaged, fetch or convert it again"
                ) from None
            start += 8 + size
        return strings


class _Shard:
    """One file: its mapping, metadata and tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = _map(path)
        scan = Scanner(path, self.data)
        _check_magic(scan)
        tensor_count = scan.number("<Q", "tensor count")
        key_count = scan.number("<Q", "metadata count")
        scan.need(13 * key_count + 24 * tensor_count, f"header of {key_count} metadata values, {tensor_count} tensors")
        values: dict[str, Value] = {}
        for _ in range(key_count):
            key = scan.string("metadata key")
            if key in values:
                raise scan.fail(f"metadata key {key!r} twice", "each key once", "metadata")
            values[key] = scan.value(key)
        self.metadata = Metadata(path, self.data, values)
        raw = [_tensor_header(scan) for _ in range(tensor_count)]
        self.problems: list[str] = []
        self.tensors = self._locate(raw, scan.at)

    def _locate(
        self, raw: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]], header_end: int
    ) -> list[TensorInfo]:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise InputError(f"{self.path}: general.alignment is {alignment!r}, expected a power of two")
        data_start = -(-header_end // alignment) * alignment
        tensors = []
        for name, shape, kind, offset in raw:
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if shape[-1] % block:
                self.problems.append(
                    f"{self.path}: {name}: rows of {shape[-1]} values in {kind.name}, expected a multiple of {block}"
                )
                continue
            size = int(np.prod([int(n) for n in shape], dtype=object)) // block * block_bytes
            start = data_start + offset
            if offset % alignment:
                self.problems.append(f"{self.path}: {name}: offset {offset}, expected a multiple of {alignment}")
            if start + size > len(self.data):
                self.problems.append(
                    f"{self.path}: {name} ends at byte {start + size}, file has {len(self.data)} bytes: "
                    "truncated download? compare its size with the publisher's"
                )
            tensors.append(TensorInfo(name, shape, kind, self.path, start, size))
        return tensors


def _map(path: Path) -> mmap.mmap:
    """The whole file, mapped for reading only."""
    try:
        if path.exists() and not path.is_file():  # asked first: opening a named pipe would wait for a writer
            raise InputError(f"{path}: is a directory or device, expected a GGUF file: name the .gguf file inside it")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise InputError(f"{path}: is empty (0 bytes), expected a GGUF file: fetch it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise InputError(_open_problem(path, error)) from None


def _open_problem(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path}: no such file, expected a GGUF file: check the path"
    if error.errno == errno.EACCES:
        return f"{path}: no permission to read it: run `chmod +r` on it, or run as its owner"
    return f"{path}: cannot be opened: {error.strerror}"


def _check_magic(scan: Scanner) -> None:
    scan.need(8, "GGUF magic and version")
    magic = scan.data[:4]
    if magic != _MAGIC:
        raise scan.fail(repr(magic), f"{_MAGIC!r}: this is not a GGUF file", "magic")
    scan.at = 4
    version = scan.number("<I", "version")
    if version != 3:
        hint = "a big-endian file, convert it to little-endian" if version == 3 << 24 else "convert the file again"
        raise InputError(f"{scan.path}: GGUF version {version} at byte 4, expected 3: {hint}")


def _tensor_header(scan: Scanner) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name = scan.string("tensor name")
    place = f"tensor {name!r}"
    dimensions = scan.number("<I", place)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise scan.fail(f"{dimensions} dimensions", f"1 to {_MAX_DIMENSIONS}", place)
    shape = tuple(int(scan.number("<Q", place)) for _ in range(dimensions))[::-1]
    if 0 in shape:
        raise scan.fail(f"shape {shape}", "no empty dimension", place)
    kind = scan.number("<I", place)
    try:
        tensor_type = GGMLQuantizationType(kind)
    except ValueError:
        raise scan.fail(f"tensor type {kind}", "one the installed gguf package knows: upgrade it", place) from None
    return name, shape, tensor_type, scan.number("<Q", place)


class GgufFile:
    """An open model: one file or all shards of a split. Read-only; close it, or use it as a context manager."""

    def __init__(self, shards: list[_Shard]) -> None:
        self.paths = tuple(shard.path for shard in shards)
        self.metadata = shards[0].metadata
        self._maps = {shard.path: shard.data for shard in shards}
        self.tensors: dict[str, TensorInfo] = {}
        problems = [problem for shard in shards for problem in shard.problems]
        for tensor in (tensor for shard in shards for tensor in shard.tensors):
            if tensor.name in self.tensors:
                problems.append(
                    f"{tensor.path}: tensor {tensor.name!r} is stored twice, first in {self.tensors[tensor.name].path}"
                )
            self.tensors[tensor.name] = tensor
        problems += _count_problems(shards, len(self.tensors))
        if problems:
            raise InputError("\n".join(problems))

    @property
    def architecture(self) -> str:
        """`general.architecture`, or an empty string where the file names none."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards together."""
        return sum(len(data) for data in self._maps.values())

    def packed(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes as stored, a read-only view of the mapping.

        Shapes: uint8 [..., row_bytes], the tensor's shape with the last axis in bytes. Raises KeyError.
        """
        tensor = self.tensors[name]
        flat = np.frombuffer(self._maps[tensor.path], np.uint8, tensor.size_bytes, tensor.offset_bytes)
        return flat.reshape(*tensor.shape[:-1], tensor.row_bytes)

    def close(self) -> None:
        """Drop the mappings; views handed out keep theirs until they are gone."""
        self._maps = {}

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _count_problems(shards: list[_Shard], found: int) -> list[str]:
    expected = shards[0].metadata.get("split.tensors.count")
    if len(shards) == 1 or expected is None or expected == found:
        return []
    return [f"{shards[0].path}: split.tensors.count is {expected}, the {len(shards)} shards hold {found} tensors"]


def open_gguf(path: str | Path) -> GgufFile:
    """Open a model from its file, or from any shard of a split. Only headers are read.

    Raises: InputError naming every problem of the header, missing shards included.
    """
    path = Path(path)
    shard = _Shard(path)
    count = shard.metadata.get("split.count", 1)
    if not isinstance(count, int):
        raise InputError(
            f"{path}: split.count is {reprlib.repr(count)}, expected how many shards, a whole number: "
            "a damaged or hand-made header; fetch the file again"
        )
    if count <= 1:
        return GgufFile([shard])
    match = _SHARD_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise InputError(
            f"{path}: split.count is {count}, expected a name ending in -0000N-of-{count:05d}.gguf: "
            "rename the shards to the names they were published under"
        )
    paths = [path.with_name(f"{match['prefix']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [shard_path.name for shard_path in paths if not shard_path.exists()]
    if missing:
        raise InputError(
            f"{path}: split model of {count} shards, missing in {path.parent}: {', '.join(missing)}: fetch them too"
        )
    shards = [shard if shard_path == path else _Shard(shard_path) for shard_path in paths]
    _check_numbers(shards, count)
    return GgufFile(shards)


def _check_numbers(shards: list[_Shard], count: int) -> None:
    problems = []
    for number, shard in enumerate(shards):
        found, found_count = shard.metadata.get("split.no"), shard.metadata.get("split.count")
        if (found, found_count) != (number, count):
            problems.append(
                f"{shard.path}: split.no {found} of split.count {found_count}, expected {number} of {count}: "
                "shards of different models, or renamed"
            )
    if problems:
        raise InputError("\n".join(problems))
