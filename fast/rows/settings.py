"""Runtime choices of the table readers, apart from the table's own description."""

from __future__ import annotations

from dataclasses import dataclass, field

from fast.rows import syscalls

METERING = ("none", "cheap", "full")
_AT_LEAST = {
    "queue_depth": 1, "workers": 1, "slice_reads": 1, "range_pages": 1, "advise_ranges": 1, "advise_rows": 1,
    "first_chunk_rows": 1, "chunk_rows": 1, "staging_bytes": 1, "inline_rows": 0, "cache_bytes": 0,
}  # fmt: skip


@dataclass(frozen=True)
class RowSettings:
    """How the modes work. Defaults were measured on a 2-core virtual machine; `plegate advise` measures yours.

    Units: bytes and counts as named.
    """

    queue_depth: int = 1024  # reads an io_uring batch keeps submitted; the block layer caps what the device sees
    workers: int = 32  # threads of `direct`, started when a batch has that many slices
    slice_reads: int = 256  # reads a worker of `direct` gives to the kernel at once, KernelAio's context
    inline_rows: int = 64  # batches up to this size are small: the calling thread reads them, with as little as can be
    range_pages: int = 32  # a merged page range is cut into pieces of at most this many pages
    advise_ranges: int = 1024  # ranges per process_madvise call, the kernel's limit (UIO_MAXIOV)
    advise_rows: int = 512  # rows of a prefetch run: two of them keep the device's queue of 256 full
    first_chunk_rows: int = 512  # of `auto`: what a sample of residency that misled may cost, in serial faults
    chunk_rows: int = 8192  # of `auto`: after so many rows its page faults are looked at again
    staging_bytes: int = 32 << 20  # aligned windows of the uncached modes are read in portions of this size, at least 1
    cache_bytes: int = 0  # a RowCache of this size stands in front of the mode; 0: none
    metering: str = "cheap"  # what the kernel is asked to count: "none"; "cheap": of large batches; "full": of all
    syscall: syscalls.SyscallFunction = field(default=syscalls.call, repr=False)  # replaced by tests

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}, expected at least {least}"
            for name, least in _AT_LEAST.items()
            if (value := getattr(self, name)) < least
        ]
        if self.metering not in METERING:
            problems.append(f"metering is {self.metering!r}, expected one of {', '.join(METERING)}")
        if problems:
            raise ValueError("row settings: " + "; ".join(problems))
