"""What the kernel saw of a mode, apart from what the mode says of itself.

From /proc of this process (mappings and their advice, open files and their flags, read calls) and from the one door
that system calls go through. A mode that serves right bytes another mode's way is found here and nowhere else.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fast.rows import Table, syscalls

_ADVICE = {"rr": "random", "sr": "sequential"}
_FEW_READS = 16  # the counters read /proc/self/io twice a gather; a mode that reads does it once per row or page
O_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass
class CountingCalls:
    """The syscall door of `RowSettings`, counting what goes through it by name."""

    inner: syscalls.SyscallFunction = syscalls.call
    calls: Counter[str] = field(default_factory=Counter)

    def __call__(self, name: str, *arguments: int) -> int:
        self.calls[name] += 1
        return self.inner(name, *arguments)


@dataclass(frozen=True)
class Sight:
    """A moment: mappings of the table's files by advice, their open descriptors, rings, and read calls so far.

    Looking reads files too, so that read calls are counted before it (`arrived`) and after it (`left`).
    """

    mappings: Counter[str]
    descriptors: Counter[str]
    rings: int
    arrived: int
    left: int
    calls: Counter[str]


def look(table: Table, door: CountingCalls) -> Sight | None:
    """What /proc shows now; None where there is no such folder."""
    files = {str(segment.path.resolve()) for segment in table.segments}
    try:
        arrived, calls = _read_calls(), Counter(door.calls)
        descriptors, rings = _descriptors(files)
        return Sight(_mappings(files), descriptors, rings, arrived, _read_calls(), calls)
    except OSError:
        return None


def _mappings(files: set[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("VmFlags:"):
            if inside:
                flags = line.split()[1:]
                found[next((_ADVICE[flag] for flag in flags if flag in _ADVICE), "plain")] += 1
        elif "-" in line.split(" ", 1)[0]:
            inside = line.partition("/")[1] == "/" and "/" + line.partition("/")[2] in files
    return found


def _descriptors(files: set[str]) -> tuple[Counter[str], int]:
    found: Counter[str] = Counter()
    rings = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
            if target in files:
                info = Path(f"/proc/self/fdinfo/{entry.name}").read_text(encoding="ascii")
                flags = int(info.split("flags:")[1].split()[0], 8)
                found["uncached" if flags & O_DIRECT else "cached"] += 1
            rings += target == "anon_inode:[io_uring]"
        except OSError:
            continue  # the descriptor of this very listing
    return found, rings


def _read_calls() -> int:
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("syscr:"):
            return int(line.split()[1])
    return 0


@dataclass(frozen=True)
class Evidence:
    """Differences between two moments around a mode's open and its gathers of `rows` different rows."""

    mode: str
    rows: int
    mappings: Counter[str]
    descriptors: Counter[str]
    rings: int
    read_calls: int
    calls: Counter[str]

    @classmethod
    def between(cls, mode: str, rows: int, before: Sight, opened: Sight, after: Sight) -> Evidence:
        """What opening added, and what gathering did."""
        return cls(
            mode=mode,
            rows=rows,
            mappings=after.mappings - before.mappings,
            descriptors=after.descriptors - before.descriptors,
            rings=after.rings - before.rings,
            read_calls=after.arrived - opened.left,
            calls=after.calls - opened.calls,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for reports."""
        return {
            "rows": self.rows,
            "mappings": dict(self.mappings),
            "descriptors": dict(self.descriptors),
            "rings": self.rings,
            "read_calls": self.read_calls,
            "system_calls": dict(self.calls),
        }

    @property
    def _aio(self) -> bool:
        return self.calls["io_submit"] > 0

    @property
    def _ring(self) -> bool:
        return self.rings > 0 and self.calls["io_uring_enter"] > 0

    @property
    def _reads(self) -> bool:
        """Positional reads, by the row or by the page."""
        return self._aio or self.read_calls > max(_FEW_READS, self.rows // 64)

    def problems(self) -> list[str]:
        """What is not as this mode does it; none for `auto`, which may do anything that is right."""
        expected = _EXPECTED.get(self.mode)
        if expected is None:
            return []
        mapped, open_files, way = expected
        found_mapped = next(iter(self.mappings), "none") if self.mappings else "none"
        problems = []
        if found_mapped != mapped:
            problems.append(f"a mapping of the table with advice {found_mapped}, expected {mapped}")
        if open_files is not None and not self.descriptors[open_files]:
            problems.append(f"no {open_files} descriptor of the table, found {dict(self.descriptors) or 'none'}")
        found_way = "ring" if self._ring else "reads" if self._reads else "faults"
        if found_way != way:
            problems.append(f"rows came by {found_way}, expected {way} ({self._numbers()})")
        if self.mode == "prefetch" and not self.calls["process_madvise"]:
            problems.append("no page range was advised before it was touched")
        return problems

    def _numbers(self) -> str:
        calls = ", ".join(f"{count} {name}" for name, count in sorted(self.calls.items())) or "no other system call"
        return f"{self.rows} rows: {self.read_calls} read calls, {calls}"


_EXPECTED: dict[str, tuple[str, str | None, str]] = {
    # mode: advice of its mapping, kind of descriptor it must hold, how rows come while gathering
    "resident": ("none", None, "faults"),
    "mmap": ("plain", "cached", "faults"),
    "mmap-sequential": ("sequential", "cached", "faults"),
    "mmap-random": ("random", "cached", "faults"),
    "prefetch": ("random", "cached", "faults"),
    "direct": ("none", "cached", "reads"),
    "direct-uncached": ("none", "uncached", "reads"),
    "uring": ("none", "cached", "ring"),
    "uring-uncached": ("none", "uncached", "ring"),
}
