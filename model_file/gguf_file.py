"""An open model: one GGUF file or all shards of a split, read lazily, tensors as views of a mapping.

The `gguf` package's own reader makes one object per metadata string, 9 s for a vocabulary of 248,320 tokens. This one
walks the same header in well under a second, bounds every length by the bytes that are there before it uses it, opens
a split model from any of its shards, and touches no tensor data. Enums and block sizes are the package's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from model_file.errors import InputError
from model_file.metadata import Keys
from model_file.shard import Shard, TensorInfo

_SHARD_NAME = re.compile(r"^(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)

LIST_SUFFIX, _LIST_BYTES = ".shards", 1 << 20


class GgufFile:
    """An open model: one file or all shards of a split. Read-only; close it, or use it as a context manager."""

    def __init__(self, shards: list[Shard]) -> None:
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
        if problems:
            raise InputError("\n".join(problems))

    @property
    def architecture(self) -> str:
        """`general.architecture`, or an empty string where the file names none."""
        named = self.metadata.get("general.architecture")
        return named if isinstance(named, str) else ""

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


def open_gguf(path: str | Path | Sequence[str | Path]) -> GgufFile:
    """Open a model from its file, from any shard of a split, or from all shards in order. Only headers are read.

    The shards of a list may have any names; one path must have the name of a shard, as splits are published. A text
    file `NAME.shards` is a list too: a path a line, from the list's own folder.
    Raises: InputError naming every problem of the header, missing shards included.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
    if len(paths) == 1 and paths[0].suffix == LIST_SUFFIX and paths[0].is_file():
        paths = _listed(paths[0])
    if not paths:
        raise InputError("no file named, expected a GGUF file or all shards of one")
    first = Shard(paths[0])
    count = _split_keys(first)[1]
    if len(paths) == 1 and count > 1:
        paths = _named_like(first, count)
    shards = [first if shard_path == first.path else Shard(shard_path) for shard_path in paths]
    if len(shards) > 1:
        _check_numbers(shards)
    return GgufFile(shards)


def _listed(path: Path) -> list[Path]:
    try:
        with path.open("rb") as file:
            content = file.read(_LIST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}: check its permissions") from None
    names = [line for line in content.split(b"\n") if line.strip()]
    if not names or b"\0" in content:
        raise InputError(f"{path}: found no list of names, expected all shards of a model in order, one a line")
    return [path.parent / os.fsdecode(name) for name in names]


def _split_keys(shard: Shard) -> tuple[int, int, int]:
    """split.no, split.count and split.tensors.count of a file; 0, 1 and 0 where it has none."""
    keys = Keys(shard.metadata, "split.")
    found = keys.integer("no", 0, default=0), keys.integer("count", 0, 1), keys.integer("tensors.count", 0, 0)
    keys.raise_problems()
    return found


def _named_like(shard: Shard, count: int) -> list[Path]:
    """All shards of a split, by the name of one. Raises: InputError when it has no such name, or others are missing."""
    path, whole = shard.path, _split_keys(shard)[2]
    match = _SHARD_NAME.match(path.name)
    if match is None and whole and whole == len(shard.tensors):
        raise InputError(
            f"{path}: split.count is {count}, expected 0 or no such key: the file holds all {whole} tensors, "
            "and the key was left over when its shards were put together, so that other engines do not open it either; "
            f"correct it with `gguf-set-metadata {path} split.count 0`"
        )
    if match is None or int(match["count"]) != count:
        held = f"; this file holds {len(shard.tensors)} of {whole} tensors" if whole else ""
        raise InputError(
            f"{path}: split.count is {count}, expected a name ending in -0000N-of-{count:05d}.gguf{held}: "
            "rename the shards to the names they were published under, or name a text file "
            f"NAME{LIST_SUFFIX} that names them in order, one a line"
        )
    names = [f"{match['prefix']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    missing = [name for name in names if not path.with_name(name).exists()]
    if missing:
        shown = ", ".join(missing[:9]) + f" and {len(missing) - 9} more" * (len(missing) > 9)
        raise InputError(f"{path}: split model of {count} shards, missing in {path.parent}: {shown}: fetch them too")
    return [path.with_name(name) for name in names]


def _check_numbers(shards: list[Shard]) -> None:
    problems = []
    for number, shard in enumerate(shards):
        found, count, _ = _split_keys(shard)
        if (found, count) != (number, len(shards)):
            problems.append(
                f"{shard.path}: split.no {found} of split.count {count}, expected {number} of {len(shards)}: "
                "shards of different models, renamed, or not in order"
            )
    found, expected = sum(len(shard.tensors) for shard in shards), _split_keys(shards[0])[2]
    if expected not in (0, found):
        problems.append(
            f"{shards[0].path}: split.tensors.count is {expected}, the {len(shards)} shards hold {found} tensors"
        )
    if problems:
        raise InputError("\n".join(problems))
