"""Files written whole or not at all: a temporary file beside the target, flushed to disk, then renamed over it.

A killed process leaves nothing, or a hidden `.NAME.*.part` file, which the next one removes: never half a result. What
is no regular file (a pipe, a terminal, a device) cannot be replaced whole and must not be: it is written into. A link
stays a link.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from model_file.errors import InputError

_SETTLED_S = 5.0  # a file that was made a moment ago may not be locked yet


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
    _sweep(target)
    temporary: Path | None = None
    try:
        descriptor, temporary = _part(target)
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed: `_sweep` leaves it alone
            yield file
            file.flush()
            os.fsync(file.fileno())
            if temporary is None:
                temporary = target.with_name(f".{target.name}.{os.getpid()}-{time.monotonic_ns()}.part")
                # A folder's descriptor, which counts for no absolute path, makes Python call linkat(2) and follow.
                os.link(f"/proc/self/fd/{file.fileno()}", temporary, src_dir_fd=file.fileno())
            temporary.replace(target)
            temporary = None
        _sync_folder(target.parent)
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def _part(target: Path) -> tuple[int, Path | None]:
    """A new file beside the target: one without a name, which a killed process cannot leave behind, where there is."""
    if hasattr(os, "O_TMPFILE") and os.access("/proc/self/fd", os.X_OK):
        with suppress(OSError):  # a file system that has none, as NFS; the other way says what else is wrong
            return os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666), None
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.fchmod(descriptor, 0o666 & ~_umask())
    return descriptor, Path(name)


def _sweep(target: Path) -> None:
    """Remove what killed processes left of this file: parts that nobody holds locked any more."""
    with suppress(OSError):
        for name in os.listdir(target.parent):  # noqa: PTH208  names with any characters
            if not (name.startswith(f".{target.name}.") and name.endswith(".part")):
                continue
            part = target.with_name(name)
            with suppress(OSError), part.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(file.fileno()).st_mtime > _SETTLED_S:
                    part.unlink()


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
