"""What the kernel saw of an arm's process: how it holds the table, what it read, and what of the table is in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fast.rows import Table, residency
from harness.engines.process_view import Counted, descriptors, table_mappings

_WHOLE = 0.99  # of the table's pages in memory once it is loaded: it was read as a whole
_FEW_READS = 256  # a server reads its clock and sockets too


@dataclass(frozen=True)
class ArmSight:
    """A moment of a process. in_memory: share of the table's pages in the page cache, None where it cannot be asked.

    mappings: of the table's range, by advice, with the bytes of them in the process's memory.
    """

    mappings: dict[str, int]
    descriptors: dict[str, int]
    rings: int
    counted: Counted
    in_memory: float | None


def look_at(process: int | str, table: Table) -> ArmSight | None:
    """What /proc shows of a process ("self": this one); None where it may not be looked at."""
    try:
        counted = Counted.of(process)  # before the rest, which reads files itself
        held, rings = descriptors(process, table)
        mappings: dict[str, int] = {}
        for one in table_mappings(process, table):
            mappings[one.advice] = mappings.get(one.advice, 0) + one.resident_bytes
    except (OSError, ValueError, IndexError):
        return None
    return ArmSight(mappings, dict(held), rings, counted, in_memory(table))


def in_memory(table: Table) -> float | None:
    """Share of the table's pages in memory, whoever reads it; None where it cannot be asked."""
    try:
        return residency.resident_fraction(table)
    except OSError:
        return None


@dataclass(frozen=True)
class ArmEvidence:
    """Between an arm's start and the end of its first answers. rows: those that these needed.

    loaded: share of the table's pages in memory when it was ready, before it was asked; after: when it had answered.
    """

    mappings: dict[str, int]
    descriptors: dict[str, int]
    rings: int
    read_calls: int
    read_bytes: int
    minor_faults: int
    major_faults: int
    peak_bytes: int
    before: float | None
    loaded: float | None
    after: float | None
    rows: int

    @classmethod
    def between(
        cls, started: ArmSight | None, ready: ArmSight, after: ArmSight, before: float | None, rows: int
    ) -> Any:
        """What the process holds beyond what it held before (`started`, of our own), and what the answers did."""
        held = started.mappings if started is not None else {}
        fds = started.descriptors if started is not None else {}
        return cls(
            mappings={name: size for name, size in after.mappings.items() if name not in held},
            descriptors={name: n - fds.get(name, 0) for name, n in after.descriptors.items() if n > fds.get(name, 0)},
            rings=after.rings - (started.rings if started is not None else 0),
            read_calls=after.counted.read_calls - ready.counted.read_calls,
            read_bytes=after.counted.read_bytes - ready.counted.read_bytes,
            minor_faults=after.counted.minor_faults - ready.counted.minor_faults,
            major_faults=after.counted.major_faults - ready.counted.major_faults,
            peak_bytes=after.counted.peak_bytes,
            before=before,
            loaded=ready.in_memory,
            after=after.in_memory,
            rows=rows,
        )

    @property
    def way(self) -> str:
        """How it reads the table, in words that are equal for arms that read alike."""
        parts = [f"a mapping of the table with advice {name}" for name in sorted(self.mappings)]
        parts += ["descriptors past the page cache"] if self.descriptors.get("uncached") else []
        parts += ["a ring"] if self.rings else []
        parts += ["reads of rows"] if self.read_calls > max(_FEW_READS, self.rows // 2) else []
        if self.loaded is not None:
            whole = self.loaded >= _WHOLE
            parts.append("the whole table in memory once loaded" if whole else "the table not read while loading")
        return ", ".join(parts) or "nothing of the table is held open"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**vars(self), "way": self.way}
