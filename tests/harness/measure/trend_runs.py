"""Files as `nox -s bench` leaves them, made up: so slow, so noisy, of such a machine."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from harness.measure.trend.compare import compare
from harness.measure.trend.runs import add_run, history, key_facts, machine_key, read_run

MACHINE = {
    "cpu": "A processor @ 2.1GHz",
    "cores": 2,
    "ram_bytes": 25_000_000_000,
    "kernel": "6.1.2",
    "file_system": "ext4",
    "disk": "vd",
    "versions": {"jax": "0.6.0"},
}
MODES = ("prefetch", "mmap-random", "uring", "auto", "direct")


def file_of(
    path: Path,
    seed: int,
    *,
    slower: dict[str, float] | None = None,
    whole: float = 1.0,
    probes: float = 1.0,
    device: float = 1.0,
    workload: str = "prefill512",
    left_out: tuple[str, ...] = (),
    noise: float = 0.08,
    machine: dict[str, Any] = MACHINE,
    other_cpu: float = 0.1,
) -> Path:
    """A file as pytest-benchmark writes it: 20 cells and a probe in three passes, one of them often disturbed.

    slower, whole, probes, device: factors of single cells, of all cells, of warm probes and of cold ones.
    """
    generator = random.Random(seed)
    benchmarks = []
    for number in range(3):
        for mode in (*MODES, "probe"):
            for state in ("cold", "warm"):
                for depth in (0, 4096):
                    name = f"{mode}-{state}-prefill512-d{depth}"
                    if name in left_out:
                        continue
                    factor = whole * (slower or {}).get(name, 1.0)
                    if mode == "probe":
                        factor = device if state == "cold" else probes
                    # A neighbour makes everything slower for some minutes; every third pass or so.
                    disturbed = 1.6 if generator.random() < 0.3 and number != 1 else 1.0
                    base = 0.1 * factor * disturbed * (2 if state == "cold" else 1)
                    data = [base * generator.uniform(1, 1 + noise) for _ in range(5)]
                    info = {
                        "cell": name,
                        "mode": mode,
                        "state": state,
                        "depth": depth,
                        "workload": "probe" if mode == "probe" else workload,
                        "pass": number,
                    }
                    statistics = {
                        "min": min(data),
                        "max": max(data),
                        "median": sorted(data)[2],
                        "rounds": 5,
                        "data": data,
                    }
                    benchmarks.append(
                        {"name": f"test[{name}]", "fullname": "/a/folder", "extra_info": info, "stats": statistics}
                    )
    content = {
        "machine_info": {"node": "a-host-name", "plegate": key_facts(machine, "cpu"), "other_cpu": other_cpu},
        "commit_info": {"id": f"{seed:040x}", "dirty": False, "project": "a-folder", "branch": "a-branch"},
        "benchmarks": benchmarks,
        "datetime": f"2026-01-{seed % 28 + 1:02d}T00:00:00",
        "version": "5.2.0",
    }
    path.write_text(json.dumps(content))
    return path


def verdict_of(tmp_path: Path, new: Path, *old: Path) -> Any:
    for path in (*old, new):
        add_run(tmp_path / "kept", path)
    runs = history(tmp_path / "kept", machine_key(read_run(new).facts))
    return compare(runs[-1], runs[:-1])
