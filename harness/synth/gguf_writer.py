"""Writing GGUF files: the header by the `gguf` package, tensors streamed in order, the file whole or not there.

The package writes tensors too, but wants each in memory and writes to the final path; a table of 27 GiB fits neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType, GGUFWriter

from harness.atomic import writing
from harness.synth.bits import Bytes
from model_file.errors import InputError

_FREE_MARGIN_BYTES = 64 << 20  # the file system's own needs; a disk filled to the last byte hurts everybody


@dataclass(frozen=True)
class Entry:
    """One metadata key. `items` is the element type where `kind` is ARRAY."""

    key: str
    kind: GGUFValueType
    value: Any
    items: GGUFValueType | None = None


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor to write.

    Shapes: `shape` in NumPy order. `blocks` yields its bytes in order, in pieces of any size.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    blocks: Callable[[], Iterator[Bytes]]

    @property
    def size_bytes(self) -> int:
        """Bytes of its data, without padding."""
        block, block_bytes = GGML_QUANT_SIZES[self.kind]
        return int(np.prod(self.shape, dtype=np.int64)) // block * block_bytes


def header(entries: Sequence[Entry], tensors: Sequence[PlannedTensor]) -> bytes:
    """Everything before the first tensor's data, padded to the alignment."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "header"
        writer = GGUFWriter(path, str(entries[0].value))  # which writes the first entry, the architecture, itself
        for entry in entries[1:]:
            writer.add_key_value(entry.key, entry.value, entry.kind, entry.items)
        for each in tensors:
            writer.add_tensor_info(each.name, each.shape, np.dtype(np.float32), each.size_bytes, each.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        content = path.read_bytes()
    return content.ljust(_padded(len(content)), b"\0")


def file_bytes(head: bytes, tensors: Sequence[PlannedTensor]) -> int:
    """Size of the file that `write_gguf` makes of these."""
    return len(head) + sum(_padded(tensor.size_bytes) for tensor in tensors)


def _padded(size_bytes: int) -> int:
    return GGUFWriter.ggml_pad(size_bytes, GGUF_DEFAULT_ALIGNMENT)


def check_space(path: Path, needed_bytes: int, instead: str) -> None:
    """Raises:

    InputError when the folder of `path` is not there or its file system has no room. `instead` says what to do.
    """
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder to write {path.name} into; make it first, or {instead}")
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + _FREE_MARGIN_BYTES:
        found = f"{free_bytes:,} bytes are free, {needed_bytes:,} are needed and {_FREE_MARGIN_BYTES:,} stay free"
        raise InputError(f"{path}: no space: {found}; make room, or {instead}")


@contextmanager
def together(paths: Sequence[Path], *, force: bool) -> Iterator[None]:
    """The block writes all of these files, or those that were not there are removed again.

    Raises: InputError when one is there already (without `force`).
    """
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise InputError(
            f"{there[0]}: exists already, nothing was written; add --force to replace it, or name another with --out"
        )
    try:
        yield
    except BaseException:
        for path in paths:
            if path not in there:
                path.unlink(missing_ok=True)
        raise


def write_gguf(
    path: Path,
    head: bytes,
    tensors: Sequence[PlannedTensor],
    *,
    force: bool = False,
    instead: str = "name another place with --out",
    on_bytes: Callable[[int], None] = lambda _: None,
) -> str:
    """Write the file whole or not at all and give its SHA-256.

    on_bytes: called with the size of every piece that was written. instead: what the message of an error ends in.
    Raises: InputError when the file is there already (without `force`), or the folder is missing, not writable or full.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected the name of a file to write; {instead}")
    if path.exists() and not force:
        raise InputError(f"{path}: exists already, nothing was written; add --force to replace it, or {instead}")
    check_space(path, file_bytes(head, tensors), instead)
    digest = hashlib.sha256()
    try:
        with (
            writing(path, over_model=True) as file,
            contextlib.closing(_ahead(pieces(head, tensors))) as ready,
        ):
            for piece in ready:
                view = piece.data
                digest.update(view)
                file.write(view)
                on_bytes(piece.size)
    except InputError as error:  # no space, no permission: `writing` has cleaned up and said what
        raise InputError(f"{error}; or {instead}") from error
    return digest.hexdigest()


def pieces(head: bytes, tensors: Sequence[PlannedTensor]) -> Iterator[Bytes]:
    """The bytes of the whole file, in order."""
    yield np.frombuffer(head, dtype=np.uint8)
    for tensor in tensors:
        written_bytes = 0
        for piece in tensor.blocks():
            written_bytes += piece.size
            yield piece
        if written_bytes != tensor.size_bytes:
            raise AssertionError(f"{tensor.name}: {written_bytes} bytes made, its shape needs {tensor.size_bytes}")
        yield np.zeros(_padded(written_bytes) - written_bytes, dtype=np.uint8)


def _ahead(pieces: Iterable[Bytes]) -> Generator[Bytes]:
    """The same pieces, each made by a second thread while the one before is written:

    NumPy and hashing release the lock.
    """
    source = iter(pieces)
    with ThreadPoolExecutor(max_workers=1) as maker:
        coming = maker.submit(next, source, None)
        while (piece := coming.result()) is not None:
            coming = maker.submit(next, source, None)
            yield piece
