"""What is timed: rows alone, the fast engine at a depth, or the device itself. All stay ready for the next block."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from . import tree


@dataclass
class Run:
    """One execution of a workload. Units: seconds. steps: one per chunk or token, (tokens, seconds, exposed wait).

    ids: the rows that were read. exposed_wait_s, compute_s: of a model; None for rows alone.
    """

    seconds: float
    steps: list[tuple[int, float, float]]
    ids: Any
    exposed_wait_s: float | None = None
    compute_s: float | None = None
    compile_s: float = 0.0
    fed: list[int] = field(default_factory=list)


class Bench(Protocol):
    """Something that runs a workload from a prepared position, as often as wanted."""

    def warm_up(self, order: dict[str, Any]) -> None:
        """Run everything once on other tokens: compile, start threads, fill pools."""

    def place(self, order: dict[str, Any]) -> None:
        """Stand at the depth, ready to run. Not measured; it may read rows, so the cache state is made afterwards."""

    def run(self, order: dict[str, Any]) -> Run:
        """Do the work of the order from where `place` left off."""


class Handle:
    """The reader behind a handle, so that it can be closed and opened anew under an engine that holds on to it."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)


class GatherBench:
    """The rows of tokens alone, in one batch or token by token: no model, so that any table can be measured."""

    def __init__(self, handle: Any, config: Any) -> None:
        self._handle, self._config = handle, config
        self._out = np.empty(0, np.uint8)

    def warm_up(self, order: dict[str, Any]) -> None:
        """Gather other rows."""
        self._gather(_ids_of(order["warm_up"], self._config, self._handle.table))

    def place(self, order: dict[str, Any]) -> None:
        """Touch the memory that the rows go to: its first use is not what is measured."""
        ids = _ids_of(order["fed"], self._config, self._handle.table)
        self._out = np.zeros((ids.size, self._handle.table.row_bytes), np.uint8)

    def run(self, order: dict[str, Any]) -> Run:
        """Gather the rows of the order."""
        ids = _ids_of(order["fed"], self._config, self._handle.table)
        return self._gather(ids, self._out, order["count"] if order["kind"] == "steps" else 1)

    def _gather(self, ids: Any, out: Any = None, pieces: int = 1) -> Run:
        size = ids.size // pieces
        batches = [
            (ids[at : at + size], out if out is None else out[at : at + size]) for at in range(0, ids.size, size)
        ]
        ends = [perf_counter()]
        for batch, place in batches:
            self._handle.gather(batch, place)
            ends.append(perf_counter())
        seconds = ends[-1] - ends[0]
        times = [later - earlier for earlier, later in pairwise(ends)]
        return Run(seconds, [(size, each, each) for each in times], ids, seconds)


class DeviceBench:
    """As many random reads past the page cache as the rows' pages: the limit of every reader. depth: in flight."""

    def __init__(self, table: Any, depth: int) -> None:
        self._probe, self._depth = tree.device_probe(table), depth

    def warm_up(self, order: dict[str, Any]) -> None:  # noqa: ARG002  the same reads whatever is measured
        """A few reads."""
        self._probe.run(64, self._depth, 0)

    def place(self, order: dict[str, Any]) -> None:
        """Nothing to do."""

    def run(self, order: dict[str, Any]) -> Run:
        """Read one page for each row of the order."""
        rate = self._probe.run(order["rows"], self._depth, order["seed"])
        none = np.empty(0, np.int64)
        return Run(rate.seconds, [(rate.reads, rate.seconds, rate.seconds)], none, rate.seconds)

    def close(self) -> None:
        """Release files and memory."""
        self._probe.close()


class ModelBench:
    """The fast engine, with the state of a depth restored before each run."""

    def __init__(self, engine: Any, config: Any) -> None:
        self.engine, self._config = engine, config
        self._saved: dict[int, Any] = {0: None}
        self._sequence: Any = None

    def warm_up(self, order: dict[str, Any]) -> None:
        """Feed other tokens at the depth, and generate a few behind them."""
        self._stand(order)
        if order["kind"] == "decode":
            tree.measure_early_part(self.engine)
        self._sequence.feed(order["warm_up"], last_only=True)
        if order["kind"] == "decode":
            self._sequence.greedy(4)

    def place(self, order: dict[str, Any]) -> None:
        """Restore the depth; before a decode, feed what it continues."""
        self._stand(order)
        if order["kind"] == "decode":
            self._sequence.feed(order["fed"], last_only=True)

    def run(self, order: dict[str, Any]) -> Run:
        """Feed the tokens, or generate greedily, until the result is on the host."""
        self.engine.timings.reset()
        if order["kind"] == "decode":
            started = perf_counter()
            fed = [int(token) for token in self._sequence.greedy(order["count"])]
            seconds = perf_counter() - started
        else:
            fed = order["fed"]
            started = perf_counter()
            self._sequence.feed(fed, last_only=True)
            seconds = perf_counter() - started
        timings = self.engine.timings
        steps = [(step.tokens, step.compute_s + step.exposed_wait_s, step.exposed_wait_s) for step in timings.steps]
        compute_s = timings.prefill_compute_s + timings.decode_compute_s
        ids = tree.row_ids(self._config, fed, order["before"])
        return Run(seconds, steps, ids, timings.exposed_wait_s, compute_s, timings.compile_s, fed)

    def _stand(self, order: dict[str, Any]) -> None:
        depth = order["depth"]
        if depth not in self._saved:
            self._saved[depth] = self._at_depth(order["context"], Path(order["state_file"]))
        self._sequence = self.engine.new_sequence()
        if self._saved[depth] is not None:
            self._sequence.restore(self._saved[depth])

    def _at_depth(self, context: Sequence[int], path: Path) -> Any:
        """The state after the context: kept in a file, because a deep one takes minutes to compute."""
        try:
            saved = pickle.loads(path.read_bytes())
            self.engine.new_sequence().restore(saved)
            if list(saved.tokens) == list(context):
                return saved
        except Exception:  # none is kept, or it is damaged: then it is made
            pass
        sequence = self.engine.new_sequence()
        sequence.feed(list(context), last_only=True)
        saved = sequence.save()
        _keep(path, pickle.dumps(saved))
        return saved


def _keep(path: Path, content: bytes) -> None:
    """Write a file that has no name until it is whole: a killed process leaves nothing behind."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o644), "wb") as file:
            file.write(content)
            file.flush()
            path.unlink(missing_ok=True)
            # A descriptor, which counts for no absolute path, makes Python call linkat(2) and follow the link.
            os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno())
    except OSError:
        pass  # it is made again where it cannot be kept


def _ids_of(source: Any, config: Any, table: Any) -> Any:
    """Rows of tokens by the hash, or rows drawn by a seed, for a table that has no model: {seed, rows}."""
    if isinstance(source, dict):
        return np.random.default_rng(source["seed"]).integers(0, table.rows, source["rows"])
    return tree.row_ids(config, source, [])
