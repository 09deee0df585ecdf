"""plegate's row readers beside the access shapes of public engines: one interleaved run, same file, same row ids.

    PYTHON peers_bench.py TABLE.gguf [--repeats 5] [--rows 32768] [--json FILE]

PYTHON is one with plegate installed; g++ builds peer_shapes.cpp (next to this file) into the temporary folder. The
table must be IQ4_NL in one file, on a file system with O_DIRECT, and nothing else should run.

Cold: the table's range is evicted by fadvise and mincore must find at most 1 % of it in memory, before the warm-up of
512 other rows and again after it; plegate's readers are opened anew each time, the
shapes keep their threads and give up their mapping's pages, seen pages and caches. In each repeat all readers get the
same rows (other ones the next time; --fresh-ids: other ones for each reader) in an order that is rotated, and every
second time reversed. A device probe (plegate's: 4 KiB O_DIRECT reads, depth 256) runs before and after each reader; the
ratio is 4 KiB pages/s over the mean of the two. The reader that came first runs again at the end with the same rows:
"again" above 1 would say that something behind the kernel (the host) caches what was read once.
16 rows cold: the same, without probes and warm-up, eviction before every single gather; mincore is asked about the 16
rows' pages each time, about all pages every tenth round.
Warm: --batches different batches, all made resident and mapped by every reader before, are cycled through all readers,
so a batch comes back after so many others that no CPU cache has it. 16 rows warm: each batch is used once, in bursts of
20 calls a reader (bursts are what rotates; the first 3 calls of each are left out).
Row caches are measured on rows they hold (cut from what is left in them after the batches went through), that is at
100 % hits: "auto + RowCache" and "halo-box cache" have the same --cache-mib, of packed rows and of floats.
Floats: "F32" is unpacked on the device for plegate, "F32 host" by NumPy; the shapes have a buffer that they keep.
ggml's get_rows (2 threads) is the F32 of "llama.cpp lazy 2t".
Repeats inside a batch are dropped. Every gather is compared with plain preads, floats by an unpacking that is compared
with gguf's own. Readers with read-ahead get only 2048 rows cold. All are medians; --json has every number.
Exit: 0, 1 when a reader returned other bytes, 2 when nothing can be measured (not cold, no such table).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from time import perf_counter, sleep, strftime

import gguf
import numpy as np

from fast.rows import MODES, ModeCannotRun, RowSettings, locate_table, open_rows
from fast.rows.dequantize import dequantize_numpy, dequantize_on_device
from fast.rows.probe import DeviceProbe
from model_file.errors import InputError
from model_file.gguf_file import open_gguf

SMALL = 16
SLOW_ROWS = 2048  # cold rows of readers that read ahead
WARM_UP = 512  # other rows before a cold batch: enough for a mode to start its threads
BURST, BURST_SKIP = 20, 3
COLD_SHARE = 0.01
PROBE_DEPTH = 256
NORMAL, RANDOM = 0, 1  # madvise
MAPPING, DIRECT, RING, SEEN, CACHE = 1, 2, 4, 8, 16  # what peer_open prepares

# name, packed, floats, needs, advice, threads, option, (keeps: a second read is faster), (slow: reads ahead)
SHAPES = [
    ("llama.cpp lazy 2t", "map_rows", "get_rows_f32", MAPPING, RANDOM, 2, 0),
    ("llama.cpp +WILLNEED, all first", "willneed_rows", "willneed_rows_f32", MAPPING, RANDOM, 2, 0),
    ("llama.cpp +WILLNEED by 256", "willneed_rows", "willneed_rows_f32", MAPPING, RANDOM, 2, 256),
    *((f"PR 28136 pread {t}t", "pread_rows", "pread_rows_f32", 0, NORMAL, t, 0) for t in (4, 32, 64, 128)),
    *((f"halo-box O_DIRECT {t}t", "direct_rows", "direct_rows_f32", DIRECT, NORMAL, t, 0) for t in (64, 128)),
    ("halo-box cache + O_DIRECT 64t", None, "cached_rows_f32", DIRECT | CACHE, NORMAL, 64, "cache"),
    ("sglang io_uring QD256", "uring_rows", None, RING, NORMAL, 1, 256),
    ("FreeToken io_uring O_DIRECT", "uring_direct_rows", None, RING | DIRECT, NORMAL, 1, 256),
    ("vLLM mmap random 32t", "vllm_rows", None, MAPPING, RANDOM, 32, 0),
    ("plain mmap 2t", "map_rows", "get_rows_f32", MAPPING, NORMAL, 2, 0),
    ("omlx seen pages 48t", "omlx_rows", None, MAPPING | SEEN, RANDOM, 48, 0),
]
_FORGETFUL = ("O_DIRECT",)
_SLOW = ("plain mmap 2t", "mmap", "mmap-sequential")


class WrongBytes(Exception):
    """A reader returned something else than the file holds."""


# ------------------------------------------------------------------------------------------------ library and batches


def build_library() -> ctypes.CDLL:
    source = Path(__file__).with_name("peer_shapes.cpp")
    command = ["g++", "-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread"]
    key = hashlib.sha256(source.read_bytes() + Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0]).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"peer_shapes-{os.getuid()}-{key}.so"
    if not library.exists():
        part = library.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, str(source), "-o", str(part)], check=True)
        part.rename(library)
    lib = ctypes.CDLL(str(library), use_errno=True)
    p, u64, u32, i = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int
    for shape in {s[1] for s in SHAPES} | {s[2] for s in SHAPES} - {None}:
        if shape:
            getattr(lib, shape).argtypes = [p, p, u64, u32, u64, p]
    lib.peer_open.argtypes, lib.peer_open.restype = [ctypes.c_char_p, u64, u64, u32, u32, i, u32, u64], p
    lib.peer_close.argtypes = lib.peer_trim.argtypes = lib.cache_slots.argtypes = [p]
    lib.cache_slots.restype = u64
    lib.cache_holds.argtypes = [p, p, u64, p]
    lib.set_codebook.argtypes = [p]
    lib.unpack_rows.argtypes = [p, u64, u32, p]
    lib.table_evict.argtypes = [ctypes.c_char_p, u64, u64, i]
    lib.table_residency.argtypes = [ctypes.c_char_p, u64, u64, p, u64, u32, i, p]
    lib.table_load.argtypes = [ctypes.c_char_p, u64, u64]
    codebook = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
    assert codebook.shape == (16,)
    lib.set_codebook(address(codebook))
    return lib


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


class Batch:
    """Row ids, all different, and the bytes they stand for (read once, by plain preads, when first looked at)."""

    def __init__(self, file: TableFile, ids: np.ndarray) -> None:
        self.ids = np.ascontiguousarray(ids, np.int64)  # the same bits as the u64 that the shapes take
        self.n, self.address, self._file, self._rows = self.ids.size, address(self.ids), file, None

    @property
    def rows(self) -> np.ndarray:
        if self._rows is None:
            self._rows = self._file.read(self.ids)
        return self._rows

    def head(self, rows: int) -> Batch:
        return self if rows >= self.n else Batch(self._file, self.ids[:rows])


class TableFile:
    """The table's bytes: eviction and proof of it, residency, and rows by plain preads."""

    def __init__(self, lib: ctypes.CDLL, table) -> None:
        (segment,) = table.segments
        self.lib, self.table, self.path = lib, table, os.fsencode(segment.path)
        self.offset, self.row_bytes, self.size = segment.offset_bytes, table.row_bytes, table.size_bytes
        self.fd = os.open(segment.path, os.O_RDONLY)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.worst_resident = 0.0

    def read(self, ids: np.ndarray) -> np.ndarray:
        size, offset, fd = self.row_bytes, self.offset, self.fd
        data = b"".join([os.pread(fd, size, offset + i * size) for i in ids.tolist()])
        return np.frombuffer(data, np.uint8).reshape(ids.size, size)

    def residency(self, batch: Batch | None = None, whole: bool = True) -> tuple[float, float, int]:
        """Shares of the table's pages, and of the batch's pages, in memory; the number of the batch's pages."""
        counts = np.zeros(4, np.uint64)
        ids = (batch.address, batch.n) if batch else (None, 0)
        code = self.lib.table_residency(
            self.path, self.offset, self.size, *ids, self.row_bytes, int(whole), address(counts)
        )
        if code:
            raise OSError(-code, os.strerror(-code))
        pages, inside, wanted, there = counts.tolist()
        return inside / max(1, pages), there / max(1, wanted), wanted

    def make_cold(self, batch: Batch | None = None, whole: bool = True) -> None:
        """Evict the table and prove it: by all of its pages, or (not `whole`: 100 times faster) by the batch's."""
        for attempt in range(4):  # pages of a read-ahead that is still under way cannot be dropped yet
            self.lib.table_evict(self.path, self.offset, self.size, int(attempt > 0))
            share = max(self.residency(batch, whole)[:2])
            if not share:
                break
            sleep(0.02 * (attempt + 1))
        self.worst_resident = max(self.worst_resident, share)
        if share <= COLD_SHARE:
            return
        print(f"{share:.1%} of the table or of its rows stays in memory: nothing cold to measure", file=sys.stderr)
        sys.exit(2)

    def load(self) -> None:
        if code := self.lib.table_load(self.path, self.offset, self.size):
            raise OSError(-code, os.strerror(-code))


