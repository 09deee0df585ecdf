"""Make a model file, and keep made models in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.atomic import write_json
from harness.errors import CannotRun
from harness.synth.digests import RECORDED
from harness.synth.gguf_writer import check_space, pieces, together, write_gguf
from harness.synth.keys import RECIPE_VERSION, shard_paths
from harness.synth.recipe import Recipe, make_recipe
from model_file.errors import InputError

_READ_BYTES, _TRIAL_BYTES = 4 << 20, 128 << 20
CACHE_ADVICE = "name a folder with more room or other rights with --cache-dir DIR or the variable PLEGATE_CACHE_DIR"


def make_model(
    recipe: Recipe,
    path: Path,
    *,
    force: bool = False,
    instead: str = "name another place with --out FILE",
    on_bytes: Callable[[int], None] = lambda _: None,
) -> str:
    """Write the recipe's model to `path`, whole or not at all, and give its SHA-256.

    Raises: InputError as `write_gguf`.
    """
    [(head, tensors)] = recipe.shards
    return write_gguf(path, head, tensors, force=force, instead=instead, on_bytes=on_bytes)


def make_shards(
    recipe: Recipe,
    out: Path,
    *,
    force: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
    on_estimate: Callable[[float], None] = lambda _: None,
) -> dict[Path, str]:
    """Write all files of a recipe or none, after `out`, and give the SHA-256 of each.

    on_estimate: called before anything is written, with the seconds that a large model will take.
    Raises: InputError as `write_gguf`, for the space of all files together too.
    """
    count, digests = len(recipe.shards), {}
    paths = [out] if count == 1 else shard_paths(out, count)
    with together(paths, force=force):
        check_space(out, recipe.size_bytes, "name another place with --out")
        if recipe.size_bytes > 4 * _TRIAL_BYTES:
            on_estimate(_expected_s(recipe, out.parent))
        for path, (head, tensors) in reversed([*zip(paths, recipe.shards, strict=True)]):  # the first names all: last
            digests[path] = write_gguf(path, head, tensors, force=force, on_bytes=on_bytes)
    return {path: digests[path] for path in paths}


def recorded_digests(recipe: Recipe) -> list[str | None]:
    """What is recorded of each of a recipe's files."""
    if len(recipe.shards) == 1:
        return [RECORDED.get(recipe.label)]
    return [RECORDED.get(path.name) for path in shard_paths(Path(recipe.label), len(recipe.shards))]


def _expected_s(recipe: Recipe, folder: Path) -> float:
    """Seconds that making a model will take here, by a short trial on the same disk, of which nothing stays."""
    head, tensors = recipe.shards[-1]
    started_s, done, digest = time.perf_counter(), 0, hashlib.sha256()
    with tempfile.TemporaryFile(dir=folder) as file:
        for piece in pieces(head, tensors):
            digest.update(piece.data)
            file.write(piece.data)
            if (done := done + piece.size) >= _TRIAL_BYTES:
                break
        file.flush()
        os.fsync(file.fileno())
    return (time.perf_counter() - started_s) * recipe.size_bytes / done


def cache_folder(chosen: Path | None = None) -> Path:
    """The chosen folder, else PLEGATE_CACHE_DIR, else plegate/ in XDG_CACHE_HOME or ~/.cache."""
    if chosen is not None:
        return chosen
    if named := os.environ.get("PLEGATE_CACHE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative path there is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "plegate"


def ensure_model(preset: str, cache_dir: Path | None = None, report: Callable[[str], None] = lambda _: None) -> Path:
    """The preset's default model from the cache folder, made first where it is not there or not what it should be.

    Two processes at once: the second waits for the first and takes its file. A file is trusted when its size and time
    of change are those noted beside it when it was made and the digest noted is the recorded one; otherwise it is
    hashed, and made anew if it differs. `report` receives a line for each stage. Raises: InputError when the folder
    cannot be made, written or has no room, naming it, the bytes and the option to use instead; CannotRun when the
    bytes made here are not the recorded ones.
    """
    recipe = make_recipe(preset)
    folder = cache_folder(cache_dir)
    path = folder / f"{recipe.label}-v{RECIPE_VERSION}.gguf"
    if _is_trusted(path, recipe):
        return path
    with _sole_maker(folder, path, report):
        if _is_trusted(path, recipe):  # another process made it while this one waited
            return path
        for leftover in folder.glob(f".{path.name}.*.part"):  # of a process that was killed: we hold the lock
            leftover.unlink(missing_ok=True)
        if not _note_if_right(path, recipe, report):
            _make_cached(path, recipe, report)
    return path


def _make_cached(path: Path, recipe: Recipe, report: Callable[[str], None]) -> None:
    total, done = recipe.size_bytes, 0

    def on_bytes(count_bytes: int) -> None:
        nonlocal done
        done += count_bytes
        report(f"making the model {recipe.preset.name} (once): {done / 2**20:,.0f} of {total / 2**20:,.0f} MiB")

    check_space(path, total, CACHE_ADVICE)
    digest = make_model(recipe, path, force=True, instead=CACHE_ADVICE, on_bytes=on_bytes)
    if digest != (expected := RECORDED.get(recipe.label, digest)):
        path.unlink()
        detail = f"the bytes made here have SHA-256 {digest}, recorded is {expected}"
        raise CannotRun(f"{path}: {detail}; removed again; please report this with your CPU and NumPy version")
    _write_note(path, digest)


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _state(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size_bytes": status.st_size, "changed_ns": status.st_mtime_ns}


def _write_note(path: Path, digest: str) -> None:
    write_json(_note_path(path), {"sha256": digest, **_state(path)})


def _is_trusted(path: Path, recipe: Recipe) -> bool:
    try:
        note = json.loads(_note_path(path).read_text(encoding="utf-8"))
        digest = note["sha256"]
        return bool(note == {"sha256": digest, **_state(path)} and digest == RECORDED.get(recipe.label, digest))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _note_if_right(path: Path, recipe: Recipe, report: Callable[[str], None]) -> bool:
    """Whether the file has the recorded bytes after all (touched or copied); it is noted then, and trusted again."""
    expected = RECORDED.get(recipe.label)
    if expected is None or not path.is_file() or path.stat().st_size != recipe.size_bytes:
        return False
    report(f"checking {path.name}")
    if file_sha256(path) != expected:
        return False
    _write_note(path, expected)
    return True


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _sole_maker(folder: Path, path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file of `path`; the kernel drops it when a process dies.

    Raises: InputError when the folder cannot be written.
    """
    lock = folder / f".{path.name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{folder}: made models cannot be kept here: {error.strerror}; {CACHE_ADVICE}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another process that makes {path.name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
