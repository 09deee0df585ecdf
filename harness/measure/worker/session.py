"""An arm's process: opens what the first line of standard input names, then measures what each further line asks for.

Each block has its cache state made and proven anew, before and after. Between blocks the process holds no touched
mapping of the table, so that another arm can evict it. Answers are lines of JSON on what was standard output; whatever
else prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import warnings
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from . import proof, tree, usage
from .benches import Bench, DeviceBench, GatherBench, Handle, ModelBench, Run

# A warm-up after the eviction would bring rows back: such a cell is cold, but its reader is not the one warmed up.
REOPENED = (
    "the table left memory only after the reader was closed: the one that was measured had just been opened, and what "
    "a first gather costs is in its time"
)
_SUMMED = [
    *("batches", "rows_requested", "bytes_useful", "bytes_asked", "bytes_device", "read_calls", "minor_faults"),
    *("major_faults", "cache_hits", "plan_s", "read_s", "copy_s", "dequantize_s", "wall_s", "service_s"),
]


class Session:
    """One arm, opened; measures block after block. Use as a context manager.

    spec: model, mode, row_settings, engine_settings, and whether a model is needed beside the table.
    """

    def __init__(self, spec: dict[str, Any], kernel: proof.Kernel | None = None) -> None:
        self.spec, self.kernel = spec, kernel or proof.Kernel()
        self._warmed: set[tuple[Any, ...]] = set()
        self._benches: dict[str, Bench] = {}
        with ExitStack() as stack:
            self.file = stack.enter_context(tree.open_model(Path(spec["model"])))
            self.table = tree.rows.locate_table(self.file)
            self.config = tree.config_of(self.file) if spec["hashed"] else None
            self.mode = spec["mode"] if spec["mode"] != "device" else "direct-uncached"
            self.handle = Handle(self._open_reader())
            stack.callback(lambda: self.handle.close())
            if spec["needs_model"]:
                engine = tree.make_engine(self.file, self.handle, spec["engine_settings"])
                stack.callback(engine.close)
                self._benches["model"] = ModelBench(engine, self.config)
            self._stack = stack.pop_all()

    def facts(self) -> dict[str, Any]:
        """What is open, with the settings that are in force."""
        facts: dict[str, Any] = {"row_settings": _plain(self.handle.reader.settings)}
        if (bench := self._benches.get("model")) is not None:
            assert isinstance(bench, ModelBench)
            facts["engine_settings"] = _plain(bench.engine.settings)
            facts["device"] = usage.device_facts()
        return facts

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Make what is made once and kept: programs, and the state of the depth."""
        self._bench(order)
        return {}

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """One block: make the state, prove it, measure, prove again."""
        bench = self._bench(order)
        bench.place(order)
        if order["state"] == proof.COLD:
            proven = self._evict(order)
        else:
            # A limit counts only the pages that come in under it.
            outside = self._evict(order).reasons if self.spec.get("limit") else []
            rehearsal = bench.run(order)
            bench.place(order)
            proven = proof.make_warm(self.table, rehearsal.ids, self.kernel)
            proven.reasons += [f"limit: {reason}" for reason in outside]
        gathered = self._totals()
        usage.forget_peak()
        counters = usage.Usage.now()
        run = _slowed(bench.run(order), order.get("slower", 1.0))
        used = counters.until(usage.Usage.now(), run.seconds)
        memory = usage.memory()
        device = self.spec["mode"] == "device"
        pages = run.steps[0][0] if device else tree.count_pages(self.table, np.unique(run.ids))
        proof.check_afterwards(proven, self.table, run.ids, pages, used["disk_bytes"], self.spec["mode"], self.kernel)
        result = self._result(order, run, proven)
        result |= {"rows": self._rows(run.ids, pages, device), "gather": _difference(gathered, self._totals())}
        self.handle.reader.trim(0)
        return result | {"used": used, "memory": memory}

    def _bench(self, order: dict[str, Any]) -> Bench:
        """What runs the order, warmed up for it on other tokens."""
        kind = (
            "device"
            if self.spec["mode"] == "device"
            else "model"
            if order["kind"] in ("prefill", "decode")
            else "gather"
        )
        if kind not in self._benches:
            if kind == "device":
                probe = DeviceBench(self.table, self.spec["row_settings"].get("queue_depth", 256))
                self._stack.callback(probe.close)
                self._benches[kind] = probe
            else:
                self._benches[kind] = GatherBench(self.handle, self.config)
        key = (order["kind"], order["count"], order["depth"])
        if key not in self._warmed:
            self._benches[kind].warm_up(order)
            self._warmed.add(key)
        return self._benches[kind]

    def _open_reader(self) -> Any:
        return tree.rows.open_rows(self.table, self.mode, tree.row_settings(self.spec["row_settings"]))

    def _reopen(self) -> None:
        self.handle.reader = self._open_reader()

    def _evict(self, order: dict[str, Any]) -> proof.Proof:
        return proof.make_cold(self.table, self.handle.reader, self._reopen, order["drop_caches"], self.kernel)

    def _result(self, order: dict[str, Any], run: Run, proven: proof.Proof) -> dict[str, Any]:
        reader = self.handle.reader
        reasons, notes = list(proven.reasons), []
        if reader.fallback_reason and reader.effective_mode != reader.mode and reader.mode != "auto":
            reasons.append(
                f"fell-back: mode {reader.mode} cannot run here, {reader.effective_mode} ran in its place: "
                f"{reader.fallback_reason}"
            )
        elif reader.fallback_reason:
            notes.append(f"{reader.mode}: {reader.fallback_reason}")
        if proven.reopened:
            notes.append(REOPENED)
        if run.compile_s > 0:
            reasons.append(f"compiled: {run.compile_s:.2f} s of compiling fell into the measurement")
        if not run.seconds > 0:
            reasons.append(f"no-time: the clock says {run.seconds} s")
        return {
            "valid": not reasons,
            "reasons": reasons,
            "notes": notes,
            "seconds": run.seconds,
            "tokens_per_s": order["count"] / run.seconds if run.seconds > 0 else None,
            "steps": [[count, round(seconds, 7), round(waited, 7)] for count, seconds, waited in run.steps],
            "exposed_wait_s": run.exposed_wait_s,
            "compute_s": run.compute_s,
            "effective_mode": self.spec["mode"] if self.spec["mode"] == "device" else reader.effective_mode,
            "residency": asdict(proven),
            "first_token": run.fed[0] if order["kind"] == "decode" else None,
        }

    def _rows(self, ids: Any, pages: int, device: bool) -> dict[str, Any]:
        total, unique = (pages, pages) if device else (int(ids.size), int(np.unique(ids).size))
        return {
            "total": total,
            "unique": unique,
            "unique_ratio": unique / total,
            "pages": pages,
            "row_bytes": self.table.row_bytes,
            "table_pages": self.table.pages(),
        }

    def _totals(self) -> dict[str, Any]:
        totals = self.handle.reader.totals
        return {name: getattr(totals, name, None) for name in _SUMMED}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What the gathers of the measurement add up to."""
    result: dict[str, Any] = {}
    for name in _SUMMED:
        known = before[name] is not None and after[name] is not None
        result[name] = after[name] - before[name] if known else None
    service, wall = result["service_s"], result["wall_s"]
    result["effective_concurrency"] = service / wall if service is not None and wall else None
    return result


def _slowed(run: Run, factor: float) -> Run:
    """A planted delay: the processor is kept busy for so much of the time that the run took."""
    if factor > 1:
        started, more = perf_counter(), (factor - 1) * run.seconds
        while perf_counter() - started < more:
            pass
        run.seconds += perf_counter() - started
    return run


def _plain(settings: Any) -> dict[str, Any]:
    """A settings object as plain values; what JSON does not know is left out."""
    kept = (int, str, bool, tuple, type(None))
    return {name: value for name, value in vars(settings).items() if isinstance(value, kept)}


def join(limit: dict[str, Any] | None) -> None:
    """Put this process, and all it will allocate, under the limit. Raises: OSError or ValueError where refused."""
    if limit is None:
        return
    if limit["group"]:
        (Path(limit["group"]) / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (limit["size_bytes"], limit["size_bytes"]))


def end_with_parent(parent: int) -> None:
    """A killed run must not leave a process behind that goes on measuring (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before the line above
        raise SystemExit("the run that this process belongs to has ended")


def main(parent: int) -> int:
    """Answer orders until standard input ends. The exit code says nothing: what failed is in the last answer."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the run as well, which ends this process
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    started = perf_counter()
    try:
        spec = json.loads(sys.stdin.readline())
        join(spec.get("limit"))
        warnings.simplefilter("ignore")  # fallbacks are in the result, which is where they are looked for
        with Session(spec) as session:
            answer(session.facts() | {"opened_s": perf_counter() - started})
            for line in sys.stdin:
                order, begun, counters = json.loads(line), perf_counter(), usage.Usage.now()
                result = session.prepare(order) if order.get("prepare") else session.measure(order)
                whole_s = perf_counter() - begun
                other = counters.until(usage.Usage.now(), whole_s)["other_cpu"]
                answer(result | {"process": {"whole_s": whole_s, "other_cpu": other}})
    except Exception as error:  # whatever it is, the run must hear of it
        answer({"failed": " ".join(str(error).split()) or type(error).__name__, "type": type(error).__name__})
        raise
    return 0