def draw(generator: np.random.Generator, total: int, rows: int) -> np.ndarray:
    """Random rows in random order, each once."""
    ids = np.empty(0, np.int64)
    while ids.size < rows:
        ids = np.concatenate([ids, generator.integers(0, total, rows + 64)])
        ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
    return ids[:rows]


# ------------------------------------------------------------------------------------------------------------ readers


class Reader:
    """What is common: a name, what it can give, and results."""

    name: str
    kinds: tuple[str, ...]  # of "packed", "f32", "host"
    keeps = True
    slow = False
    is_cache = False

    def __init__(self) -> None:
        self.cold: list[dict] = []
        self.small_cold: list[float] = []
        self.warm: dict[str, list[float]] = defaultdict(list)
        self.small_warm: dict[str, list[float]] = defaultdict(list)
        self.served: dict[str, Counter] = defaultdict(Counter)
        self.again: list[float] = []
        self.notes: set[str] = set()

    def note_served(self, phase: str) -> None:
        """Remember what carried the last gather, where the reader tells."""

    def reopen(self) -> None:
        """Before a cold batch."""

    def trim(self) -> None:
        """Hold no page of the table."""


class Shape(Reader):
    """One of peer_shapes.cpp, opened once: its threads stay."""

    def __init__(self, file: TableFile, spec: tuple, cache_bytes: int) -> None:
        super().__init__()
        self.name, packed, floats, needs, advice, threads, option = spec
        self.kinds = tuple(kind for kind, function in (("packed", packed), ("f32", floats)) if function)
        self.keeps = not any(word in self.name for word in _FORGETFUL) or bool(needs & CACHE)
        self.slow, self.is_cache = self.name in _SLOW, bool(needs & CACHE)
        self._file, self._lib = file, file.lib
        self._functions = {k: getattr(file.lib, f) for k, f in (("packed", packed), ("f32", floats)) if f}
        option = cache_bytes if option == "cache" else option
        self._handle = self._lib.peer_open(
            file.path, file.offset, file.table.rows, file.row_bytes, needs, advice, threads, option
        )
        if not self._handle:
            raise OSError(ctypes.get_errno(), f"{self.name}: {os.strerror(ctypes.get_errno())}")

    def open(self) -> None:
        """It is."""

    def call(self, kind: str, batch: Batch, out: np.ndarray):
        function, handle, ids, n, to = self._functions[kind], self._handle, batch.address, batch.n, address(out)
        row_bytes, offset = self._file.row_bytes, self._file.offset
        return lambda: function(handle, ids, n, row_bytes, offset, to)

    def result(self, value: int, out: np.ndarray) -> np.ndarray:
        if value:
            raise OSError(-value, f"{self.name}: {os.strerror(-value)}")
        return out

    def held(self, batch: Batch) -> np.ndarray:
        answer = np.zeros(batch.n, np.uint8)
        self._lib.cache_holds(self._handle, batch.address, batch.n, address(answer))
        return answer.astype(bool)

    @property
    def slots(self) -> int:
        return self._lib.cache_slots(self._handle)

    def trim(self) -> None:
        self._lib.peer_trim(self._handle)

    def close(self) -> None:
        """Threads and mapping stay for the next phase."""
        self.trim()


