"""Made-up results, so that what may be claimed is tested without measuring anything, and a small table of one's own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fast.rows import locate_table, residency
from harness.engines.arms import Arm, arm_as_dict
from harness.measure.cells import Cell, Workload, cell_as_dict
from harness.measure.plan import Matrix
from harness.measure.store import SCHEMA, Results, RunPlan, Store
from harness.synth import make_model, make_recipe
from model_file.gguf_file import open_gguf

MODEL = {
    "file": "made-up.gguf",
    "layers": 8,
    "width": 640,
    "table_rows": 1_000_000,
    "row_bytes": 90,
    "table_type": "IQ4_NL",
    "table_bytes": 90_000_000,
    "rows_per_token": 4,
    "vocab": 4096,
    "eos": 1,
}
MACHINE = {
    "cpu": "A processor",
    "cores": 2,
    "ram_bytes": 1 << 34,
    "kernel": "6.1",
    "versions": {"jax": "0.6.0"},
    "dirty": False,
}


def matrix(**changes: Any) -> Matrix:
    """Two arms, both states, three depths, one prefill, six repeats; or with changes."""
    values: dict[str, Any] = {
        "arms": (Arm("prefetch", "prefetch"), Arm("uring", "uring")),
        "states": ("cold", "warm"),
        "depths": (0, 1024, 4096),
        "workloads": (Workload("prefill", 512),),
        "repeats": 6,
    }
    return Matrix(**(values | changes))


def made_up(plan: RunPlan, seconds: Callable[[Cell], float], **changes: Any) -> Results:
    """Results in which every cell took what `seconds` says; changes are put over each cell."""
    cells = {}
    for cell in Results(plan, {}).planned():
        took = seconds(cell)
        total = cell.workload.tokens * 4
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "cell": cell_as_dict(cell),
            "arm": arm_as_dict(plan.arm(cell.arm)),
            "valid": True,
            "reasons": [],
            "notes": [],
            "seconds": took,
            "tokens_per_s": cell.workload.tokens / took,
            "steps": [[cell.workload.tokens, took, 0.01]],
            "exposed_wait_s": 0.01,
            "compute_s": took - 0.01,
            "effective_mode": plan.arm(cell.arm).mode,
            "residency": {"holes": 0.0},
            "rows": {
                "total": total,
                "unique": total,
                "unique_ratio": 1.0,
                "pages": total,
                "row_bytes": 90,
                "table_pages": 1_000_000,
            },
            "gather": {"wall_s": 0.02, "read_calls": 3, "effective_concurrency": 100.0},
            "used": {
                "disk_bytes": total * 4096 if cell.state == "cold" else 0,
                "minor_faults": 1,
                "major_faults": 0,
                "cpu_s": 1.0,
                "other_cpu": 0.0,
            },
            "session": 0,
            "process": {"other_cpu": 0.0},
            "memory": {"peak_rss_bytes": 1 << 29, "anonymous_bytes": 1 << 28},
            "wall_s": 3.0,
        }
        for name, value in changes.items():
            content[name] = {**content.get(name, {}), **value} if isinstance(value, dict) else value
        cells[cell.id] = content
    return Results(plan, cells)


def plan(**changes: Any) -> RunPlan:
    """A plan over `matrix`; the ratio of unique rows is 0.5."""
    return RunPlan(matrix(**changes), dict(MODEL), dict(MACHINE), 0.5)


def steady(noise: float, **factors: float) -> Callable[[Cell], float]:
    """Times of one second with some noise, and arms that take a factor of it."""
    generator = random.Random(7)

    def seconds(cell: Cell) -> float:
        return factors.get(cell.arm, 1.0) * generator.uniform(1 - noise, 1 + noise)

    return seconds


def store_of(results: Results, folder: Path) -> Store:
    """The results as a folder."""
    store = Store(folder)
    store.create(results.plan)
    for cell in results.planned():
        if cell.id in results.cells:
            store.path(cell).write_text(json.dumps(results.cells[cell.id]), encoding="utf-8")
    return store


@pytest.fixture(scope="session")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 30 MB that nobody else has mapped, on a file system that can be evicted from."""
    path = tmp_path_factory.mktemp("table") / "model.gguf"
    make_model(make_recipe("table", gib=0.03), path)
    with open_gguf(path) as model:
        if not residency.make_cold(locate_table(model)).cold:
            pytest.skip("the temporary folder is on a file system that keeps its files in memory: nothing is ever cold")
    return path


@pytest.fixture
def run_command() -> Callable[..., Result]:
    """Runs `bench`, `report` or `trend` in this process."""
    from harness.cli import app

    def run(*arguments: str | Path) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run
