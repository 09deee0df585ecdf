"""One cell, in a process of its own: `python -m harness.measure.cell RESULT.json < SPEC.json`.

Opens the model, stands at the depth, warms up on other rows, makes the cache state and proves it, measures, proves
again, and writes one small JSON file, whole or not at all. Exit code 0: the file is there (its `valid` says what it
is worth).
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fast.rows.counters import GatherCounters, count_pages
from harness.atomic import write_json
from harness.errors import EXIT_BAD_INPUT, EXIT_CANNOT_RUN, CannotRun
from harness.measure import protocol, usage
from harness.measure.cells import COLD, Cell, arm_from, cell_from
from harness.measure.commits import code_digest
from harness.measure.memory_limit import join
from harness.measure.stream import row_ids
from harness.measure.workbench import Run, Workbench
from model_file.errors import InputError

SCHEMA = 2  # of spec and result: raised when either changes, or what is measured for a spec
PARENT = "PLEGATE_BENCH_PARENT"  # the process that a cell ends with
# A warm-up after the eviction would bring rows back: such a cell is cold, but its reader is not the one warmed up.
REOPENED = (
    "the table left memory only after the reader was closed: the one that was measured had just been opened, and what "
    "a first gather costs is in its time"
)
_SUMMED = [
    "batches",
    "rows_requested",
    "bytes_useful",
    "bytes_asked",
    "bytes_device",
    "read_calls",
    "minor_faults",
    "major_faults",
    "cache_hits",
    "plan_s",
    "read_s",
    "copy_s",
    "dequantize_s",
    "wall_s",
    "service_s",
]


def run_cell(spec: dict[str, Any], kernel: protocol.Kernel | None = None) -> dict[str, Any]:
    """Measure the cell of a spec, and everything known about it as plain values.

    Raises: InputError for a model, mode or prompt that cannot be used.
    """
    kernel = kernel or protocol.Kernel()
    started, counters = perf_counter(), usage.Usage.now()
    cell, arm = cell_from(spec["cell"]), arm_from(spec["arm"])
    bench = Workbench(
        Path(spec["model"]),
        arm,
        cell.workload,
        depth=cell.depth,
        context=spec["context"],
        cache_dir=Path(spec["cache_dir"]),
    )
    with bench:
        tokens = bench.tokens(spec.get("tokens"))
        bench.load(tokens, cell)
        opened = perf_counter()
        bench.bench.warm_up(tokens.warm_up(cell.workload, bench.chunk))
        result = _measure(bench, cell, spec, kernel)
        whole_s = perf_counter() - started
        result["process"] |= {"opened_s": opened - started, "whole_s": whole_s}
        result["process"]["other_cpu"] = counters.until(usage.Usage.now(), whole_s)["other_cpu"]
        if cell.workload.kind != "gather":
            result["device"] = usage.device_facts()
    return result


def _measure(bench: Workbench, cell: Cell, spec: dict[str, Any], kernel: protocol.Kernel) -> dict[str, Any]:
    """Make the state, prove it, measure, prove again."""
    tokens = bench.tokens(spec.get("tokens"))
    measured, before, count = tokens.measured(cell), tokens.before(cell), cell.workload.tokens
    bench.bench.place()
    if cell.state == COLD:
        proof = _evict(bench, spec, kernel)
    else:
        # A limit counts only the pages that come in under it.
        outside = _evict(bench, spec, kernel).reasons if spec.get("limit") else []
        rehearsal = bench.bench.run(measured, count)
        bench.bench.place()
        proof = protocol.make_warm(bench.table, _ids(bench, rehearsal.fed, before), kernel)
        proof.reasons += [f"limit: {reason}" for reason in outside]
    gathered = _totals(bench)
    usage.forget_peak()
    counters = usage.Usage.now()
    run = bench.bench.run(measured, count)
    used = counters.until(usage.Usage.now(), run.seconds)
    memory = usage.memory()
    ids = _ids(bench, run.fed, before)
    pages = count_pages(bench.table, np.unique(ids))
    protocol.check_afterwards(proof, bench.table, ids, pages, used["disk_bytes"], bench.arm.mode, kernel)
    result = _result(bench, cell, run, proof)
    result |= {"rows": _rows(bench, ids, pages), "gather": _difference(gathered, _totals(bench))}
    result |= {"used": used, "memory": memory}
    return result


def _evict(bench: Workbench, spec: dict[str, Any], kernel: protocol.Kernel) -> protocol.Proof:
    drop_caches = bool(spec.get("drop_caches"))
    return protocol.make_cold(bench.table, bench.handle.reader, bench.reopen, drop_caches, kernel)


def _result(bench: Workbench, cell: Cell, run: Run, proof: protocol.Proof) -> dict[str, Any]:
    reader = bench.handle.reader
    reasons, notes = list(proof.reasons), []
    if reader.fallback_reason and reader.effective_mode != reader.mode and reader.mode != "auto":
        reasons.append(
            f"fell-back: mode {reader.mode} cannot run here, {reader.effective_mode} ran in its place: "
            f"{reader.fallback_reason}"
        )
    elif reader.fallback_reason:
        notes.append(f"{reader.mode}: {reader.fallback_reason}")
    if proof.reopened:
        notes.append(REOPENED)
    if run.compile_s > 0:
        reasons.append(f"compiled: {run.compile_s:.2f} s of compiling fell into the measurement")
    if not run.seconds > 0:
        reasons.append(f"no-time: the clock says {run.seconds} s")
    model = cell.workload.kind != "gather"
    return {
        "valid": not reasons,
        "reasons": reasons,
        "notes": notes,
        "seconds": run.seconds,
        "tokens_per_s": cell.workload.tokens / run.seconds if run.seconds > 0 else None,
        "steps": [[count, round(seconds, 7), round(waited, 7)] for count, seconds, waited in run.steps],
        "exposed_wait_s": run.exposed_wait_s,
        "compute_s": run.compute_s if model else None,
        "effective_mode": reader.effective_mode,
        "residency": proof.as_dict(),
        "process": {"open_reader_s": bench.open_reader_s},
    }


def _ids(bench: Workbench, fed: list[int], before: list[int]) -> Any:
    return row_ids(bench.config.ple.hash, fed, before)


def _rows(bench: Workbench, ids: Any, pages: int) -> dict[str, Any]:
    unique = int(np.unique(ids).size)
    return {
        "total": int(ids.size),
        "unique": unique,
        "unique_ratio": unique / ids.size,
        "pages": pages,
        "row_bytes": bench.table.row_bytes,
        "table_pages": bench.table.pages(),
    }


def _totals(bench: Workbench) -> dict[str, Any]:
    totals: GatherCounters = bench.handle.reader.totals
    return {name: getattr(totals, name) for name in _SUMMED}


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What the gathers of the measurement add up to; a reader that was opened anew starts at nothing."""
    result: dict[str, Any] = {}
    for name in _SUMMED:
        known = before[name] is not None and after[name] is not None
        result[name] = after[name] - before[name] if known else None
    service, wall = result["service_s"], result["wall_s"]
    result["effective_concurrency"] = service / wall if service is not None and wall else None
    return result


def main() -> int:
    """Measure the spec on standard input and write the result to the file named by the first argument."""
    _end_with_parent()
    if len(sys.argv) != 2:
        print("usage: python -m harness.measure.cell RESULT.json < SPEC.json", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        spec = json.load(sys.stdin)
        if spec.get("schema") != SCHEMA:
            raise InputError(
                f"the spec has schema {spec.get('schema')}, expected {SCHEMA}: a commit to compare with must have "
                "the same"
            )
        limit = join(spec.get("limit"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fallbacks are in the result, which is where they are looked for
            result = run_cell(spec)
        head = {"schema": SCHEMA, "cell": spec["cell"], "arm": spec["arm"], "limit": limit}
        head |= {"session": spec.get("session", 0), "code": code_digest()}
        write_json(sys.argv[1], head | result)
    except InputError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    except CannotRun as error:
        print(error, file=sys.stderr)
        return EXIT_CANNOT_RUN
    return 0


def _end_with_parent() -> None:
    """A killed run must not leave a process behind that goes on measuring (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if str(os.getppid()) != os.environ.get(PARENT, str(os.getppid())):  # it ended before the line above
        raise SystemExit("the run that this cell belongs to has ended")


if __name__ == "__main__":
    raise SystemExit(main())
