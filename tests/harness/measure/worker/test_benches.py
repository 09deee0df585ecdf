"""What is kept between processes, and the rows that are asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.measure.worker.benches import GatherBench, ModelBench, _keep


class Engine:
    """Counts what it is fed."""

    def __init__(self) -> None:
        self.fed = 0

    def new_sequence(self) -> Any:
        def feed(tokens: list[int], last_only: bool) -> None:
            assert last_only
            self.fed += len(tokens)
            sequence.tokens = tuple(tokens)

        sequence = SimpleNamespace(tokens=(), feed=feed, restore=id)
        sequence.save = lambda: SimpleNamespace(tokens=sequence.tokens)
        return sequence


def test_state_of_a_depth_is_made_once_and_kept(tmp_path: Path) -> None:
    order = {"kind": "prefill", "depth": 5, "context": [1, 2, 3, 4, 5], "state_file": str(tmp_path / "new" / "state")}
    for fed in (5, 0):
        engine = Engine()
        bench = ModelBench(engine, None)
        bench.place(order)
        bench.place(order)
        assert engine.fed == fed
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["state"]


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(SimpleNamespace(tokens=(9,)))])
def test_damaged_state_or_one_of_other_tokens_is_made_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    engine = Engine()
    ModelBench(engine, None).place({"kind": "prefill", "depth": 2, "context": [1, 2], "state_file": str(path)})
    assert engine.fed == 2
    assert pickle.loads(path.read_bytes()).tokens == (1, 2)


def test_state_that_cannot_be_kept_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _keep(tmp_path / "file" / "state", b"content")
    assert (tmp_path / "file").is_file()


def test_steps_ask_for_the_rows_of_a_token_at_a_time() -> None:
    asked: list[int] = []
    table = SimpleNamespace(rows=1000, row_bytes=4)
    handle = SimpleNamespace(table=table, gather=lambda ids, _: asked.append(len(ids)))
    order = {"fed": {"seed": 1, "rows": 32}, "count": 8, "kind": "steps"}
    for kind, expected in (("steps", [4] * 8), ("gather", [32])):
        bench = GatherBench(handle, None)
        bench.place(order)
        run = bench.run(order | {"kind": kind})
        assert asked == expected
        assert len(run.steps) == len(expected)
        assert np.array_equal(run.ids, np.random.default_rng(1).integers(0, 1000, 32))
        asked.clear()
