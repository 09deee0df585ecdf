"""A folder of results: one process at a time, and what is damaged in it is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import CannotRun
from harness.measure.store import SCHEMA, Store
from model_file.errors import InputError
from tests.harness.measure.conftest import made_up, plan, steady, store_of


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", "[]"),
        ("run.json", '{"kind": "plegate-bench", "schema": 1}'),
        ("run.json", json.dumps({"kind": "plegate-bench", "schema": SCHEMA})),
        ("timing.json", "[]"),
        ("timing.json", '{"sessions": [{}]}'),
        ("cells/x.json", "{}"),
        ("cells/x.json", "[]"),
        ("cells/x.json", '{"cell": {"arm": "prefetch"}}'),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, file: str, content: str) -> None:
    store_of(made_up(plan(), steady(0.01)), tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    with pytest.raises(InputError, match=file):
        Store(tmp_path / "run").read()


def test_cell_without_a_number_is_named(tmp_path: Path) -> None:
    results = made_up(plan(), steady(0.01))
    path = store_of(results, tmp_path / "run").path(results.planned()[0])
    cell = json.loads(path.read_text())
    del cell["used"]
    path.write_text(json.dumps(cell))
    with pytest.raises(InputError, match="used"):
        Store(tmp_path / "run").read()


def test_two_runs_do_not_measure_into_one_folder(tmp_path: Path) -> None:
    store = store_of(made_up(plan(), steady(0.01)), tmp_path / "run")
    with store.alone(), pytest.raises(CannotRun, match="another process"), Store(tmp_path / "run").alone():
        pass
    with Store(tmp_path / "run").alone():
        pass


def test_damaged_result_is_named(tmp_path: Path) -> None:
    results = made_up(plan(), steady(0.01))
    store = store_of(results, tmp_path / "run")
    store.path(results.planned()[0]).write_text('{"schema": 1, "cel')
    with pytest.raises(InputError, match="remove the file"):
        Store(tmp_path / "run").read()
