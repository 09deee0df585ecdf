"""Runtime choices of the table readers, apart from the table's own description."""

from __future__ import annotations

from dataclasses import dataclass, field

from fast.rows import syscalls


@dataclass(frozen=True)
class RowSettings:
    """How the modes work. Defaults were measured on a 2-core virtual machine; `plegate advise` measures yours.

    Units: bytes and counts as named.
    """

    queue_depth: int = 1024  # reads an io_uring batch keeps submitted; the block layer caps what the device sees
    workers: int = 32  # threads of `direct`, started when a batch has that many slices
    slice_reads: int = 256  # reads a worker of `direct` gives to the kernel at once, KernelAio's context
    inline_rows: int = 64  # batches up to this size are read by the calling thread, no pool is woken
    range_pages: int = 32  # a merged page range is cut into pieces of at most this many pages
    advise_ranges: int = 1024  # ranges per process_madvise call, the kernel's limit (UIO_MAXIOV)
    advise_rows: int = 512  # rows of a prefetch run: two of them keep the device's queue of 256 full
    staging_bytes: int = 32 << 20  # aligned windows of the uncached modes are read in portions of this size
    syscall: syscalls.SyscallFunction = field(default=syscalls.call, repr=False)  # replaced by tests

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}, expected at least 1"
            for name in ("queue_depth", "workers", "slice_reads", "range_pages", "advise_ranges", "advise_rows")
            if (value := getattr(self, name)) < 1
        ]
        if self.inline_rows < 0:
            problems.append(f"inline_rows is {self.inline_rows}, expected at least 0")
        if self.staging_bytes < 1 << 20:
            problems.append(f"staging_bytes is {self.staging_bytes}, expected at least 1 MiB")
        if problems:
            raise ValueError("row settings: " + "; ".join(problems))
