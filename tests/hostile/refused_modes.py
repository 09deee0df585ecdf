"""Opens and reads a model's table in every mode with one system call refused: a JSON object for each rule, in a line.

`python -m tests.hostile.refused_modes MODEL RULE...`. Each rule gets a process of its own, forked when everything is
loaded, so that the loader's own calls are not refused; what is right is read before.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fast.rows import MODES, ModeCannotRun, RowSettings, Table, locate_table, open_rows
from model_file.gguf_file import open_gguf
from tests.hostile.seccomp import refuse

IDS = np.random.default_rng(5).integers(0, 400, 300)
SETTINGS = RowSettings(inline_rows=8, workers=3, slice_reads=32, queue_depth=32, metering="full")


def try_mode(table: Table, mode: str, expected: bytes) -> dict[str, Any]:
    """How a mode ended: `ran` with rows `right` or not, as which mode and why; or what it raised."""
    try:
        with open_rows(table, mode, SETTINGS) as reader:
            found = [reader.gather(IDS).tobytes() for _ in range(2)]
            small = b"".join(reader.gather(IDS[at : at + 4]).tobytes() for at in range(0, IDS.size, 4))
            reader.trim()
            found += [small, reader.gather(IDS).tobytes()]
            return {
                "end": "ran",
                "right": set(found) == {expected},
                "effective": reader.effective_mode,
                "reason": reader.fallback_reason,
            }
    except ModeCannotRun as error:
        return {"end": "not run", "reason": str(error)}
    except Exception as error:
        return {"end": type(error).__name__, "reason": str(error)}


def main() -> None:
    """Every rule, every mode."""
    warnings.simplefilter("ignore")
    path, *rules = sys.argv[1:]
    with open_gguf(Path(path)) as model:
        table = locate_table(model)
    with Path(path).open("rb") as file:
        rows = []
        for row in IDS.tolist():
            file.seek(table.place(row)[1])
            rows.append(file.read(table.row_bytes))
    expected = b"".join(rows)
    for rule in rules:
        if os.fork() == 0:
            refuse(rule)
            print(json.dumps({mode: try_mode(table, mode, expected) for mode in MODES}), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