class Plegate(Reader):
    """A mode of plegate, or a RowCache in front of `auto`."""

    def __init__(self, table, mode: str, cache_bytes: int = 0) -> None:
        super().__init__()
        self._table, self._mode, self._cache_bytes, self._reader = table, mode, cache_bytes, None
        self.name = f"plegate {mode}" + (" + RowCache" if cache_bytes else "")
        self.kinds = ("packed", "f32", "host")
        self.keeps = MODES[mode].keeps_rows or bool(cache_bytes)
        self.slow, self.is_cache = mode in _SLOW, bool(cache_bytes)
        self.on_demand = mode != "resident"

    def open(self) -> None:
        if self._reader is None:
            self._reader = open_rows(self._table, self._mode, RowSettings(cache_bytes=self._cache_bytes))
            if self._cache_bytes:
                self._reader._rows.fill(0)  # in memory from the start, as after a while of use (and as the peer's)
            if self._reader.fallback_reason:
                self.notes.add(f"runs as {self._reader.effective_mode}: {self._reader.fallback_reason}")

    def reopen(self) -> None:
        self.close()
        self.open()

    def call(self, kind: str, batch: Batch, out: np.ndarray):
        reader, ids = self._reader, batch.ids
        if kind == "packed":
            return lambda: reader.gather(ids, out)
        if kind == "host":
            return lambda: dequantize_numpy(reader.gather(ids), reader.table.type)
        return lambda: dequantize_on_device(reader.gather(ids), type=reader.table.type).block_until_ready()

    def result(self, value, _: np.ndarray) -> np.ndarray:
        return np.asarray(value)

    def note_served(self, phase: str) -> None:
        self.served[phase][self._reader.last.served_by or self._reader.last.effective_mode] += 1

    def held(self, batch: Batch) -> np.ndarray:
        cache = self._reader
        return cache._tags[cache.slot_of(batch.ids)] == batch.ids

    @property
    def slots(self) -> int:
        return self._reader.slots

    def trim(self) -> None:
        if self._reader is not None:
            self._reader.trim()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            gc.collect()


