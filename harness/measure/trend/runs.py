"""Runs over time, as pytest-benchmark writes them: made from runs of `plegate bench`, read, and kept by machine.

Runs are compared only when everything that a speed hangs on, apart from the code, is the same: that is the machine key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from harness.atomic import write_json
from harness.engines.arms import TWIN
from harness.measure.cells import Cell, cell_from
from harness.measure.statistics import by_repeat
from harness.measure.store import Results, Store
from model_file.errors import InputError

_NUMBERED = re.compile(r"(\d{4,})-.*\.json")
_CELL_FACTS = {"cell", "mode", "state", "depth", "workload"}
_KEPT_STATISTICS = ("min", "max", "mean", "median", "rounds", "data")
PROBE = "probe"


# What belongs to the key, with how it is spelled in messages. No host name, no user, no path.
FACTS = {
    "cpu": "processor",
    "cores": "cores",
    "ram_gib": "memory in GiB, rounded",
    "kernel": "kernel",
    "file_system": "file system",
    "disk": "disk",
    "device": "computing device",
    "jax": "jax version",
}


def key_facts(machine: dict[str, Any], device: str | None) -> dict[str, Any]:
    """The facts of the key, from `harness.measure.machine.machine_facts` and the kind of the computing device."""
    ram = machine.get("ram_bytes")
    return {
        "cpu": machine.get("cpu"),
        "cores": machine.get("cores"),
        "ram_gib": round(ram / 2**30) if ram else None,
        "kernel": machine.get("kernel"),
        "file_system": machine.get("file_system"),
        "disk": machine.get("disk"),
        "device": device,
        "jax": machine.get("versions", {}).get("jax"),
    }


def machine_key(facts: dict[str, Any]) -> str:
    """A name for a folder: a few words to recognise it by, and a digest of all the facts."""
    text = "\n".join(f"{name}={facts.get(name)}" for name in FACTS)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    words = [
        facts.get("cpu") or "cpu",
        f"{facts.get('cores')}c",
        f"{facts.get('ram_gib')}g",
        facts.get("device") or "none",
    ]
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, words)).lower()).strip("-")
    return f"{name[:60]}-{digest}"


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What keeps two machines from being compared, a line each; none when their keys are the same."""
    return [
        f"{label}: {one.get(name)} and {other.get(name)}"
        for name, label in FACTS.items()
        if one.get(name) != other.get(name)
    ]


