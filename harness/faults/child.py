"""A forked process that imports the project anew, perhaps from a tree with one file changed, and does one thing there.

The parent has imported what is outside the project and has not used JAX yet, so that forking is safe: a child starts in
0.1 s, and takes crashes, endless loops, threads and memory with it.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = ("fast", "harness", "model_file", "reference")
Send = Callable[[Any], None]
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def make_tree(folder: Path, file: str = "", text: str = "") -> Path:
    """Links to everything of this checkout; the folders of `fast/` are real, and `file` has another text."""
    for path in ROOT.iterdir():
        if path.name != "fast" and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    for path in sorted((ROOT / "fast").rglob("*.py")):
        link = folder / path.relative_to(ROOT)
        if not link.parent.exists():
            link.parent.mkdir(parents=True)
            (link.parent / "__pycache__").symlink_to(path.parent / "__pycache__")
        link.symlink_to(path)
    if file:
        (folder / file).unlink()
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def in_child(
    work: tuple[str, str],
    arguments: tuple[Any, ...],
    limit_s: float,
    scratch: Path,
    tree: Path = ROOT,
    cover: bool = False,
) -> list[Any]:
    """What the function `work` (module, name) sends, called as `work(send, *arguments)`.

    The last message is `("error" | "crash" | "timeout", text)` where it raised, died, or sent nothing for `limit_s`;
    with `cover`, where it did not, the lines of each file of `fast/` that ran, from the first import on.
    """
    here, there = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that JAX is imported: it has started no thread yet
        process = multiprocessing.get_context("fork").Process(
            target=_work, args=(there, work, arguments, str(scratch), str(tree), cover)
        )
        process.start()
    there.close()
    messages: list[Any] = []
    try:
        while True:
            if not here.poll(limit_s):
                messages.append(("timeout", f"no answer after {limit_s:.0f} s"))
                break
            messages.append(here.recv())
    except EOFError:
        process.join(10)
        if process.exitcode:
            messages.append(("crash", f"the process ended with {process.exitcode}"))
    finally:
        if process.is_alive() and process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        here.close()
    return messages


def _work(
    pipe: Connection, work: tuple[str, str], arguments: tuple[Any, ...], scratch: str, tree: str, cover: bool
) -> None:
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
    os.chdir(tree)
    os.environ["TMPDIR"] = scratch  # what a stopped run leaves behind goes with it
    sys.path.insert(0, tree)
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.split(".")[0] in PROJECT]:
        del sys.modules[name]
    try:
        watch = _watching() if cover else None
        getattr(importlib.import_module(work[0]), work[1])(pipe.send, *arguments)
        if watch is not None:
            watch.stop()
            data = watch.get_data()
            pipe.send({str(Path(file).relative_to(ROOT)): data.lines(file) for file in data.measured_files()})
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send(("error", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"))
    os._exit(0)


def _watching() -> Any:
    import coverage

    watch = coverage.Coverage(data_file=None, include=[f"{ROOT}/fast/*"], messages=False)
    watch.start()
    return watch
