"""The kernel's view of a process that reads a table: where it has it mapped, what it read, and paging that out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fast.rows import Table, syscalls

ADVICE = {"rr": "random", "sr": "sequential"}
_MADV_PAGEOUT = 21
_PIECE_BYTES = 1 << 30  # larger pieces are refused by some kernels
_PAGE = 4096
O_DIRECT = getattr(os, "O_DIRECT", 0)


@dataclass(frozen=True)
class Mapped:
    """A mapping that shows a part of the table. Units: addresses of that part alone, bytes in the process's memory."""

    start: int
    end: int
    advice: str
    resident_bytes: int


@dataclass(frozen=True)
class Counted:
    """What a process did so far. Units: bytes that the device was read for, faults, bytes of memory at most."""

    read_bytes: int
    read_calls: int
    minor_faults: int
    major_faults: int
    peak_bytes: int

    @classmethod
    def of(cls, process: int | str) -> Counted:
        """Raises: OSError where it may not be looked at."""
        folder = Path(f"/proc/{process}")
        io = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        peak = int((folder / "status").read_text().partition("VmHWM:")[2].split()[0]) << 10
        return cls(int(io["read_bytes"]), int(io["syscr"]), int(fields[7]), int(fields[9]), peak)


def table_mappings(process: int | str, table: Table) -> list[Mapped]:
    """Mappings of a process that show a part of the table. Raises: OSError where it may not be looked at.

    Files are known by inode and last name: a container has other paths, and some file systems tell other devices.
    """
    ranges: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for segment in table.segments:
        end = segment.offset_bytes + segment.rows * table.row_bytes
        file = segment.path.resolve()
        ranges.setdefault((file.stat().st_ino, file.name), []).append((segment.offset_bytes, end))
    return list(_mapped(Path(f"/proc/{process}/smaps").read_bytes(), ranges))


def _mapped(smaps: bytes, ranges: dict[tuple[int, str], list[tuple[int, int]]]) -> Iterator[Mapped]:
    shown: list[tuple[int, int]] = []
    resident = 0
    for line in smaps.split(b"\n"):
        head = line.split(b" ", 1)[0]
        if b"-" in head and not head.endswith(b":"):
            addresses, _, offset, _, inode, *name = line.split(None, 5)
            start, end = (int(part, 16) for part in addresses.split(b"-"))
            first = int(offset, 16)
            file_name = os.fsdecode(name[0]).rpartition("/")[2] if name else ""
            wanted = ranges.get((int(inode), file_name), [])
            parts = [(max(first, a), min(first + end - start, b)) for a, b in wanted]
            shown = [(start + a - first, start + b - first) for a, b in parts if a < b]
        elif shown and line.startswith(b"Rss:"):
            resident = int(line.split()[1]) << 10
        elif shown and line.startswith(b"VmFlags:"):
            flags = line.decode("ascii").split()[1:]
            advice = next((ADVICE[flag] for flag in flags if flag in ADVICE), "plain")
            for start, end in shown:
                yield Mapped(start, end, advice, resident)


def descriptors(process: int | str, table: Table) -> tuple[Counter[str], int]:
    """A process's descriptors of the table's files, `cached` and `uncached`, and its rings."""
    files = [segment.path.stat() for segment in table.segments]
    found: Counter[str] = Counter()
    rings = 0
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            if any(os.path.samestat(entry.stat(), file) for file in files):
                flags = int(Path(f"/proc/{process}/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0], 8)
                found["uncached" if flags & O_DIRECT else "cached"] += 1
            rings += str(entry.readlink()) == "anon_inode:[io_uring]"
        except OSError:
            continue  # closed meanwhile, or the descriptor of this very listing
    return found, rings


def page_out(process: int, table: Table) -> int:
    """Take the table's pages out of a process's memory, so that they can be dropped; bytes that the kernel did it for.

    Dropping pages from the cache leaves those alone that a process has mapped and touched.
    """
    try:
        descriptor = os.pidfd_open(process)
    except OSError:
        return 0
    done = 0
    try:
        for mapped in table_mappings(process, table):
            for start in range(mapped.start // _PAGE * _PAGE, mapped.end, _PIECE_BYTES):
                length = min(_PIECE_BYTES, -(-mapped.end // _PAGE) * _PAGE - start)
                vector = np.array([start, length], np.uint64)
                code = syscalls.call("process_madvise", descriptor, syscalls.address_of(vector), 1, _MADV_PAGEOUT, 0)
                done += max(0, code)
    except OSError:
        return done
    finally:
        os.close(descriptor)
    return done