@dataclass(frozen=True)
class Measured:
    """One cell of a run. times: of the repeats, which are minutes apart. Units: seconds."""

    name: str
    info: dict[str, Any]
    times: tuple[float, ...]

    @property
    def undisturbed(self) -> list[float]:
        """The fastest third, six times at least: of the six repeats of `nox -s bench` all.

        Whatever else a machine does makes things slower, hardly ever faster, and not all the time.
        """
        return sorted(self.times)[: max(6, len(self.times) // 3)]

    @property
    def value(self) -> float:
        """The time that stands for the cell: the median of those times."""
        return median(self.undisturbed)

    @property
    def probe(self) -> bool:
        """Whether this is one of the fixed tasks that no code of this project takes part in."""
        return self.info.get("workload") == PROBE


@dataclass(frozen=True)
class BenchRun:
    """One run of all benchmarks. facts: those of the machine key. other_cpu: cores that other processes kept busy.

    accepted: why its speeds are the ones to compare with from now on, empty where nobody said so.
    """

    path: Path
    facts: dict[str, Any]
    commit: str
    dirty: bool
    when: str
    other_cpu: float
    cells: dict[str, Measured]
    accepted: str = ""

    @property
    def label(self) -> str:
        """How plots and tables call it."""
        return f"{self.commit[:7] or 'unknown'}{'+' if self.dirty else ''}"


def name_of(cell: Cell) -> str:
    """How a run calls a cell."""
    return f"{cell.arm}-{cell.state}-{cell.workload.name}-d{cell.depth}"


def times_of(results: Results) -> dict[str, list[float]]:
    """Seconds of every cell of a run of `plegate bench` by its name: one value a repeat, the median of its blocks."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for content in results.valid.values():
        cells.setdefault(name_of(cell_from(content["cell"])), []).append(content)
    return {
        name: [median(blocks.values()) for _, blocks in sorted(by_repeat(found, "seconds").items())]
        for name, found in cells.items()
    }


def info_of(cell: Cell) -> dict[str, Any]:
    """What a run says of a cell beside its times."""
    facts = {"cell": name_of(cell), "mode": cell.arm, "state": cell.state, "depth": cell.depth}
    return facts | {"workload": cell.workload.name}


def run_facts(found: Sequence[Results], machine: dict[str, Any]) -> dict[str, Any]:
    """What a run says of the machine: the facts of its key, and how busy other processes kept it."""
    cells = [cell for results in found for cell in results.valid.values()]
    kinds = [cell["device"]["kind"] for cell in cells if cell.get("device")]
    busy = [cell["process"]["other_cpu"] for cell in cells if cell["process"].get("other_cpu") is not None]
    return {"plegate": key_facts(machine, kinds[0] if kinds else None), "other_cpu": median(busy) if busy else 0.0}


def as_pytest_benchmark(results: Results) -> dict[str, Any]:
    """A run of `plegate bench` in the format of pytest-benchmark, for other tools and for `plegate trend --add`."""
    machine, times = results.plan.machine, times_of(results)
    benchmarks = []
    for cell in dict.fromkeys(results.plan.matrix.cells_of(0)):
        data = times.get(name_of(cell), [])
        if data and not cell.block and not cell.arm.endswith(TWIN):
            each: dict[str, Any] = {"min": min(data), "max": max(data), "mean": fmean(data), "median": median(data)}
            each |= {
                "rounds": len(data),
                "iterations": 1,
                "stddev": stdev(data) if len(data) > 1 else 0.0,
                "data": data,
            }
            name = f"test_cell[{name_of(cell)}]"
            benchmarks.append({"name": name, "fullname": name, "extra_info": info_of(cell), "stats": each})
    return {
        "machine_info": run_facts([results], machine),
        "commit_info": {"id": machine.get("commit"), "time": None, "dirty": bool(machine.get("dirty"))},
        "benchmarks": benchmarks,
        "datetime": machine.get("started"),
        "version": None,
    }


def read_run(path: Path) -> BenchRun:
    """A file of pytest-benchmark, or a folder of `plegate bench`. Raises: InputError saying what it lacks."""
    content = _content(path)
    try:
        return _parsed(path, content)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise InputError(
            f"{path}: is not as `nox -s bench` writes it ({type(error).__name__}: {error}): make the run again"
        ) from None


def _parsed(path: Path, content: dict[str, Any]) -> BenchRun:
    facts = content["machine_info"].get("plegate")
    if not isinstance(facts, dict):
        raise InputError(f"{path}: does not say which machine it is of, expected a file of `nox -s bench`")
    times: dict[str, list[float]] = {}
    info: dict[str, dict[str, Any]] = {}
    for benchmark in content["benchmarks"]:
        extra, data = benchmark.get("extra_info", {}), benchmark["stats"].get("data")
        if not data or not extra.keys() >= _CELL_FACTS:
            raise InputError(f"{path}: {benchmark['name']} has no cell or no times, expected a file of `nox -s bench`")
        name, calls = str(extra["cell"]), int(extra.get("calls", 1))  # a round of what is too short to time alone
        own = [time / calls for time in data]
        if not all(0 < time < inf for time in own):
            raise InputError(f"{path}: {name} has times {data[:3]}..., expected seconds above 0")
        times.setdefault(name, []).extend(own)
        info[name] = {key: value for key, value in extra.items() if key != "cell"}
    if not times:
        raise InputError(f"{path}: holds no benchmark, expected at least one: did the session fail?")
    commit = content.get("commit_info") or {}
    cells = {name: Measured(name, info[name], tuple(own)) for name, own in times.items()}
    when = str(content.get("datetime") or "")
    other = float(content["machine_info"].get("other_cpu") or 0.0)
    accepted = str(content.get("accepted") or "")
    return BenchRun(path, facts, str(commit.get("id") or ""), bool(commit.get("dirty")), when, other, cells, accepted)


def _content(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return as_pytest_benchmark(Store(path).read())
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(content, dict) or not {"machine_info", "benchmarks"} <= content.keys():
        raise InputError(f"{path}: is no file of pytest-benchmark, expected machine_info and benchmarks in it")
    return content


def add_run(folder: Path, path: Path) -> Path:
    """Keep a run under its machine's key, numbered; names of hosts and folders stay out. Raises: InputError."""
    run = read_run(path)
    content = _content(path)
    target = folder / machine_key(run.facts)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: cannot be made: {error.strerror}; expected a folder for runs") from None
    last = max((int(m[1]) for file in target.iterdir() if (m := _NUMBERED.fullmatch(file.name))), default=0)
    kept = {
        "machine_info": {"plegate": {name: run.facts.get(name) for name in FACTS}, "other_cpu": run.other_cpu},
        "commit_info": {name: (content.get("commit_info") or {}).get(name) for name in ("id", "time", "dirty")},
        "benchmarks": [_stripped(benchmark) for benchmark in content["benchmarks"]],
        "datetime": content.get("datetime"),
        "version": content.get("version"),
    }
    file = target / f"{last + 1:04d}-{run.commit[:12] or 'unknown'}.json"
    write_json(file, kept)
    return file


def _stripped(benchmark: dict[str, Any]) -> dict[str, Any]:
    statistics = {name: benchmark["stats"][name] for name in _KEPT_STATISTICS if name in benchmark["stats"]}
    statistics["data"] = [round(value, 9) for value in statistics["data"]]
    return {"name": benchmark["name"], "extra_info": benchmark["extra_info"], "stats": statistics}


def accept(run: BenchRun, reason: str) -> BenchRun:
    """Write into a kept run why its speeds count from now on. Raises: InputError without a reason."""
    if not reason.strip():
        raise InputError('--accept "": no reason was given, expected why the run may be slower than those before')
    write_json(run.path, _content(run.path) | {"accepted": reason.strip()})
    return read_run(run.path)


def history(folder: Path, key: str) -> list[BenchRun]:
    """The runs of a machine, oldest first. Raises: InputError for a damaged one."""
    files = [(int(m[1]), file) for file in (folder / key).glob("*.json") if (m := _NUMBERED.fullmatch(file.name))]
    return [read_run(file) for _, file in sorted(files)]


def keys(folder: Path) -> list[str]:
    """The machines that have runs there."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
