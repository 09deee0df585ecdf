"""A limit on the memory of a cell, page cache included, so that a table is larger than memory: cgroup v2, v1, or less.

A limit on a process (rlimit) does not count the page cache: where there is no cgroup the result says what was not
limited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Limit:
    """How a cell's memory is limited. kind: cgroup2, cgroup1 or rlimit. problem: why it is not a cgroup."""

    kind: str
    size_bytes: int
    group: Path | None = None
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """What the process is started with, as plain values."""
        group = str(self.group) if self.group else None
        return {"kind": self.kind, "size_bytes": self.size_bytes, "group": group, "problem": self.problem}


@contextmanager
def limited(size_bytes: int | None, root: Path = CGROUP_ROOT) -> Iterator[Limit | None]:
    """A cgroup of that size for one cell, removed afterwards; an rlimit where none can be made; None for no limit."""
    if size_bytes is None:
        yield None
        return
    name = f"plegate-{os.getpid()}-{time.monotonic_ns()}"
    problems = []
    for kind, parent, file in _places(root):
        group = parent / name
        try:
            group.mkdir()
        except OSError as error:
            problems.append(f"{kind}: no group can be made in {parent}: {error.strerror}")
            continue
        try:
            (group / file).write_text(str(size_bytes), encoding="ascii")
            if not (group / "cgroup.procs").exists():
                raise FileNotFoundError(2, "No cgroup.procs")
        except OSError as error:
            problems.append(f"{kind}: {file} cannot be set: {error.strerror}")
            _remove(group)
            continue
        try:
            yield Limit(kind, size_bytes, group)
        finally:
            _remove(group)
        return
    problem = "; ".join(problems) or f"{root} holds no memory controller"
    yield Limit("rlimit", size_bytes, None, problem)


def _places(root: Path) -> Iterator[tuple[str, Path, str]]:
    """Where a group may be made: cgroup v2 beside or below our own, then v1."""
    own = _own_groups()
    for mount in (root, root / "unified"):
        controllers = mount / "cgroup.controllers"
        with suppress(OSError):
            if "memory" in controllers.read_text(encoding="ascii").split():
                yield "cgroup2", (mount / own.get("", "").lstrip("/")).parent, "memory.max"
                yield "cgroup2", mount, "memory.max"
    if (root / "memory").is_dir():
        yield "cgroup1", root / "memory", "memory.limit_in_bytes"
        yield "cgroup1", root / "memory" / own.get("memory", "").lstrip("/"), "memory.limit_in_bytes"


def _own_groups() -> dict[str, str]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    groups: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def _remove(group: Path) -> None:
    """A group can be removed once its last process is gone, which the kernel may notice a moment later."""
    for _ in range(50):
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
