"""Measures what is missing from a folder of results: each repeat starts a process for every arm, then blocks follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from fast.rows.resident import available_bytes
from harness.engines.arms import OUTSIDE, Arm
from harness.errors import CannotRun
from harness.identity import Changed, Identity
from harness.measure.cells import Cell, Group
from harness.measure.commits import code_digest, tree_of
from harness.measure.memory_limit import limited
from harness.measure.process import Process, ProcessFailed
from harness.measure.statistics import resolved_groups
from harness.measure.store import Results, RunPlan, Store
from harness.measure.stream import Tokens

QUICK_START_S = 60.0  # a server that takes longer is started once a visit, not for every cell
MOST_FAILURES = 2  # a process that ended more often than this in one repeat is not started again in it
MEMORY_SHARE = 0.6  # of what is available: arms that need more together are measured one after the other
PROCESS_BYTES = 700 << 20  # that a process with a model needs beside its weights
Progress = Callable[[str, int, int, float | None], None]
"""Receives what is going on, cells done, cells in all, and the seconds left where they are known."""


Slower = Callable[[Cell], float]
"""A factor by which a cell is made slower, to prove that it is noticed."""


def _as_it_is(_: Cell) -> float:
    return 1.0


class Opened(Protocol):
    """An arm that is ready to be measured. spec: what it was started with."""

    spec: dict[str, Any]

    def opened(self) -> dict[str, Any]: ...
    def measure(self, order: dict[str, Any]) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Runner:
    """Measures what is missing from a folder of results."""

    def __init__(
        self, store: Store, plan: RunPlan, model: Path, cache_dir: Path, progress: Progress, slower: Slower = _as_it_is
    ) -> None:
        self._store, self._plan, self._progress, self._slower = store, plan, progress, slower
        self._model, self._cache_dir = model.resolve(), cache_dir.resolve()
        facts, given = plan.model, tuple(plan.tokens) if plan.tokens is not None else None
        avoid = (facts["eos"],) if facts["eos"] < facts["vocab"] else ()
        self._tokens = Tokens(facts["vocab"], avoid, facts["rows_per_token"], given, plan.seed)
        self._identity = Identity([self._model])
        self._results = Results(plan, {})
        self._session: dict[str, Any] = {}
        self.starts_s: dict[str, float] = {}  # by arm, as last seen

    def run(self) -> Results:
        """Prepare, measure, predict. Ctrl-C leaves every finished cell; so does anything else."""
        self._store.sweep()
        self._results = results = self._store.read()
        if not any(self._missing(repeat) for repeat in range(results.repeats)) and self._plan.budget_s is None:
            return results
        results.timing = {"sessions": [], **results.timing}
        results.timing.pop("changed", None)
        of = sum(len(self._missing(repeat)) for repeat in range(results.repeats)) if self._plan.budget_s is None else 0
        self._session = {"cells": 0, "of": of, "took_s": 0.0, "repeats_s": []}
        results.timing["sessions"].append(self._session)
        try:
            self._prepare()
            self._repeats()
        except Changed as change:
            results.timing["changed"] = str(change)
        self._store.write_timing(results.timing)
        return results

    def _missing(self, repeat: int, done: Sequence[Group] = ()) -> list[Cell]:
        cells = self._results.cells
        return [
            cell
            for cell in self._plan.matrix.cells_of(repeat)
            if cell.group not in done and not cells.get(cell.id, {"valid": False})["valid"]
        ]

    def _repeats(self) -> None:
        started, budget_s = time.monotonic(), self._plan.budget_s
        for repeat in range(self._plan.matrix.repeats):
            done: Sequence[Group] = ()
            if self._plan.resolve is not None:
                done = resolved_groups(self._results, self._plan.resolve)
            cells = self._missing(repeat, done)
            if not cells:
                if len(done) == len(self._plan.matrix.groups):
                    return
                continue
            past = self._session["repeats_s"]
            spent_s = time.monotonic() - started
            if budget_s is not None and past and spent_s + sum(past) / len(past) > budget_s:
                return
            began = time.monotonic()
            self._repeat(cells, started)
            past.append(time.monotonic() - began)

    def _prepare(self) -> None:
        """Let what is made once and kept be made: compiled programs, and the states of the depths."""
        matrix = self._plan.matrix
        works = [work for work in matrix.workloads if work.needs_model]
        arms = {(arm.commit, tuple(arm.engine_settings.items())): arm for arm in reversed(matrix.arms)}
        for arm in arms.values() if works else ():
            if arm.mode in OUTSIDE:
                continue
            self._progress(f"preparing {arm.name}: programs and the states of the depths", 0, self._session["of"], None)
            with ExitStack() as stack:
                try:
                    process = self._start(arm, stack)
                    process.opened()
                    for depth in matrix.depths:
                        for work in works:
                            cell = Cell(arm.name, matrix.states[0], depth, work, 0)
                            process.measure(self._order(cell, arm) | {"prepare": True})
                except (ProcessFailed, CannotRun):
                    pass  # its cells will say so

    def _repeat(self, cells: Sequence[Cell], started: float) -> None:
        """Measure cells of one repeat, each arm in one new process; one after the other where memory is short."""
        names = list(dict.fromkeys(cell.arm for cell in cells))
        together = self._fit(names) and not self._visits(names)
        if not together:
            cells = sorted(cells, key=lambda cell: names.index(cell.arm))
        with ExitStack() as stack:
            crew = Crew(self, stack)
            if together:
                crew.open([name for name in names if name not in self._servers()])
            for cell in cells:
                crew.close_all(
                    [name for name in names if name != cell.arm and (not together or name in self._servers())]
                )
                self._show(cell)
                begun = time.monotonic()
                content = self._block(crew, cell)
                content["wall_s"] = time.monotonic() - begun
                self._results.cells[cell.id] = self._store.write(cell, self._plan.arm(cell.arm), content)
                self._session["cells"] += 1
                self._session["took_s"] = time.monotonic() - started
                self._store.write_timing(self._results.timing)

    def _servers(self) -> list[str]:
        """Arms whose programs are started here: never two of them at once."""
        return [arm.name for arm in self._plan.matrix.all_arms if arm.words]

    def _visits(self, names: Sequence[str]) -> bool:
        """Whether a server is kept for all cells of its arm in a repeat: it takes long to start, or to fill to a depth.

        Else each cell has one of its own. How long it takes is known from the second repeat on.
        """
        servers = [name for name in names if name in self._servers()]
        slow = any(self.starts_s.get(name, float("inf")) > QUICK_START_S for name in servers)
        return bool(servers) and (slow or max(self._plan.matrix.depths) > 0)

    def _block(self, crew: Crew, cell: Cell) -> dict[str, Any]:
        """One measurement of one arm; what goes wrong makes an invalid cell. Raises: Changed."""
        self._identity.check()
        head: dict[str, Any] = {"session": len(self._results.timing["sessions"]) - 1, "notes": [], "reasons": []}
        try:
            process, facts = crew.process(cell.arm)
            arm = self._plan.arm(cell.arm)
            head |= {"code": arm.commit or code_digest(), **facts}
            result = process.measure(self._order(cell, arm))
            head["process"] = facts["process"] | result.pop("process")
            head |= result
        except ProcessFailed as failure:
            crew.failed(cell.arm, str(failure))
            head |= {"valid": False, "reasons": [str(failure)]}
        self._identity.check()
        return head

    def _order(self, cell: Cell, arm: Arm) -> dict[str, Any]:
        ours = cell.workload.needs_model and arm.mode not in OUTSIDE
        chunk = self._engine_settings(arm).get("chunk", 512) if ours else 512
        order = self._tokens.order(cell, chunk) | {"drop_caches": self._plan.drop_caches}
        order["slower"] = self._slower(cell)
        if cell.depth and ours:
            code = f"{arm.commit or code_digest()}-{abs(hash(tuple(map(tuple, self._identity.found))))}"
            order["state_file"] = str(self._cache_dir / "depths" / f"{cell.depth}-{code}.pickle")
        return order

    def _engine_settings(self, arm: Arm) -> dict[str, Any]:
        """What the engine is made with: as `run` makes it. Another commit's own defaults where it is one."""
        from harness.engines.settings import engine_settings

        programs = str(self._cache_dir / "programs")
        settings = vars(engine_settings(self._plan.matrix.context, cache_dir=Path(programs), **arm.engine_settings))
        if arm.commit:
            settings = {name: settings[name] for name in ("context", *arm.engine_settings)}
        return {**settings, "cache_dir": programs}

    def spec(self, arm: Arm) -> dict[str, Any]:
        """What an arm's process is started with."""
        needs_model = any(work.needs_model for work in self._plan.matrix.workloads)
        spec: dict[str, Any] = {"model": str(self._model), "mode": arm.mode, "row_settings": arm.row_settings}
        spec |= {"needs_model": needs_model, "hashed": self._plan.model["vocab"] > 0}
        return spec | {"engine_settings": self._engine_settings(arm) if needs_model else {}}

    def _start(self, arm: Arm, stack: ExitStack) -> Opened:
        if arm.mode in OUTSIDE:
            from harness.measure.outside import Outside

            process: Opened = Outside(arm, self._model, self._plan.matrix.context)
        else:
            root = tree_of(arm, self._cache_dir)
            limit = stack.enter_context(limited(self._plan.memory_limit_bytes))
            process = Process(self.spec(arm) | {"limit": limit.as_dict() if limit else None}, root)
        stack.callback(process.close)
        return process

    def _fit(self, names: Sequence[str]) -> bool:
        """Whether all arms find room in memory at once."""
        if self._plan.memory_limit_bytes is not None or (available := available_bytes()) is None:
            return self._plan.memory_limit_bytes is None
        table, whole = self._plan.model["table_bytes"], self._plan.model["size_bytes"]
        engine = whole - table + PROCESS_BYTES if any(w.needs_model for w in self._plan.matrix.workloads) else 0
        modes = [self._plan.arm(name).mode for name in names]
        return sum(engine + (table if mode == "resident" else 0) for mode in modes) < MEMORY_SHARE * available

    def _show(self, cell: Cell) -> None:
        done, session = len(self._results.valid), self._session
        left_s = None
        if session["of"] and session["cells"]:
            left_s = (session["of"] - session["cells"]) * session["took_s"] / session["cells"]
        total = done + session["of"] - session["cells"] if session["of"] else 0
        self._progress(f"{cell.group.title}: {cell.arm}, repeat {cell.repeat + 1}", done, total, left_s)


