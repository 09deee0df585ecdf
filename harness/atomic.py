"""Files written whole or not at all: a temporary file beside the target, flushed to disk, then renamed over it.

A killed process leaves at most a hidden `.NAME.*.part` file, never a half-written result. What is no regular file (a
pipe, a terminal, a device) cannot be replaced whole and must not be: it is written into. A link stays a link.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from model_file.errors import InputError


@contextmanager
def writing(path: str | Path, *, over_model: bool = False) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends without an error, and vanishes when it does not.

    over_model: only what makes models may replace a GGUF file.

    Raises: InputError when the folder is missing, not writable or full, or `path` is a GGUF file.
    """
    path = Path(path)
    try:
        if (stream := _stream(path)) is not None:
            with stream as file:
                yield file
            return
        target = Path(os.path.realpath(path))  # through links: what they point to is replaced, they stay
        if not over_model and is_model(target):
            raise InputError(f"{path}: is a GGUF file, which results never replace: name another file")
        with _replacing(target) as file:
            yield file
    except BrokenPipeError:
        raise  # the reader has had enough, nothing is wrong with the path
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}: "
            "check that the folder exists, is writable and has space; no file was changed"
        ) from error


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        temporary = None
        _sync_folder(target.parent)
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def _stream(path: Path) -> IO[bytes] | None:
    """What `path` names, opened, where it is no regular file or is where this process prints to; None otherwise."""
    try:
        found = path.stat()
    except OSError:
        return None
    for printed in filter(None, (sys.__stdout__, sys.__stderr__)):
        # /dev/stdout and the like: opened a second time, a file would lose what is printed to it.
        with suppress(OSError, ValueError):  # closed
            if os.path.samestat(found, os.fstat(printed.fileno())):
                printed.flush()
                return os.fdopen(os.dup(printed.fileno()), "wb")
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return None
    return path.open("wb")


def is_model(path: Path) -> bool:
    """Whether a regular file is there that begins as a GGUF file does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def write_bytes(path: str | Path, content: bytes, *, over_model: bool = False) -> None:
    """Write `content` whole or not at all. Raises InputError as `writing` does."""
    with writing(path, over_model=over_model) as file:
        file.write(content)


def write_text(path: str | Path, content: str) -> None:
    """Write UTF-8 text whole or not at all; bytes of a path that are no UTF-8 become `\\udcNN`, in JSON an escape.

    Raises: InputError as `writing` does.
    """
    write_bytes(path, content.encode("utf-8", errors="backslashreplace"))


def write_json(path: str | Path, content: Any) -> None:
    """Write readable JSON whole or not at all; NaN is refused, JSON has none. Raises InputError as `writing` does."""
    write_text(path, as_json(content))


def as_json(content: Any) -> str:
    """Readable JSON. Raises: ValueError for NaN and infinity."""
    import json

    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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
