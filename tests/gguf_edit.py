"""Makes changed copies of GGUF files for tests, with the `gguf` package's writer: not with code under test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Keys = dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]]
Tensors = dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]
_OWN = ("GGUF.", "general.architecture")


def read(source: Path) -> tuple[Keys, Tensors]:
    """All metadata and tensors of a file, tensors as stored (bytes for quantized types)."""
    reader = gguf.GGUFReader(source)
    keys: Keys = {}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            keys[name] = (field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    return keys, {tensor.name: (np.asarray(tensor.data), tensor.tensor_type) for tensor in reader.tensors}


def write(path: Path, keys: Keys, tensors: Tensors) -> Path:
    """A GGUF file of exactly these."""
    writer = gguf.GGUFWriter(path, keys["general.architecture"][0])
    for name, (value, kind, element) in keys.items():
        if name not in _OWN:
            writer.add_key_value(name, value, kind, element)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def edited(source: Path, path: Path, change: Callable[[Keys, Tensors], None]) -> Path:
    """A copy of `source` at `path` after `change` has had its way with metadata and tensors."""
    keys, tensors = read(source)
    change(keys, tensors)
    return write(path, keys, tensors)


def split(source: Path, folder: Path, stem: str, shards: int) -> list[Path]:
    """A split copy: shard 1 holds all metadata and no tensor, the others the tensors in equal parts."""
    keys, tensors = read(source)
    names, paths = list(tensors), []
    bounds = np.linspace(0, len(names), shards).astype(int)
    for number in range(shards):
        u16, i32 = gguf.GGUFValueType.UINT16, gguf.GGUFValueType.INT32
        own: Keys = dict(keys) if number == 0 else {"general.architecture": keys["general.architecture"]}
        own |= {"split.no": (number, u16, None), "split.count": (shards, u16, None)}
        own["split.tensors.count"] = (len(names), i32, None)
        part = [] if number == 0 else names[bounds[number - 1] : bounds[number]]
        path = folder / f"{stem}-{number + 1:05d}-of-{shards:05d}.gguf"
        paths.append(write(path, own, {name: tensors[name] for name in part}))
    return paths