class Crew:
    """The processes of one repeat, by arm."""

    def __init__(self, runner: Runner, stack: ExitStack) -> None:
        self._runner, self._stack = runner, stack
        self._open: dict[str, tuple[Opened, dict[str, Any], ExitStack]] = {}
        self._failures: dict[str, list[str]] = {}

    def open(self, names: Sequence[str]) -> None:
        """Start the processes of these arms, all at once."""
        started = {}
        for name in names:
            own = self._stack.enter_context(ExitStack())
            began = time.monotonic()
            try:
                started[name] = self._runner._start(self._runner._plan.arm(name), own), own, began
            except (CannotRun, ProcessFailed) as error:
                self._failures[name] = [str(error)] * (MOST_FAILURES + 1)
        for name, (process, own, began) in started.items():
            try:
                facts = process.opened()
            except (CannotRun, ProcessFailed) as error:
                own.close()
                self._failures[name] = [str(error)] * (MOST_FAILURES + 1)
                continue
            self._runner.starts_s[name] = facts.get("opened_s", 0.0)
            facts["process"] = {"opened_s": facts.pop("opened_s", time.monotonic() - began)}
            limit = process.spec.get("limit")
            facts["limit"] = limit and {key: limit[key] for key in ("kind", "size_bytes", "problem")}
            self._open[name] = process, facts, own

    def process(self, name: str) -> tuple[Opened, dict[str, Any]]:
        """The arm's process, started if it is not there. Raises: ProcessFailed where it failed too often."""
        if name not in self._open and len(self._failures.get(name, [])) <= MOST_FAILURES:
            self.open([name])
        if name not in self._open:
            raise ProcessFailed(self._failures[name][-1])
        return self._open[name][:2]

    def failed(self, name: str, reason: str) -> None:
        """End the arm's process, which gave no answer."""
        if name in self._open:
            self._open.pop(name)[2].close()
            self._failures.setdefault(name, []).append(reason)

    def close_all(self, names: Sequence[str]) -> None:
        """End the processes of these arms."""
        for name in names:
            if name in self._open:
                self._open.pop(name)[2].close()
