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
from harness.engines.arms import Arm, arm_as_dict, arm_from
from harness.errors import CannotRun
from harness.measure.cells import Cell, Workload, cell_as_dict, cell_from
from harness.measure.plan import Matrix
from model_file.errors import InputError

SCHEMA = 3  # raised when what is kept changes, or what is measured for it
_MEASURE_AGAIN = "remove the file and use --resume to measure it again"
_START_AGAIN = "the run cannot be read: start another one, with another --out"
_INVALID = {"cell", "arm", "reasons", "notes"}
_VALID = _INVALID | {"seconds", "tokens_per_s", "exposed_wait_s", "effective_mode", "session"}
_VALID |= {"rows", "used", "gather", "memory", "process"}


@dataclass(frozen=True)
class RunPlan:
    """What `run.json` holds. tokens: a prompt that was given. least_unique: the ratio below which there is no claim.

    model: facts that identify the file, without its folder. machine: where it was started. resolve: repeats go on
    until every interval is as narrow as this share, or for budget_s seconds.
    """

    matrix: Matrix
    model: dict[str, Any]
    machine: dict[str, Any]
    least_unique: float
    memory_limit_bytes: int | None = None
    drop_caches: bool = False
    tokens: list[int] | None = None
    resolve: float | None = None
    budget_s: float | None = None
    seed: int = 0

    def arm(self, name: str) -> Arm:
        """The arm of a name, the baseline's twin too."""
        return next(arm for arm in self.matrix.all_arms if arm.name == name)


@dataclass
class Results:
    """A folder as it was read. cells: by id. timing: what was predicted, what it took, and what stopped it."""

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

    def valid_cell(self, cell: Cell) -> dict[str, Any] | None:
        """A cell that counts, None where it does not or is not there."""
        content = self.cells.get(cell.id)
        return content if content is not None and content["valid"] else None

    @property
    def repeats(self) -> int:
        """Repeats that are planned; of a run that goes on until it is resolved, those that were begun."""
        begun = [cell["cell"]["repeat"] + 1 for cell in self.cells.values()]
        return self.plan.matrix.repeats if self.plan.budget_s is None else max(begun, default=1)

    def planned(self) -> list[Cell]:
        """All cells in order."""
        return [cell for repeat in range(self.repeats) for cell in self.plan.matrix.cells_of(repeat)]

    @property
    def changed(self) -> str | None:
        """How the model changed while it was measured; None: it did not."""
        return self.timing.get("changed")


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
        arms, groups = {arm.name for arm in plan.matrix.all_arms}, set(plan.matrix.groups)
        cells = {}
        for path in sorted(self.cells_folder.glob("*.json")):
            content = _read_json(path, _MEASURE_AGAIN)
            with _whole(path, _MEASURE_AGAIN):
                cell = cell_from(content["cell"])
                if missing := (_VALID if content["valid"] else _INVALID) - content.keys():
                    raise KeyError(*sorted(missing))
            if cell.arm in arms and cell.group in groups and cell.repeat < plan.matrix.repeats:
                cells[cell.id] = content
        timing = self.folder / "timing.json"
        taken = _read_json(timing, "remove the file") if timing.exists() else {}
        with _whole(timing, "remove the file"):
            for session in taken.get("sessions", []):
                float(session["took_s"]), int(session["cells"]), int(session["of"])
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
            return RunPlan(matrix=Matrix(**matrix), **content)

    def path(self, cell: Cell) -> Path:
        """Where a cell's result belongs."""
        return self.cells_folder / f"{cell.id}.json"

    def write(self, cell: Cell, arm: Arm, content: dict[str, Any]) -> dict[str, Any]:
        """Keep a cell's result."""
        whole = {"schema": SCHEMA, "cell": cell_as_dict(cell), "arm": arm_as_dict(arm), "ran": arm.ran, **content}
        write_json(self.path(cell), whole)
        return whole

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
