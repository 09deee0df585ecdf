"""A process of its own that prefills to a depth, decodes there, and says what its memory rose to.

Arguments: FILE DEPTH. Run it twice: the first time it compiles, and what the compiler takes is not what is stated.

What counts is anonymous memory above that of the interpreter with its libraries and one trivial program: the file is
mapped, and pages of a mapping are the kernel's to take back.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from time import sleep

import jax

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import locate_table, open_rows
from fast.rows.residency import anonymous_bytes
from harness.cases.prompts import varied_ids
from harness.synth import cache_folder
from model_file.gguf_file import open_gguf


def main() -> None:
    """Print one JSON line: peak_bytes above the start, stated_bytes by the formula, and its parts."""
    path, depth = Path(sys.argv[1]), int(sys.argv[2])
    jax.jit(lambda x: x + 1)(jax.numpy.zeros(4)).block_until_ready()
    settings = EngineSettings(context=32832, chunk=512, buckets=(512,), cache_dir=cache_folder() / "programs")
    with open_gguf(path) as file, open_rows(locate_table(file), "mmap") as reader:
        start, peak, done = anonymous_bytes(), [0], threading.Event()

        def watch() -> None:
            while not done.is_set():
                peak[0] = max(peak[0], anonymous_bytes())
                sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with FastEngine(file, reader, settings) as engine:
            sequence = engine.new_sequence()
            sequence.feed(varied_ids(depth, engine.config.vocab, seed=8), last_only=True)
            sequence.greedy(32)
            parts = engine.memory()
        done.set()
        watcher.join()
    stated = parts["total"]
    print(json.dumps({"peak_bytes": peak[0] - start, "stated_bytes": stated, "parts": parts, "start_bytes": start}))


if __name__ == "__main__":
    main()
