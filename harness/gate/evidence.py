"""What the kernel saw of a mode, apart from what the mode says of itself.

From /proc of this process (mappings and their advice, open files and their flags, read calls) and from the one function
that system calls go through. A mode that serves right bytes another mode's way is found here and nowhere else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fast.rows import MODES, Table, syscalls
from harness.gate.advice import Place, Range, advised_pages, pages_of, taken_ranges

_ADVICE = {"rr": "random", "sr": "sequential"}
_FEW_READS = 16  # the counters read /proc/self/io twice a gather; a mode that reads does it once per row or page
O_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass
class CountingCalls:
    """The syscall function of `RowSettings`: calls that the kernel carried out, and the ranges it took advice for.

    A call that was refused is nothing that was done, and is not counted.
    """

    inner: syscalls.SyscallFunction = syscalls.call
    calls: Counter[str] = field(default_factory=Counter)
    advised: list[Range] = field(default_factory=list)

    def __call__(self, name: str, *arguments: int) -> int:
        result = self.inner(name, *arguments)
        if result >= 0:
            self.calls[name] += 1
        if name == "process_madvise":
            self.advised += taken_ranges(result, arguments)
        return result


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
    places: tuple[Place, ...]
    advised: tuple[Range, ...]


def look(table: Table, counted: CountingCalls) -> Sight | None:
    """What /proc shows now; None where there is no such folder."""
    files = {str(segment.path.resolve()): segment.path.stat() for segment in table.segments}
    try:
        arrived, made, advised = _read_calls(), Counter(counted.calls), tuple(counted.advised)
        descriptors, rings = _descriptors(list(files.values()))
        mappings, places = mappings_in(Path("/proc/self/smaps").read_bytes(), files)
        return Sight(mappings, descriptors, rings, arrived, _read_calls(), made, places, advised)
    except OSError:
        return None


def mappings_in(smaps: bytes, files: Iterable[str]) -> tuple[Counter[str], tuple[Place, ...]]:
    """Mappings of these files in the text of an smaps file: how many with which advice, and where they are.

    Names are bytes: any but a slash and zero may stand in one. The kernel escapes the newline, and nothing else, and
    says ` (deleted)` behind the name of a file that has been unlinked since.
    """
    names = {os.fsencode(file).replace(b"\n", b"\\012"): file for file in files}
    names |= {name + b" (deleted)": file for name, file in names.items() if name + b" (deleted)" not in names}
    found: Counter[str] = Counter()
    places: list[Place] = []
    for name, file in names.items():  # by search: a process with many programs of JAX has half a million lines
        at = -1
        while (at := smaps.find(b" " + name + b"\n", at + 1)) >= 0:
            addresses, _, offset, _, _, *named = smaps[smaps.rfind(b"\n", 0, at) + 1 : at + 1 + len(name)].split(
                None, 5
            )
            if named != [name]:
                continue  # the end of another file's name
            start, end = (int(address, 16) for address in addresses.split(b"-"))
            places.append(Place(file, start, end, int(offset, 16)))
            flags = (
                smaps[(flagged := smaps.find(b"VmFlags:", at)) : smaps.find(b"\n", flagged)].decode("ascii").split()[1:]
            )
            found[next((_ADVICE[flag] for flag in flags if flag in _ADVICE), "plain")] += 1
    return found, tuple(sorted(places, key=lambda place: place.start))


def _descriptors(files: Sequence[os.stat_result]) -> tuple[Counter[str], int]:
    """Open descriptors of these files, known by device and inode whatever they are called, and rings."""
    found: Counter[str] = Counter()
    rings = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if any(os.path.samestat(os.fstat(int(entry.name)), file) for file in files):
                info = Path(f"/proc/self/fdinfo/{entry.name}").read_text(encoding="ascii")
                flags = int(info.split("flags:")[1].split()[0], 8)
                found["uncached" if flags & O_DIRECT else "cached"] += 1
            rings += str(entry.readlink()) == "anon_inode:[io_uring]"
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
    """Differences between two moments around a mode's open and its gather of `rows` different rows.

    Units: pages of 4 KiB that hold a byte of those rows; advised_pages of them were told to the kernel beforehand.
    """

    mode: str
    rows: int
    mappings: Counter[str]
    descriptors: Counter[str]
    rings: int
    read_calls: int
    calls: Counter[str]
    pages: int = 0
    advised_pages: int = 0

    @classmethod
    def between(
        cls, mode: str, table: Table, ids: Iterable[int], before: Sight, opened: Sight, after: Sight
    ) -> Evidence:
        """What opening added, and what gathering these rows did."""
        rows = set(ids)
        pages = pages_of(table, rows)
        return cls(
            mode=mode,
            rows=len(rows),
            mappings=after.mappings - before.mappings,
            descriptors=after.descriptors - before.descriptors,
            rings=after.rings - before.rings,
            read_calls=after.arrived - opened.left,
            calls=after.calls - opened.calls,
            pages=len(pages),
            advised_pages=len(pages & advised_pages(after.advised[len(opened.advised) :], after.places)),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for reports."""
        return {
            "rows": self.rows,
            "pages": self.pages,
            "advised_pages": self.advised_pages,
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
        expected = MODES[self.mode].kernel_view
        if expected is None:
            return []
        mapped, open_files, way, advised = expected
        found_mapped = next(iter(self.mappings), "none") if self.mappings else "none"
        problems = []
        if found_mapped != mapped:
            problems.append(f"a mapping of the table with advice {found_mapped}, expected {mapped}")
        if open_files is not None and not self.descriptors[open_files]:
            problems.append(f"no {open_files} descriptor of the table, found {dict(self.descriptors) or 'none'}")
        found_way = "ring" if self._ring else "reads" if self._reads else "faults"
        if found_way != way:
            problems.append(f"rows came by {found_way}, expected {way} ({self._numbers()})")
        if advised and self.advised_pages < self.pages:
            problems.append(
                f"{self.advised_pages} of {self.pages} pages were advised before they were touched, expected all"
            )
        return problems

    def _numbers(self) -> str:
        calls = ", ".join(f"{count} {name}" for name, count in sorted(self.calls.items())) or "no other system call"
        return f"{self.rows} rows: {self.read_calls} read calls, {calls}"
