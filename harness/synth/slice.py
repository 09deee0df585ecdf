"""The first layers of a model as a whole model, to try a change on in minutes; the table is not copied if possible.

The metadata and all weights go into the first shard, the table into one of its own: a hard link where the model's table
has a shard to itself, a reflink where the file system shares blocks (xfs, btrfs), else a copy.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from gguf import GGUFValueType

from harness.atomic import writing
from harness.synth.bits import Bytes
from harness.synth.gguf_writer import Entry, PlannedTensor, check_space, header, together, write_gguf
from harness.synth.keys import shard_keys, shard_paths
from model_file.config import ARCHITECTURE, ModelConfig, config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.shard import TensorInfo
from model_file.tensors import TABLE

LINKED, CLONED, COPIED = "hard link", "reflink", "copy"
_PIECE_BYTES = 16 << 20
_BLOCK_BYTES = 4096  # what reflinks are aligned to
_FICLONERANGE = 0x4020940D
_FILLER = "plegate.filler"  # a key whose length moves the table to where a reflink can put it
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Slice:
    """What was made. table: how the table came into its shard. size_bytes: of all shards, linked or not."""

    paths: tuple[Path, ...]
    layers: int
    table: str
    size_bytes: int


def slice_model(
    model: GgufFile,
    layers: int,
    out: Path,
    *,
    table_rows: int | None = None,
    force: bool = False,
    on_bytes: OnBytes = lambda _: None,
) -> Slice:
    """Write the first `layers` layers of an open model; draft heads are left out.

    table_rows: keep about so many rows, the first ones of every head, whose sizes shrink alike; None: all of them.
    Raises: InputError for layers that the model has not or that leave the PLE layer out, files that are there (without
    `force`), and no space.
    """
    config = config_from(model)
    _check(model, config, layers, table_rows)
    alone = _shard_of_table(model) if table_rows is None else None
    number, count = alone or (1, 2)
    paths = shard_paths(out, count)
    kept = [t for t in model.tensors.values() if t.name != TABLE and _layer_of(t.name) < layers]
    keys = [shard_keys(place, count, len(kept) + 1) for place in range(count)]
    keys[0] = [*_mended(model, config, layers, table_rows), *keys[0][1:]]
    weights = [_planned(model, tensor) for tensor in kept]
    with together(paths, force=force):
        how = _write_table(model, paths[number], keys[number], alone is not None, table_rows, force, on_bytes)
        for place in reversed([place for place in range(count) if place != number]):  # the first, which names all, last
            tensors = [] if place else weights
            write_gguf(paths[place], header(keys[place], tensors), tensors, force=force, on_bytes=on_bytes)
    return Slice(tuple(paths), layers, how, sum(path.stat().st_size for path in paths))


def _check(model: GgufFile, config: ModelConfig, layers: int, table_rows: int | None) -> None:
    path, ple = model.paths[0], config.ple
    if not ple.layer < layers <= config.layers:
        raise InputError(
            f"--layers {layers}: {path} has {config.layers} layers and its PLE layer is number {ple.layer}, counted "
            f"from 0: expected {ple.layer + 1} to {config.layers}"
        )
    if table_rows is not None and not ple.heads <= table_rows <= sum(ple.hash.sizes):
        raise InputError(
            f"--table-rows {table_rows}: {ple.heads} heads have {sum(ple.hash.sizes)} rows, expected no more"
        )


def _layer_of(name: str) -> int:
    """The layer of a tensor; those of none count as the first."""
    number = name.removeprefix("blk.").partition(".")[0] if name.startswith("blk.") else "0"
    return int(number) if number.isdecimal() else 0


def _shard_of_table(model: GgufFile) -> tuple[int, int] | None:
    """Number and count of the table's shard where it can be linked: nothing else is in it, and it is not the first."""
    info = model.tensors[TABLE]
    number = model.paths.index(info.path)
    alone = all(tensor is info or tensor.path != info.path for tensor in model.tensors.values())
    return (number, len(model.paths)) if alone and number else None


