"""States at a depth, made once per model and kept: feeding 32,768 tokens in every process would take too long."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.atomic import writing
from harness.measure.cells import Arm
from harness.measure.plan import LEAD_IN
from model_file.gguf_file import GgufFile

if TYPE_CHECKING:
    from fast.engine.engine import FastEngine
    from fast.engine.sequence import Saved

_FORMAT = 1


def make_engine(
    file: GgufFile, reader: Any, context: int, arm: Arm, cache_dir: Path, *, decode: bool = False
) -> FastEngine:
    """The fast engine with the arm's settings.

    Few buckets, so that few programs are loaded: one token, the tokens before a decode, and whole chunks. An engine
    that only decodes has no larger chunks than the tokens before it.
    """
    from fast.engine.engine import FastEngine
    from fast.engine.settings import EngineSettings

    programs = cache_dir / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    wanted = ({"chunk": LEAD_IN} if decode else {}) | arm.engine_settings()
    settings = EngineSettings(context=context, buckets=(LEAD_IN,), cache_dir=programs, **wanted)
    return FastEngine(file, reader, settings)


def depth_state(
    engine: FastEngine, file: GgufFile, context: Sequence[int], cache_dir: Path, maker: Callable[[], FastEngine]
) -> Saved | None:
    """The sequence after the context tokens: from the cache, else made and put there. None at depth 0.

    maker: gives an engine that takes whole chunks, for the making.
    """
    if not context:
        return None
    path = cache_dir / "depths" / f"{_key(file, context)}.npz"
    if (saved := _read(path, engine, context)) is not None:
        return saved
    with maker() as other:
        sequence = other.new_sequence()
        sequence.feed(list(context), last_only=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, sequence.save())
    return _read(path, engine, context)


def _key(file: GgufFile, context: Sequence[int]) -> str:
    """Model, tokens and the code that computes: what a state depends on. The same state whatever the mode."""
    digest = hashlib.sha256()
    for path in file.paths:
        stat = path.stat()
        digest.update(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    digest.update(np.asarray(context, np.int64).tobytes())
    root = Path(__file__).parents[2] / "fast"
    for source in sorted(root.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    return f"{len(context)}-{_FORMAT}-{digest.hexdigest()[:24]}"


def _write(path: Path, saved: Saved) -> None:
    import jax

    leaves = jax.tree_util.tree_leaves((saved.recurrent, saved.caches))
    arrays: dict[str, Any] = {f"leaf{number}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
    with writing(path) as file:
        np.savez(file, tokens=np.asarray(saved.tokens, np.int64), **arrays)


def _read(path: Path, engine: FastEngine, context: Sequence[int]) -> Saved | None:
    """The kept state; None when there is none, or what is there is damaged or of other tokens."""
    import jax

    try:
        with np.load(path, allow_pickle=False) as content:
            values = dict(content)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        return None
    if values["tokens"].tolist() != list(context):
        return None
    # A short saved sequence of this engine tells how its arrays hang together; the kept ones take their place.
    scratch = engine.new_sequence()
    scratch.feed(list(context[:LEAD_IN]), last_only=True)
    short = scratch.save()
    tree: Any = jax.tree_util.tree_structure((short.recurrent, short.caches))
    if f"leaf{tree.num_leaves - 1}" not in values or f"leaf{tree.num_leaves}" in values:
        return None
    leaves = [values[f"leaf{number}"] for number in range(tree.num_leaves)]
    recurrent, caches = jax.tree_util.tree_unflatten(tree, leaves)
    # Every workload feeds something first: what came out last is not needed.
    return replace(short, tokens=tuple(context), recurrent=recurrent, caches=caches, last=None)
