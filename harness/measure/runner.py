"""Runs the cells of a plan one after the other, each in a process of its own, and keeps what is finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.atomic import write_json
from harness.errors import CannotRun
from harness.measure.cell import PARENT, SCHEMA
from harness.measure.cells import Cell, arm_as_dict, cell_as_dict
from harness.measure.commits import tree_of
from harness.measure.memory_limit import limited
from harness.measure.predict import Estimate, TimeLeft, calibration_cells, preparation_cells, worth_calibrating
from harness.measure.store import Results, RunPlan, Store

CELL_TIMEOUT_S = 1800.0
Tell = Callable[[str, int, int, float | None], None]
"""Receives what is going on, cells done, cells in all, and the seconds left where they are known."""


class Runner:
    """Measures what is missing from a folder of results."""

    def __init__(self, store: Store, plan: RunPlan, model: Path, cache_dir: Path, tell: Tell) -> None:
        self._store, self._plan, self._tell = store, plan, tell
        self._model, self._cache_dir = model.resolve(), cache_dir.resolve()
        self._tokens = plan.tokens
        self._session = 0

    def run(self) -> Results:
        """Prepare, calibrate, predict, measure. Ctrl-C leaves every finished cell; so does anything else."""
        self._store.sweep()
        results = self._store.read()
        cells = self._plan.cells()
        missing = [cell for cell in cells if not results.cells.get(cell.id, {"valid": False})["valid"]]
        if not missing:
            return results
        timing = results.timing or {"sessions": []}
        known = [
            (cell, results.cells[cell.id]["wall_s"]) for cell in cells if "wall_s" in results.cells.get(cell.id, {})
        ]
        estimate = self._estimate(missing, known)
        session: dict[str, Any] = {"cells": 0, "of": len(missing), "predicted_s": estimate.total(missing)}
        session |= {"predicted_for_cells_s": 0.0, "took_s": 0.0}
        self._session = len(timing["sessions"])
        timing["sessions"].append(session)
        self._store.write_timing(timing)
        self._measure(missing, len(cells), estimate, timing)
        return self._store.read()

    def _estimate(self, missing: Sequence[Cell], known: Sequence[tuple[Cell, float]]) -> Estimate:
        """The time model: from cells that were measured for it, or, in a run taken up again, from the finished ones."""
        matrix = self._plan.matrix
        if len(known) >= len(matrix.all_arms) * len(matrix.states):
            return Estimate(matrix, known)
        folder = self._store.folder / "calibration"
        folder.mkdir(exist_ok=True)
        preparing = preparation_cells(matrix)
        for number, cell in enumerate(preparing):
            text = f"preparing {number + 1} of {len(preparing)}: the state at depth {cell.depth} and the programs"
            self._tell(text, 0, len(missing), None)
            self._one(cell, folder / f"prepared-{cell.id}.json")
        calibrating = calibration_cells(matrix) if worth_calibrating(matrix, missing) else missing[:1]
        measured = []
        for number, cell in enumerate(calibrating):
            self._tell(f"calibrating {number + 1} of {len(calibrating)}: {cell.group.title}", 0, len(missing), None)
            measured.append((cell, self._one(cell, folder / f"{cell.id}.json")["wall_s"]))
        return Estimate(matrix, measured)

    def _measure(self, missing: Sequence[Cell], total: int, estimate: Estimate, timing: dict[str, Any]) -> None:
        session = timing["sessions"][-1]
        left = TimeLeft(estimate)
        started = time.monotonic()
        for number, cell in enumerate(missing):
            done = total - len(missing) + number
            self._tell(
                f"{cell.group.title}: {cell.arm}, repeat {cell.repeat + 1}", done, total, left.left(missing[number:])
            )
            result = self._one(cell, self._store.path(cell))
            left.finished(cell, result["wall_s"])
            session["cells"], session["took_s"] = number + 1, time.monotonic() - started
            session["predicted_for_cells_s"] += estimate.seconds(cell)
            self._store.write_timing(timing)

    def _one(self, cell: Cell, path: Path) -> dict[str, Any]:
        """Measure one cell; what goes wrong is written down as an invalid cell."""
        arm = self._plan.arm(cell.arm)
        started = time.monotonic()
        try:
            root = tree_of(arm, self._cache_dir)
            with limited(self._plan.memory_limit_bytes) as limit:
                spec = {
                    "schema": SCHEMA,
                    "model": str(self._model),
                    "cell": cell_as_dict(cell),
                    "arm": arm_as_dict(arm),
                    "context": self._plan.matrix.context,
                    "cache_dir": str(self._cache_dir),
                    "drop_caches": self._plan.drop_caches,
                    "tokens": self._tokens,
                    "session": self._session,
                    "limit": limit.as_dict() if limit else None,
                }
                failure = run_child(spec, path, root)
        except CannotRun as error:
            failure = str(error)
        if failure is None:
            result = _add_wall(path, time.monotonic() - started)
            if result is not None:
                return result
            failure = "no-result: its process ended well but wrote no result that can be read"
        return self._store.write_failure(cell, arm, failure, path, time.monotonic() - started)


def run_child(spec: dict[str, Any], path: Path, root: Path) -> str | None:
    """Run one cell in a process; None when it wrote its result, else what went wrong."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *_kept_paths()]), PARENT: str(os.getpid())}
    command = [sys.executable, "-m", "harness.measure.cell", str(path.resolve())]
    path.unlink(missing_ok=True)
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            _, errors = child.communicate(json.dumps(spec), timeout=CELL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return f"timeout: it took more than {CELL_TIMEOUT_S:.0f} s"
        except BaseException:
            child.kill()
            raise
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        limit = spec["limit"]
        hint = f": it needed more than the limit of {limit['size_bytes']} bytes" if limit and name == "SIGKILL" else ""
        return f"killed: its process was ended by {name}{hint}"
    last = [line for line in errors.splitlines() if line.strip()][-3:]
    return f"failed: its process ended with {child.returncode}: {' | '.join(last)}"


def _kept_paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _add_wall(path: Path, wall_s: float) -> dict[str, Any] | None:
    """Put the whole time of the process, as its parent saw it, into its result."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    result["wall_s"] = wall_s
    write_json(path, result)
    return result
