"""One GGUF v3 file: its mapping, its metadata, and its tensors in the one layout that writers make.

Every tensor starts at the first multiple of the alignment after the one listed before it. llama.cpp's loader wants
exactly that; the `gguf` package, llama.cpp and its split tool write nothing else. Where tensors overlap, leave room or
go backwards, the file is damaged or made by hand, and refused. More bytes behind the last one are left alone.

Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from model_file.errors import InputError
from model_file.gguf_scan import Scanner, Value
from model_file.metadata import Keys, Metadata

_MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4  # ggml's own limit
_DAMAGED = "no writer makes such a file: it is damaged or made by hand, fetch or convert it again"


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

    @property
    def end_bytes(self) -> int:
        """Where the byte after its last one lies."""
        return self.offset_bytes + self.size_bytes


class Shard:
    """One file. Problems of its tensors are kept in `problems`, so that those of all shards are raised together."""

    def __init__(self, path: Path) -> None:
        """Raises: InputError where the header cannot be read."""
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
        self.problems: list[str] = []
        alignment = self._alignment()
        raw = [_tensor_header(scan) for _ in range(tensor_count)]
        data_start = _up(scan.at, alignment)
        self.tensors = [
            TensorInfo(name, shape, kind, path, data_start + at, size) for name, shape, kind, size, at in raw
        ]
        self._check_layout(data_start, alignment)

    def _alignment(self) -> int:
        keys = Keys(self.metadata)
        alignment = keys.integer("general.alignment", default=32)
        if keys.sound("general.alignment") and alignment & (alignment - 1):
            keys.problem("general.alignment", alignment, "a power of two")
        keys.raise_problems()
        return alignment

    def _check_layout(self, data_start: int, alignment: int) -> None:
        """Each tensor right behind the one before it, up to padding, and all of it there."""
        after, previous = data_start, "the header"
        for tensor in self.tensors:
            first, last = tensor.offset_bytes, tensor.end_bytes - 1
            if first != after:
                self.problems.append(
                    f"{self.path}: tensor {tensor.name!r} starts at byte {first}, expected {after}, the first multiple "
                    f"of {alignment} behind {previous}: {_how_misplaced(first, after)}; {_DAMAGED}"
                )
                return  # what follows is misplaced too, or measured from here
            if last >= len(self.data):
                self.problems.append(
                    f"{self.path}: {tensor.name} ends at byte {last + 1}, file has {len(self.data)} bytes: "
                    "truncated download? compare its size with the publisher's"
                )
            after = _up(last + 1, alignment)
            previous = f"tensor {tensor.name!r} (bytes {first} to {last})"


def _how_misplaced(first: int, after: int) -> str:
    return f"{first - after} bytes between them" if first > after else "they overlap, or stand in another order"


def _up(count_bytes: int, alignment: int) -> int:
    return -(-count_bytes // alignment) * alignment


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


def _tensor_header(scan: Scanner) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]:
    """Name, shape, type, bytes and offset from the start of the data."""
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
    block, block_bytes = GGML_QUANT_SIZES[tensor_type]
    if shape[-1] % block:
        raise scan.fail(f"rows of {shape[-1]} values in {tensor_type.name}", f"a multiple of {block}", place)
    return name, shape, tensor_type, prod(shape) // block * block_bytes, scan.number("<Q", place)
