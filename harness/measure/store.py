"""A folder of results: `run.json` says what is to be measured, `cells/` has a file per finished cell, all whole."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.atomic import write_json
from harness.errors import CannotRun
from harness.measure.cell import SCHEMA
from harness.measure.cells import Arm, Cell, Workload, arm_as_dict, arm_from, cell_as_dict, cell_from
from harness.measure.plan import Matrix, order
from model_file.errors import InputError

_MEASURE_AGAIN = "remove the file and use --resume to measure it again"
_START_AGAIN = "the run cannot be read: start another one, with another --out"
_INVALID = {"cell", "arm", "reasons", "notes"}
_VALID = _INVALID | {"seconds", "tokens_per_s", "exposed_wait_s", "effective_mode", "session"}
_VALID |= {"rows", "used", "gather", "memory", "process"}


@dataclass(frozen=True)
class RunPlan:
    """What `run.json` holds. tokens: a prompt that was given. least_unique: the ratio below which there is no claim.

    model: facts that identify the file, without its folder. machine: where it was started.
    """

    matrix: Matrix
    model: dict[str, Any]
    machine: dict[str, Any]
    least_unique: float
    memory_limit_bytes: int | None = None
    drop_caches: bool = False
    tokens: list[int] | None = None

    def cells(self) -> list[Cell]:
        """All cells in order."""
        return order(self.matrix)

    def arm(self, name: str) -> Arm:
        """The arm of a name, the baseline's twin too."""
        return next(arm for arm in self.matrix.all_arms if arm.name == name)


@dataclass
class Results:
    """A folder as it was read. cells: by id. timing: what was predicted and what it took."""

    plan: RunPlan
    cells: dict[str, dict[str, Any]]
    timing: dict[str, Any] = field(default_factory=dict)

    @property
    def valid(self) -> dict[str, dict[str, Any]]:
        """The cells that count."""
        return {name: cell for name, cell in self.cells.items() if cell["valid"]}

    @property
    def invalid(self) -> dict[str, dict[str, Any]]:
        """The cells that were measured and do not count."""
        return {name: cell for name, cell in self.cells.items() if not cell["valid"]}


class Store:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells_folder = folder / "cells"

    @property
    def kept(self) -> tuple[Path, ...]:
        """The files and the folder that are the run: everything else in the folder is made from them."""
        return self.folder / "run.json", self.folder / "timing.json", self.cells_folder

    def create(self, plan: RunPlan) -> None:
        """Begin a run. Raises: InputError when the folder holds one already, or cannot be made."""
        if (self.folder / "run.json").exists():
            raise InputError(
                f"{self.folder}: holds a run already; continue it with --resume, or name another folder with --out"
            )
        try:
            self.cells_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.folder}: cannot be made: {error.strerror}: name another folder with --out"
            ) from None
        matrix = plan.matrix
        content = {name: value for name, value in vars(plan).items() if name != "matrix"}
        content["matrix"] = {
            **{name: value for name, value in vars(matrix).items() if name != "arms"},
            "arms": [arm_as_dict(arm) for arm in matrix.arms],
            "workloads": [asdict(work) for work in matrix.workloads],
        }
        write_json(self.folder / "run.json", {"schema": SCHEMA, "kind": "plegate-bench", **content})

    def read(self) -> Results:
        """The run and its finished cells. Raises: InputError for a folder without one, or a file that is damaged."""
        plan = self._plan()
        wanted = {cell.id for cell in plan.cells()}
        cells = {}
        for path in sorted(self.cells_folder.glob("*.json")):
            content = _read_json(path, _MEASURE_AGAIN)
            with _whole(path, _MEASURE_AGAIN):
                name = cell_from(content["cell"]).id
                if missing := (_VALID if content["valid"] else _INVALID) - content.keys():
                    raise KeyError(*sorted(missing))
            if name in wanted:
                cells[name] = content
        timing = self.folder / "timing.json"
        taken = _read_json(timing, "remove the file") if timing.exists() else {}
        with _whole(timing, "remove the file"):
            for session in taken.get("sessions", []):
                float(session["predicted_for_cells_s"]), float(session["took_s"]), int(session["cells"]), session["of"]
        return Results(plan, cells, taken)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder for this process. Raises: CannotRun when another one measures into it."""
        descriptor = os.open(self.cells_folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotRun(
                    f"{self.folder}: another process is measuring into it, and two would measure each other: wait for "
                    "it, or name another folder with --out"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def _plan(self) -> RunPlan:
        path = self.folder / "run.json"
        if not path.exists():
            raise InputError(f"{self.folder}: has no run.json, expected a folder that `plegate bench --out` made")
        content = _read_json(path, _START_AGAIN)
        with _whole(path, _START_AGAIN):
            if content.get("kind") != "plegate-bench" or content.get("schema") != SCHEMA:
                found = f"{content.get('kind')} with schema {content.get('schema')}"
                raise InputError(
                    f"{path}: is {found}, expected plegate-bench with schema {SCHEMA}: made by another version?"
                )
            del content["kind"], content["schema"]
            matrix = content.pop("matrix")
            matrix["arms"] = tuple(arm_from(arm) for arm in matrix["arms"])
            matrix["workloads"] = tuple(Workload(**work) for work in matrix["workloads"])
            matrix["states"], matrix["depths"] = tuple(matrix["states"]), tuple(matrix["depths"])
            content["matrix"] = Matrix(**matrix)
        return RunPlan(**content)

    def path(self, cell: Cell) -> Path:
        """Where a cell's result belongs."""
        return self.cells_folder / f"{cell.id}.json"

    def write_failure(self, cell: Cell, arm: Arm, reason: str, path: Path, wall_s: float) -> dict[str, Any]:
        """Record a cell that gave no result."""
        content = {"schema": SCHEMA, "cell": cell_as_dict(cell), "arm": arm_as_dict(arm), "valid": False}
        content |= {"reasons": [reason], "notes": [], "wall_s": wall_s}
        write_json(path, content)
        return content

    def write_timing(self, timing: dict[str, Any]) -> None:
        """Keep what was predicted and what it took."""
        write_json(self.folder / "timing.json", timing)

    def sweep(self) -> None:
        """Remove what killed processes left half-written."""
        for path in self.folder.glob("**/.*.part"):
            path.unlink(missing_ok=True)


def _read_json(path: Path, remedy: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}; {remedy}") from None


@contextmanager
def _whole(path: Path, remedy: str) -> Iterator[None]:
    """Whatever is missing or of another kind in a file. Raises: InputError naming it, and what to do."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path}: is not as `plegate bench` writes it ({type(error).__name__}: {error}); {remedy}"
        ) from None