def _mended(model: GgufFile, config: ModelConfig, layers: int, table_rows: int | None) -> list[Entry]:
    """The model's metadata as it is true for the slice, the architecture first."""
    prefix, metadata = f"{ARCHITECTURE}.", model.metadata
    changed: dict[str, Any] = {prefix + "block_count": layers, prefix + "nextn_predict_layers": 0}
    for key in ("attention.recurrent_layers", "attention.compress_ratios"):
        if prefix + key in metadata:
            changed[prefix + key] = metadata[prefix + key][:layers]
    if table_rows is not None:
        sizes = _fewer(config.ple.hash.sizes, table_rows)
        changed[prefix + "ple.head_vocab_sizes"] = sizes
        changed[prefix + "ple.head_offsets"] = np.cumsum([0, *sizes[:-1]]).tolist()
    entries = []
    for key in metadata.keys():  # noqa: SIM118  in file order
        if key.startswith("split."):
            continue
        kind, items = metadata.type_of(key)
        value = changed.get(key, metadata[key])
        entries.append(Entry(key, kind, value.tolist() if isinstance(value, np.ndarray) else value, items))
    return sorted(entries, key=lambda entry: entry.key != "general.architecture")


def _fewer(sizes: Sequence[int], rows: int) -> list[int]:
    total = sum(sizes)
    return [max(1, size * rows // total) for size in sizes]


def _planned(model: GgufFile, tensor: TensorInfo) -> PlannedTensor:
    return PlannedTensor(tensor.name, tensor.shape, tensor.type, lambda: _bytes_of(model.packed(tensor.name)))


def _bytes_of(packed: Bytes) -> Iterator[Bytes]:
    flat = packed.reshape(-1)
    for start in range(0, flat.size, _PIECE_BYTES):
        yield flat[start : start + _PIECE_BYTES]


def _write_table(
    model: GgufFile, path: Path, keys: list[Entry], link: bool, rows: int | None, force: bool, on_bytes: OnBytes
) -> str:
    """The table's shard; how it was made."""
    info = model.tensors[TABLE]
    if link and _linked(info.path, path):
        on_bytes(info.size_bytes)
        return LINKED
    table = _planned(model, info)
    if rows is not None:
        hashed, packed = config_from(model).ple.hash, model.packed(TABLE)
        parts = [packed[o : o + s] for o, s in zip(hashed.offsets, _fewer(hashed.sizes, rows), strict=True)]
        table = replace(
            table,
            shape=(sum(len(part) for part in parts), info.shape[1]),
            blocks=lambda: (piece for part in parts for piece in _bytes_of(part)),
        )
    elif _cloned(info, path, keys, table):
        on_bytes(info.size_bytes)
        return CLONED
    write_gguf(path, header(keys, [table]), [table], force=force, on_bytes=on_bytes)
    return COPIED


def _linked(source: Path, path: Path) -> bool:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        os.link(source.resolve(), part)
        part.replace(path)
    except OSError:  # another file system, or one without links
        with suppress(OSError):
            part.unlink()
        return False
    return True


def _cloned(info: TensorInfo, path: Path, keys: list[Entry], table: PlannedTensor) -> bool:
    """Whether the file system shared the blocks of the table; if not, nothing was written."""
    head = header(keys, [table])
    missing = (
        info.offset_bytes - len(header([*keys, Entry(_FILLER, GGUFValueType.STRING, "")], [table]))
    ) % _BLOCK_BYTES
    head = header([*keys, Entry(_FILLER, GGUFValueType.STRING, " " * missing)], [table])
    check_space(path, len(head), "name another place with --out")
    try:
        with info.path.open("rb") as source, writing(path, over_model=True) as file:
            _clone(source, file, info, head)
    except (_NoClones, InputError):
        return False
    return True


class _NoClones(Exception):
    """This file system shares no blocks."""


def _clone(source: IO[bytes], file: IO[bytes], info: TensorInfo, head: bytes) -> None:
    start, end = info.offset_bytes, info.end_bytes
    inner = range(-(-start // _BLOCK_BYTES) * _BLOCK_BYTES, end // _BLOCK_BYTES * _BLOCK_BYTES)
    if (len(head) - start) % _BLOCK_BYTES or not inner:
        raise _NoClones
    shift = len(head) - start
    file.write(head)
    file.flush()
    asked = struct.pack("=qQQQ", source.fileno(), inner.start, len(inner), inner.start + shift)
    try:
        fcntl.ioctl(file.fileno(), _FICLONERANGE, asked)
    except OSError:
        raise _NoClones from None
    for first, last in ((start, inner.start), (inner.stop, end)):
        os.pwrite(file.fileno(), os.pread(source.fileno(), last - first, first), first + shift)
    file.seek(0, os.SEEK_END)