def rotated(items: list, turn: int) -> list:
    """The items from another one on, every second time backwards; steps that spread the first places over all."""
    start = round(turn * len(items) * 0.381966) % len(items)
    order = items[start:] + items[:start]
    return order[::-1] if turn % 2 else order


def clock(call):
    started = perf_counter()
    value = call()
    return perf_counter() - started, value


def device_bytes() -> int:
    """What this process, all threads, made the storage read."""
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0])


# -------------------------------------------------------------------------------------------------------------- phases


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        with open_gguf(options.model) as opened:
            self.table = table = locate_table(opened)
        if table.type != gguf.GGMLQuantizationType.IQ4_NL or len(table.segments) != 1 or table.row_bytes > 4096:
            print(f"{options.model}: expected IQ4_NL rows of at most 4096 bytes in one file", file=sys.stderr)
            sys.exit(2)
        if table.rows < 4 * options.rows:
            print(f"{options.model}: {table.rows} rows are too few for batches of {options.rows}", file=sys.stderr)
            sys.exit(2)
        self.lib = build_library()
        self.file = TableFile(self.lib, table)
        self.generator = np.random.default_rng(options.seed)
        rows, width = options.rows, table.row_width
        self.outs = {"packed": np.zeros((rows, table.row_bytes), np.uint8), "f32": np.zeros((rows, width), np.float32)}
        self.outs["host"] = self.outs["f32"]
        self.probe = DeviceProbe(table)
        self.probes: list[float] = []
        self.warm_probes: list[float] = []
        self.residency: dict[str, float] = {}
        cache = options.cache_mib << 20
        every: list[Reader] = [Shape(self.file, spec, cache) for spec in SHAPES if self.wanted(spec[0])]
        every += [Plegate(table, mode) for mode in MODES if self.wanted(f"plegate {mode}")]
        if self.wanted("plegate auto + RowCache"):
            every.append(Plegate(table, "auto", cache))
        self.readers = every
        self.on_demand = [r for r in every if getattr(r, "on_demand", True)]
        if not self.on_demand:
            print("no reader is left", file=sys.stderr)
            sys.exit(2)

    def wanted(self, name: str) -> bool:
        return bool(re.search(self.options.only, name)) and not (
            self.options.skip and re.search(self.options.skip, name)
        )

    def batch(self, rows: int) -> Batch:
        return Batch(self.file, draw(self.generator, self.table.rows, rows))

    def floats(self, rows: np.ndarray) -> np.ndarray:
        values = np.empty((len(rows), self.table.row_width), np.float32)
        self.lib.unpack_rows(address(rows), len(rows), self.table.row_bytes, address(values))
        return values

    def check_unpacking(self) -> None:
        """Our unpacking, that floats are compared with, against gguf's own."""
        rows = self.batch(min(4096, self.options.rows)).rows
        same_bytes(self.floats(rows), gguf.quants.dequantize(rows, self.table.type), "unpack_rows against gguf")

    def check(self, reader: Reader, kind: str, batch: Batch, got: np.ndarray) -> None:
        same_bytes(got, batch.rows if kind == "packed" else self.floats(batch.rows), f"{reader.name}, {kind}")

    def gather(self, reader: Reader, kind: str, batch: Batch, check: bool = True) -> float:
        """One gather, timed and checked."""
        out = self.outs[kind][: batch.n]
        seconds, value = clock(reader.call(kind, batch, out))
        got = reader.result(value, out)
        if check:
            self.check(reader, kind, batch, got)
        return seconds

    def run_probe(self) -> float:
        return self.probe.run(self.options.rows, PROBE_DEPTH, int(self.generator.integers(1 << 31))).reads_per_s

    def tell(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def run_cold(self) -> None:
        options = self.options
        for repeat in range(options.repeats):
            order = rotated(self.on_demand, repeat)
            common = self.batch(options.rows)
            before = self.run_probe()
            self.probes.append(before)
            first = 0.0
            for position, reader in enumerate([*order, order[0]]):
                batch = self.batch(options.rows) if options.fresh_ids and position < len(order) else common
                batch = batch.head(SLOW_ROWS) if reader.slow else batch
                one = self.cold_gather(reader, batch)
                after = self.run_probe()
                self.probes.append(after)
                one["ratio"] = one["pages_per_s"] / ((before + after) / 2)
                before = after
                if position == len(order):
                    if not options.fresh_ids:
                        reader.again.append(one["ratio"] / first)
                    continue
                one["position"] = position
                first = first or one["ratio"]
                reader.cold.append(one)
                reader.note_served("cold")
                reader.close()
            order[0].close()
            self.tell(f"cold {repeat + 1} of {options.repeats}: probe {statistics.median(self.probes):,.0f} pages/s")

    def cold_gather(self, reader: Reader, batch: Batch) -> dict:
        kind = reader.kinds[0]
        reader.reopen()
        self.file.make_cold()
        self.gather(reader, kind, self.batch(WARM_UP), check=False)
        reader.trim()
        self.file.make_cold(batch)
        _, there, pages = self.file.residency(batch, whole=False)
        out = self.outs[kind][: batch.n]
        out.view(np.uint8).fill(0xEE)
        call, bytes_before = reader.call(kind, batch, out), device_bytes()
        seconds, value = clock(call)
        read = device_bytes() - bytes_before
        got = reader.result(value, out)
        self.check(reader, kind, batch, got)
        reader.trim()
        return {
            "rows_per_s": batch.n / seconds,
            "pages_per_s": pages / seconds,
            "over_read": read / (pages * 4096),
            "resident_before": there,
        }

    def run_small_cold(self) -> None:
        for reader in self.on_demand:
            reader.reopen()
        for step in range(2 + self.options.small_repeats):
            common = self.batch(SMALL)
            for reader in rotated(self.on_demand, step):
                batch = self.batch(SMALL) if self.options.fresh_ids else common
                kind = reader.kinds[0]
                reader.trim()
                self.file.make_cold(batch, whole=step % 10 == 0)
                self.outs[kind][:SMALL].view(np.uint8).fill(0xEE)
                seconds = self.gather(reader, kind, batch)
                reader.trim()
                if step >= 2:
                    reader.small_cold.append(seconds)
                    reader.note_served("small_cold")
        for reader in self.on_demand:
            reader.close()
        self.tell(f"16 rows cold: {self.options.small_repeats} times")

    def run_warm(self) -> None:
        options = self.options
        pool = [self.batch(options.rows) for _ in range(options.batches)]
        available = int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
        if self.file.size < available * 0.6:
            self.file.load()
        readers = []
        for reader in self.readers:
            try:
                reader.open()
                readers.append(reader)
            except ModeCannotRun as reason:
                reader.notes.add(str(reason))
        for batch in pool:
            batch.rows  # noqa: B018 - read here, which makes them resident also where the table does not fit
        self.residency["warm, start"] = min(self.file.residency(batch)[1] for batch in pool)
        pools: dict[Reader, list[Batch]] = {}
        for reader in readers:
            pools[reader] = pool if not reader.is_cache else []
            passes = 0 if not reader.keeps else 2 if isinstance(reader, Plegate) else 1
            filled = pool if not reader.is_cache else pool[: -(-2 * reader.slots // options.rows)]
            for number in range(passes):
                for batch in filled:
                    self.gather(reader, reader.kinds[0], batch, check=number == 0)
            if reader.is_cache:
                pools[reader] = self.held_batches(reader, filled)
            for kind in reader.kinds:  # compiles what is compiled on first use
                for size in (options.rows, SMALL):
                    for _ in range(2):
                        self.gather(reader, kind, pools[reader][0].head(size))
        self.tell(f"warm: {len(pool)} batches resident, {self.residency['warm, start']:.2%} of their pages")

        cells = [(reader, kind) for reader in readers for kind in reader.kinds]
        step = len(cells) | 1  # odd: every cell meets every one of 2^k batches
        for turn in range(options.warm_repeats):
            self.warm_probes.append(self.run_probe())
            for number, (reader, kind) in enumerate(rotated(cells, turn)):
                own = pools[reader]
                batch = own[turn % len(own)] if reader.is_cache else own[(turn * step + number) % len(own)]
                reader.warm[kind].append(self.gather(reader, kind, batch))
                reader.note_served(f"warm {kind}")
            if turn % 5 == 4:
                self.tell(f"warm {turn + 1} of {options.warm_repeats}")
        self.run_small_warm(cells, pools)
        self.residency["warm, end"] = min(self.file.residency(batch)[1] for batch in pool)
        for reader in readers:
            reader.close()

    def held_batches(self, reader: Reader, filled: list[Batch]) -> list[Batch]:
        """Batches of rows that the cache holds after `filled` went through it."""
        ids = np.concatenate([batch.ids[reader.held(batch)] for batch in filled])
        ids = self.generator.permutation(np.unique(ids))
        rows = self.options.rows
        if ids.size < rows:
            raise SystemExit(f"{reader.name} holds {ids.size} rows only: give it a larger --cache-mib")
        reader.notes.add(f"{reader.slots:,} slots, warm on {min(len(filled), ids.size // rows)} batches it holds")
        stop = min(ids.size // rows, len(filled)) * rows
        return [Batch(self.file, ids[at : at + rows]) for at in range(0, stop, rows)]

    def run_small_warm(self, cells: list, pools: dict[Reader, list[Batch]]) -> None:
        """Bursts of small batches, none of them twice where the pool is large enough."""
        cells = [(reader, kind) for reader, kind in cells if kind != "host"]
        flat = {id(own): np.concatenate([batch.ids for batch in own]) for own in pools.values()}
        cursors: Counter = Counter()
        for turn in range(max(1, self.options.small_repeats // 5)):
            for reader, kind in rotated(cells, turn):
                key = id(pools[reader])
                ids = flat[key]
                batches = []
                for _ in range(BURST):
                    at = cursors[key] * SMALL % (ids.size // SMALL * SMALL)
                    cursors[key] += 1
                    batches.append(Batch(self.file, ids[at : at + SMALL]))
                outs = [np.zeros_like(self.outs[kind][:SMALL]) for _ in batches]
                calls = [reader.call(kind, batch, out) for batch, out in zip(batches, outs, strict=True)]
                done = [clock(call) for call in calls]
                for number, (seconds, value) in enumerate(done):
                    self.check(reader, kind, batches[number], reader.result(value, outs[number]))
                    if number >= BURST_SKIP:
                        reader.small_warm[kind].append(seconds)
                reader.note_served(f"small_warm {kind}")

    def run(self) -> None:
        self.check_unpacking()
        gc.collect()
        gc.disable()
        phases = self.options.phases.split(",")
        if "cold" in phases:
            self.run_cold()
        if "small" in phases:
            self.run_small_cold()
        if "warm" in phases:
            self.run_warm()


def same_bytes(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise WrongBytes(f"{what}: {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}")
    a = np.ascontiguousarray(got).view(np.uint8).reshape(len(got), -1)
    b = np.ascontiguousarray(expected).view(np.uint8).reshape(len(expected), -1)
    if not np.array_equal(a, b):
        wrong = np.flatnonzero((a != b).any(axis=1))
        raise WrongBytes(f"{what}: {wrong.size} of {len(a)} rows differ, the first at position {wrong[0]}")


# -------------------------------------------------------------------------------------------------------------- report


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def summary(reader: Reader, rows: int) -> dict:
    ratios = [one["ratio"] for one in reader.cold]
    return {
        "cold_krows_per_s": median([one["rows_per_s"] / 1e3 for one in reader.cold]),
        "ratio": median(ratios),
        "ratio_range": [min(ratios), max(ratios)] if ratios else None,
        "over_read": median([one["over_read"] for one in reader.cold]),
        "warm_mrows_per_s": {kind: rows / 1e6 / statistics.median(times) for kind, times in reader.warm.items()},
        "small_cold_us": median([s * 1e6 for s in reader.small_cold]),
        "small_warm_us": {kind: statistics.median(times) * 1e6 for kind, times in reader.small_warm.items()},
    }


def show(bench: Bench, head: dict) -> None:
    print("; ".join(f"{key} {value}" for key, value in head.items()))
    heads = ["reader", "cold krows/s", "/probe (range)", "read x", "warm M rows/s", "F32", "F32 host",
             "16 cold us", "16 warm us", "16 F32 us"]  # fmt: skip

    def number(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:,.{digits}f}"

    lines = []
    for reader in bench.readers:
        s = summary(reader, bench.options.rows)
        ratio = f"{s['ratio']:.2f} ({s['ratio_range'][0]:.2f}-{s['ratio_range'][1]:.2f})" if s["ratio"] else ""
        warm, small = s["warm_mrows_per_s"], s["small_warm_us"]
        lines.append(
            [reader.name, number(s["cold_krows_per_s"], 1), ratio, number(s["over_read"], 1)]
            + [number(warm.get(kind), 2) for kind in ("packed", "f32", "host")]
            + [number(s["small_cold_us"], 0), number(small.get("packed"), 1), number(small.get("f32"), 1)]
        )
    widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(len(heads))]
    for line in [heads, ["-" * width for width in widths], *lines]:
        print("| " + " | ".join(f"{c:{'<' if i == 0 else '>'}{widths[i]}}" for i, c in enumerate(line)) + " |")
    for reader in bench.readers:
        phases = [f"{phase}: {dict(c)}" for phase, c in reader.served.items() if len(c) > 1 or "auto" in reader.name]
        for text in [*sorted(reader.notes), *(["; ".join(phases)] if phases else [])]:
            print(f"{reader.name}: {text}")


def machine() -> dict:
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {"cpu": cpu[1] if cpu else platform.machine(), "cores": os.cpu_count(), "kernel": platform.release()}


def steal() -> int:
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], epilog=__doc__.partition("\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", type=Path, metavar="TABLE.gguf")
    parser.add_argument("--repeats", type=int, default=5, help="cold batches of each reader (5)")
    parser.add_argument("--rows", type=int, default=32768, help="rows of a batch (32768)")
    parser.add_argument("--json", type=Path, help="write every number here")
    parser.add_argument("--warm-repeats", type=int, help="warm batches of each reader and kind (3 * repeats)")
    parser.add_argument("--small-repeats", type=int, help="16-row gathers of each reader cold (20 * repeats); warm 4 x")
    parser.add_argument("--batches", type=int, default=64, help="different warm batches (64)")
    parser.add_argument("--cache-mib", type=int, default=256, help="memory of both row caches (256)")
    parser.add_argument("--fresh-ids", action="store_true", help="cold: other rows for each reader, too")
    parser.add_argument("--only", default="", metavar="REGEX", help="readers whose name matches")
    parser.add_argument("--skip", default="", metavar="REGEX", help="no readers whose name matches")
    parser.add_argument("--phases", default="cold,small,warm", help="of cold, small (16 rows cold) and warm")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 24))
    options = parser.parse_args()
    options.warm_repeats = options.warm_repeats or 3 * options.repeats
    options.small_repeats = options.small_repeats or 20 * options.repeats
    try:
        bench = Bench(options)
    except (InputError, OSError, subprocess.CalledProcessError) as error:  # no such table, no O_DIRECT, no compiler
        print(error, file=sys.stderr)
        return 2
    started, stolen, load = perf_counter(), steal(), os.getloadavg()[0]
    wrong = None
    try:
        bench.run()
    except WrongBytes as error:
        wrong = str(error)
    again = [ratio for reader in bench.readers for ratio in reader.again]
    head = {
        "table": f"{options.model} ({bench.table.rows:,} rows of {bench.table.row_bytes} bytes)",
        **machine(),
        "seed": options.seed,
        "batch": options.rows,
        "repeats": options.repeats,
        "probe pages/s": f"{median(bench.probes) or 0:,.0f} ({min(bench.probes, default=0):,.0f} to "
        f"{max(bench.probes, default=0):,.0f})",
        "again": f"{median(again):.2f}" if again else "not measured",
        "resident when cold at most": f"{bench.file.worst_resident:.2%}",
        "load": f"{load:.1f} before, {os.getloadavg()[0]:.1f} after",
        "stolen": f"{(steal() - stolen) / os.sysconf('SC_CLK_TCK'):.1f} s",
        "minutes": f"{(perf_counter() - started) / 60:.1f}",
        **{f"pages resident {when}": f"{share:.2%}" for when, share in bench.residency.items()},
    }
    show(bench, head)
    if options.json:
        result = {
            "when": strftime("%Y-%m-%dT%H:%M:%S%z"),
            "head": head,
            "options": {key: str(value) for key, value in vars(options).items()},
            "plegate": str(Path(sys.modules["fast.rows"].__file__).parent),
            "wrong": wrong,
            "probes": bench.probes,
            "warm_probes": bench.warm_probes,
            "readers": {
                reader.name: {
                    "summary": summary(reader, options.rows),
                    **{key: getattr(reader, key) for key in ("cold", "again", "small_cold", "warm", "small_warm")},
                    "served": {phase: dict(counts) for phase, counts in reader.served.items()},
                    "notes": sorted(reader.notes),
                }
                for reader in bench.readers
            },
        }
        options.json.write_text(json.dumps(result, indent=1))
    if wrong:
        print(f"WRONG: {wrong}", file=sys.stderr)
        return 1
    print("every gather returned the same bytes as plain preads of the file")
    return 0


if __name__ == "__main__":
    sys.exit(main())
