"""The files that a command writes: looked at before it works, rendered all before the first is written, each whole."""

from __future__ import annotations

import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.atomic import as_json, is_model, write_bytes
from model_file.errors import InputError

_SHARD_NAME = re.compile(r"(?P<prefix>.*-)\d{5}(?P<count>-of-\d{5}\.gguf)")


Write = Callable[[Mapping[str, Callable[[], Any]]], None]


def outputs(files: Mapping[str, Path | None], inputs: Iterable[Path | None] = (), made: Path | None = None) -> Write:
    """Check what is to be written, as `check_outputs` does, and return what writes it when the work is done.

    That takes a function for each option: its text, its bytes, or plain values for JSON. Those of options that were
    left out are not called; nothing is written before all of them have given their content.

    Raises: InputError, now and while writing.
    """
    check_outputs(files, inputs, made)

    def write(contents: Mapping[str, Callable[[], Any]]) -> None:
        rendered = [(path, make()) for option, make in contents.items() if (path := files[option]) is not None]
        encoded = [(path, found if isinstance(found, bytes) else as_text(found)) for path, found in rendered]
        for path, content in encoded:
            write_bytes(path, content)

    def as_text(found: Any) -> bytes:
        return (found if isinstance(found, str) else as_json(found)).encode("utf-8", errors="backslashreplace")

    return write


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = (), made: Path | None = None
) -> None:
    """Refuse outputs that cannot be written, and those that would replace an input, a model or each other.

    outputs: by option. inputs: what the command reads or keeps; one shard stands for all, a folder for what is in it.
    made: a folder that the command itself makes.

    Raises: InputError.
    """
    taken = {
        _identity(path): f"{path}, which this command reads or makes"
        for given in inputs
        for path in _with_shards(given)
    }
    for option, path in outputs.items():
        if path is None:
            continue
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                continue  # a pipe or a device: written into, by several options too
            target = Path(os.path.realpath(path))
            if path.is_dir():
                raise InputError(f"{option} {path}: is a folder, expected the name of a file to write")
            for place in (target, *target.parents):
                if (found := taken.get(_identity(place))) is not None:
                    raise InputError(f"{option} {path}: would replace {found}: name another file")
            if is_model(target):
                raise InputError(f"{option} {path}: is a GGUF file, which results never replace: name another file")
            folder = target.parent
            if made is not None and folder == Path(os.path.realpath(made)):
                folder = next(place for place in target.parents if place.exists())
            with tempfile.TemporaryFile(dir=folder):
                taken[_identity(target)] = f"what {option} writes"
        except OSError as error:
            raise InputError(
                f"{option} {path}: cannot be written: {error.strerror or error}: "
                "check that the folder exists and is writable; nothing was done yet"
            ) from error


def _identity(path: Path) -> tuple[int, int] | str:
    """What is equal for two names of one file, or of one that is not there yet."""
    try:
        status = path.stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _with_shards(path: Path | None) -> Iterator[Path]:
    if path is None:
        return
    yield path
    if (match := _SHARD_NAME.fullmatch(path.name)) is not None:
        yield from path.parent.glob(f"{glob.escape(match['prefix'])}?????{match['count']}")
