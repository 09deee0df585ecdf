"""The machine key: runs are compared only when everything that a speed hangs on, apart from the code, is the same."""

from __future__ import annotations

import hashlib
import re
from typing import Any

# What belongs to the key, with how it is spelled in messages. No host name, no user, no path.
FACTS = {
    "cpu": "processor",
    "cores": "cores",
    "ram_gib": "memory in GiB, rounded",
    "kernel": "kernel",
    "file_system": "file system",
    "disk": "disk",
    "device": "computing device",
    "jax": "jax version",
}


def key_facts(machine: dict[str, Any], device: str | None) -> dict[str, Any]:
    """The facts of the key, from `harness.measure.machine.machine_facts` and the kind of the computing device."""
    ram = machine.get("ram_bytes")
    return {
        "cpu": machine.get("cpu"),
        "cores": machine.get("cores"),
        "ram_gib": round(ram / 2**30) if ram else None,
        "kernel": machine.get("kernel"),
        "file_system": machine.get("file_system"),
        "disk": machine.get("disk"),
        "device": device,
        "jax": machine.get("versions", {}).get("jax"),
    }


def machine_key(facts: dict[str, Any]) -> str:
    """A name for a folder: a few words to recognise it by, and a digest of all the facts."""
    text = "\n".join(f"{name}={facts.get(name)}" for name in FACTS)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    words = [
        facts.get("cpu") or "cpu",
        f"{facts.get('cores')}c",
        f"{facts.get('ram_gib')}g",
        facts.get("device") or "none",
    ]
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, words)).lower()).strip("-")
    return f"{name[:60]}-{digest}"


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What keeps two machines from being compared, a line each; none when their keys are the same."""
    return [
        f"{label}: {one.get(name)} and {other.get(name)}"
        for name, label in FACTS.items()
        if one.get(name) != other.get(name)
    ]
