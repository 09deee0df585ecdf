"""Measures every mode on a large table beside the raw device, so that a claim about speed can be repeated by anybody.

    plegate synth table --gib 6 --out big.gguf
    python -m tests.fast.rows.measure big.gguf [--rows 32768] [--repeats 3] [--json FILE]

Cold: device probes (random 4 KiB O_DIRECT reads, depth 256, one for each row) alternate with the modes,
whose order is reversed every second repeat; a rate is divided by the mean of the probes right before and after it,
because a device's limit drifts. Every gather gets rows of its own, and the table's range is evicted before, which is
verified by mincore. Warm, and the 16 rows of a decode step: see the functions. Medians are reported, the spread beside
them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fast.rows import MODES, RowCache, RowReader, Table, locate_table, open_rows, residency
from fast.rows.probe import DeviceProbe
from model_file.gguf_file import open_gguf

PROBE_DEPTH = 256
DECODE_ROWS = 16
# Read the whole file or fault serially: measured with fewer rows, which changes no rate (their order is the point).
SLOW_MODES = {"mmap": 2048, "mmap-sequential": 2048}


@dataclass
class Cold:
    """Cold results of one mode. Units: rates in pages per second, ratios to the probes around each gather."""

    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    over_read: list[float] = field(default_factory=list)
    concurrency: list[float | None] = field(default_factory=list)
    fallback: str | None = None


def measure_cold(
    table: Table, modes: Sequence[str], rows: int, repeats: int, seed: int
) -> tuple[dict[str, Cold], list[float]]:
    """Strict-cold gathers of random rows in every mode, between device probes. Returns (modes, probe rates)."""
    results = {mode: Cold() for mode in modes}
    probes: list[float] = []
    generator = np.random.default_rng(seed)
    for repeat in range(repeats):
        before = _probe(table, rows, generator)
        probes.append(before)
        for mode in list(modes) if repeat % 2 == 0 else list(reversed(modes)):
            ids = generator.integers(0, table.rows, min(rows, SLOW_MODES.get(mode, rows)))
            rate = _cold_gather(table, mode, ids, generator, results[mode])
            after = _probe(table, rows, generator)
            results[mode].rates.append(rate)
            results[mode].ratios.append(rate / ((before + after) / 2))
            probes.append(after)
            before = after
    return results, probes


def _cold_gather(table: Table, mode: str, ids: np.ndarray, generator: np.random.Generator, into: Cold) -> float:
    with open_rows(table, mode) as reader:
        out = np.empty((ids.size, table.row_bytes), np.uint8)
        out[:] = 0
        if mode != "resident":
            _require_cold(table)
            reader.gather(generator.integers(0, table.rows, 64))  # first-call costs, on other rows
            reader.trim()
            _require_cold(table)
        reader.gather(ids, out)
        last = reader.last
        into.fallback = reader.fallback_reason
        into.over_read.append((last.bytes_device or 0) / (last.pages_unique * 4096))
        into.concurrency.append(last.effective_concurrency)
        return last.pages_unique / last.wall_s


def _probe(table: Table, pages: int, generator: np.random.Generator) -> float:
    probe = DeviceProbe(table)
    try:
        return probe.run(pages, PROBE_DEPTH, int(generator.integers(1 << 31))).reads_per_s
    finally:
        probe.close()


def _require_cold(table: Table) -> None:
    eviction = residency.make_cold(table)
    if not eviction.cold:
        raise SystemExit(
            f"the table stays {eviction.resident:.1%} resident after {eviction.method}: nothing cold to measure"
        )


def measure_warm(table: Table, modes: Sequence[str], rows: int, repeats: int, seed: int) -> dict[str, dict[str, float]]:
    """The same rows again and again, modes alternating: rows per second packed, and in float32 on the device."""
    from fast.rows.dequantize import gather_to_device

    ids = np.random.default_rng(seed).integers(0, table.rows, rows)
    readers = {mode: open_rows(table, mode) for mode in modes}
    out = np.empty((rows, table.row_bytes), np.uint8)
    times: dict[str, dict[str, list[float]]] = {mode: {"packed": [], "f32": []} for mode in modes}
    for reader in readers.values():
        for _ in range(3):
            reader.gather(ids, out)
            gather_to_device(reader, ids).block_until_ready()
    for _ in range(repeats):
        for mode, reader in readers.items():
            started = perf_counter()
            reader.gather(ids, out)
            packed = perf_counter()
            gather_to_device(reader, ids).block_until_ready()
            times[mode]["packed"].append(packed - started)
            times[mode]["f32"].append(perf_counter() - packed)
    for reader in readers.values():
        reader.close()
    return {mode: {kind: rows / statistics.median(t) for kind, t in kinds.items()} for mode, kinds in times.items()}


def measure_decode(table: Table, modes: Sequence[str], repeats: int, seed: int) -> dict[str, dict[str, Any]]:
    """Batches of 16 rows. Cold: other rows each time from an evicted table, modes alternating. Warm: the same rows."""
    generator = np.random.default_rng(seed)
    cold: dict[str, list[float]] = {mode: [] for mode in modes}
    flying: dict[str, list[float]] = {mode: [] for mode in modes}
    out = np.empty((DECODE_ROWS, table.row_bytes), np.uint8)
    readers: dict[str, RowReader] = {mode: open_rows(table, mode) for mode in modes}
    for step in range(repeats):
        if step % 10 == 0:
            for reader in readers.values():
                reader.trim()
            _require_cold(table)
            for reader in readers.values():
                reader.gather(generator.integers(0, table.rows, DECODE_ROWS), out)
        order = list(readers.items()) if step % 2 == 0 else list(readers.items())[::-1]
        for mode, reader in order:
            ids = generator.integers(0, table.rows, DECODE_ROWS)
            started = perf_counter()
            reader.gather(ids, out)
            cold[mode].append(perf_counter() - started)
            if reader.last.effective_concurrency is not None:
                flying[mode].append(reader.last.effective_concurrency)
    ids = generator.integers(0, table.rows, DECODE_ROWS)
    readers["auto+cache"] = RowCache(open_rows(table, "auto"), budget_bytes=64 << 20)
    result: dict[str, dict[str, Any]] = {}
    for mode, reader in readers.items():
        result[mode] = {"warm_s": _warm_decode(reader, ids, out)}
        if mode in cold:
            result[mode]["cold_s"] = statistics.median(cold[mode])
            result[mode]["in_flight"] = statistics.median(flying[mode]) if flying[mode] else None
        reader.close()
    return result


def _warm_decode(reader: RowReader, ids: np.ndarray, out: np.ndarray, repeats: int = 400) -> float:
    times = []
    for _ in range(repeats):
        started = perf_counter()
        reader.gather(ids, out)
        times.append(perf_counter() - started)
    return statistics.median(times[50:])


def measure(table: Table, rows: int, repeats: int, seed: int, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Everything, as plain values."""
    on_demand = [mode for mode in MODES if mode != "resident"]
    tell(f"load before: {os.getloadavg()[0]:.1f}")
    cold, probes = measure_cold(table, on_demand, rows, repeats, seed)
    tell(f"device probe: {statistics.median(probes):,.0f} pages/s ({min(probes):,.0f} to {max(probes):,.0f})")
    for mode, c in cold.items():
        tell(
            f"cold {mode:16s} {statistics.median(c.rates):>9,.0f} pages/s  "
            f"{statistics.median(c.ratios):5.2f} of the probe ({min(c.ratios):.2f} to {max(c.ratios):.2f})  "
            f"over-read {statistics.median(c.over_read):7.1f}x  {c.fallback or ''}"
        )
    warm = measure_warm(table, [m for m in on_demand if not m.endswith("-uncached")], rows, 3 * repeats, seed + 1)
    for mode, w in warm.items():
        tell(
            f"warm {mode:16s} packed {w['packed'] / 1e6:6.2f} M rows/s  "
            f"float32 on the device {w['f32'] / 1e6:6.2f} M rows/s"
        )
    decode = measure_decode(table, on_demand[2:], 10 * repeats, seed + 2)
    for mode, d in decode.items():
        cold_part = f"cold {d['cold_s'] * 1e6:7.0f} us, in flight {d['in_flight'] or 0:4.1f}; " if "cold_s" in d else ""
        tell(f"16 rows {mode:16s} {cold_part}warm {d['warm_s'] * 1e6:6.1f} us")
    tell(f"load after: {os.getloadavg()[0]:.1f}")
    return {
        "rows": rows,
        "repeats": repeats,
        "probe_pages_per_s": probes,
        "cold": {mode: vars(c) for mode, c in cold.items()},
        "warm_rows_per_s": warm,
        "decode": decode,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the table of a GGUF file and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=32_768)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with open_gguf(options.model) as opened:
        table = locate_table(opened)
    print(f"{options.model}: {table.rows:,} rows of {table.row_bytes} bytes ({table.type.name}), seed {options.seed}")
    result = measure(table, options.rows, options.repeats, options.seed, lambda text: print(text, flush=True))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
