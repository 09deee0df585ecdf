"""What a measurement used: bytes of the device, page faults, memory, processor time, ours and everybody else's."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Usage:
    """The kernel's counters at one moment. Units: bytes, counts, seconds."""

    disk_bytes: int | None
    minor_faults: int
    major_faults: int
    cpu_s: float
    machine_cpu_s: float | None

    @classmethod
    def now(cls) -> Usage:
        """The counters of this process and its machine."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        return cls(_disk_bytes(), own.ru_minflt, own.ru_majflt, own.ru_utime + own.ru_stime, _machine_cpu_s())

    def until(self, later: Usage, wall_s: float) -> dict[str, Any]:
        """What happened from this moment to a later one. `other_cpu` is the cores that other processes kept busy."""
        other = None
        if self.machine_cpu_s is not None and later.machine_cpu_s is not None and wall_s > 0:
            busy = later.machine_cpu_s - self.machine_cpu_s - (later.cpu_s - self.cpu_s)
            other = max(0.0, busy) / wall_s
        known = self.disk_bytes is not None and later.disk_bytes is not None
        return {
            "disk_bytes": later.disk_bytes - self.disk_bytes if known else None,  # type: ignore[operator]
            "minor_faults": later.minor_faults - self.minor_faults,
            "major_faults": later.major_faults - self.major_faults,
            "cpu_s": later.cpu_s - self.cpu_s,
            "other_cpu": other,
        }


def _disk_bytes() -> int | None:
    try:
        content = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return int(content.partition("\nread_bytes: ")[2].partition("\n")[0])


def _machine_cpu_s() -> float | None:
    """Seconds that all cores together were busy since the start: user, nice, system, irq, softirq and stolen time."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()[1:]
    except OSError:
        return None
    busy = sum(int(fields[i]) for i in (0, 1, 2, 5, 6, 7))
    return busy / os.sysconf("SC_CLK_TCK")


def forget_peak() -> None:
    """Let the peak of resident memory start anew, where the kernel allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory() -> dict[str, int | None]:
    """Memory of this process in bytes: the peak since `forget_peak`, and what it holds now, anonymous and of files."""
    names = {"VmHWM": "peak_rss_bytes", "VmRSS": "rss_bytes", "RssAnon": "anonymous_bytes", "RssFile": "file_bytes"}
    found: dict[str, int | None] = dict.fromkeys(names.values())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name in names:
                found[names[name]] = int(value.split()[0]) * 1024
    return found


def device_facts() -> dict[str, Any]:
    """Kind of the device that JAX computes on, and its peak of memory in bytes where it keeps count."""
    import jax

    device = jax.local_devices()[0]
    statistics = device.memory_stats() if device.platform != "cpu" else None
    peak = statistics.get("peak_bytes_in_use") if statistics else None
    return {"platform": device.platform, "kind": device.device_kind, "peak_bytes": peak}
