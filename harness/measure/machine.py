"""The machine as far as a speed depends on it. Names no host, no user and no path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness.environment import environment
from harness.measure.commits import code_digest


def machine_facts(model: Path) -> dict[str, Any]:
    """Processor, memory, kernel, versions, code, and the storage that the model's file lies on."""
    return {**environment(), **storage_facts(model), "code": code_digest()}


def storage_facts(path: Path) -> dict[str, Any]:
    """The file system's type and the kind of its disk, as the kernel names them; None where it does not say."""
    number = path.stat().st_dev
    major, minor = os.major(number), os.minor(number)
    facts: dict[str, Any] = {"file_system": _file_system(f"{major}:{minor}"), "disk": None, "disk_rotates": None}
    node = Path(f"/sys/dev/block/{major}:{minor}")
    if not node.exists():
        return facts
    disk = node.resolve()
    if not (disk / "queue").is_dir():
        disk = disk.parent  # a partition: the queue is its disk's
    facts["disk"] = _text(disk / "device" / "model") or disk.name.rstrip("0123456789")
    rotates = _text(disk / "queue" / "rotational")
    facts["disk_rotates"] = None if rotates is None else rotates == "1"
    read_ahead = _text(disk / "queue" / "read_ahead_kb")
    facts["read_ahead_bytes"] = None if read_ahead is None else int(read_ahead) * 1024
    return facts


def _file_system(device: str) -> str | None:
    content = _text(Path("/proc/self/mountinfo"))
    for line in (content or "").splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == device and rest:
            return rest.split()[0]
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
