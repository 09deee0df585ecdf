"""Files written whole or not at all: a temporary file beside the target, flushed to disk, then renamed over it.

A killed process leaves at most a hidden `.NAME.*.part` file, never a half-written result.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from reference.errors import InputError


@contextmanager
def writing(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends without an error, and vanishes when it does not.

    Raises: InputError when the folder is missing, not writable or full.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}: "
            "check that the folder exists, is writable and has space; nothing was changed"
        ) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write `content` whole or not at all. Raises InputError as `writing` does."""
    with writing(path) as file:
        file.write(content)


def write_text(path: str | Path, content: str) -> None:
    """Write UTF-8 text whole or not at all. Raises InputError as `writing` does."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: str | Path, content: Any) -> None:
    """Write readable JSON whole or not at all; NaN is refused, JSON has none. Raises InputError as `writing` does."""
    import json

    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the file system lets a folder be flushed."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
