"""The machine and the model as far as a speed depends on them. Names no host, no user and no path."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.environment import environment
from harness.measure.commits import code_digest
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf


def machine_facts(model: Path) -> dict[str, Any]:
    """Processor, memory, kernel, versions, code, and the storage that the model's file lies on."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {**environment(), **storage_facts(open_gguf(model).paths[0]), "code": code_digest(), "started": started}


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


def model_facts(model: Path, needs_model: bool) -> dict[str, Any]:
    """What identifies the file, without its folder, and what its tokens are made from.

    Raises: InputError when it cannot serve the workloads.
    """
    from fast.rows import locate_table

    with open_gguf(model) as file:
        table = locate_table(file)
        hashed = f"{file.architecture}.ple.head_vocab_sizes" in file.metadata
        facts: dict[str, Any] = {
            "file": file.paths[0].name,
            "size_bytes": file.size_bytes,
            "changed_ns": [path.stat().st_mtime_ns for path in file.paths],
            "table_type": table.type.name,
            "table_rows": table.rows,
            "table_bytes": table.size_bytes,
            "row_bytes": table.row_bytes,
            "rows_per_token": 1,
            "vocab": 0,
            "eos": 0,
            "context": 1 << 62,
        }
        if needs_model:
            from model_file.inventory import take_inventory

            if len(file.tensors) == 1:
                raise InputError(f"{model}: holds nothing but the table, expected a model: measure --workload gather:N")
            take_inventory(file, config_from(file))
        if hashed or needs_model:
            config = config_from(file)
            facts |= {"layers": config.layers, "width": config.width, "vocab": config.vocab}
            facts |= {"context": config.context, "rows_per_token": config.ple.heads, "eos": config.ple.hash.eos}
        return facts
