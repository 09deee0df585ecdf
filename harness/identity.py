"""Is the model still the file that the run began with? Asked around everything that is judged or measured."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from model_file.gguf_file import open_gguf

SAMPLED_BLOCKS = 64
_BLOCK_BYTES, _HEADER_BYTES = 4096, 1 << 20


class Changed(Exception):
    """A model is not the file any more that the run began with."""


class Identity:
    """What all shards of some models are now: device, inode, size, time of change, and a digest of sampled bytes.

    Bytes are looked at because a time can be set back, and because what is written through a mapping changes it late:
    the first MiB, where the header begins, and 64 blocks from there to the end.
    """

    def __init__(self, models: Iterable[Path]) -> None:
        """Raises: InputError for a file that cannot be opened."""
        self.paths = list(dict.fromkeys(path for model in models for path in open_gguf(model).paths))
        self.found = [_identity(path) for path in self.paths]

    def check(self) -> None:
        """Raises: Changed, naming the first file that is another, or has other bytes."""
        for path, before in zip(self.paths, self.found, strict=True):
            now = _identity(path)
            if now != before:
                what = "is gone" if not now else "was replaced" if now[:2] != before[:2] else "was written to"
                raise Changed(
                    f"{path.name} {what} while it was read: what came before is of the file as it was, nothing was "
                    "done after; start again on a file that stays as it is"
                )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is done inside, or goes wrong there, counts only where the files stay the same. Raises: Changed."""
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()


def _identity(path: Path) -> list[int]:
    """Empty where there is no such file. Raises: OSError with its name where it cannot be read."""
    try:
        status = path.stat()
        return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, _digest(path, status.st_size)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OSError(error.errno, f"reading here and there in it: {error.strerror}", str(path)) from None


def _digest(path: Path, size_bytes: int) -> int:
    """Of the sampled bytes, read past the page cache, or dropped from it again, so that nothing is warm by it."""
    try:
        return _sampled(path, size_bytes, getattr(os, "O_DIRECT", 0))
    except OSError:  # the file system has no reads past the page cache
        return _sampled(path, size_bytes, 0)


def _sampled(path: Path, size_bytes: int, flags: int) -> int:
    last = (size_bytes - 1) // _BLOCK_BYTES * _BLOCK_BYTES
    step = max(1, (last - _HEADER_BYTES) // _BLOCK_BYTES // SAMPLED_BLOCKS) * _BLOCK_BYTES
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        _advise(descriptor, 0, 0, "POSIX_FADV_RANDOM")
        with mmap.mmap(-1, _HEADER_BYTES) as memory, memoryview(memory) as view:  # aligned, as O_DIRECT needs it
            for start in [0, *range(_HEADER_BYTES, last, step), last]:
                with view[: _BLOCK_BYTES if start else _HEADER_BYTES] as block:
                    count = os.preadv(descriptor, [block], start)
                    digest.update(block[:count])
                if not flags:
                    _advise(descriptor, start, count, "POSIX_FADV_DONTNEED")
    finally:
        os.close(descriptor)
    return int.from_bytes(digest.digest()[:8], "big")


def _advise(descriptor: int, start: int, count: int, advice: str) -> None:
    with suppress(OSError, AttributeError):  # not on every system, not in every container
        os.posix_fadvise(descriptor, start, count, getattr(os, advice))
