"""What a result depends on beside the code: machine, kernel, versions, commit. Names no user and no path."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_KEPT = {"JAX_PLATFORMS", "JAX_TRACEBACK_FILTERING", "JAX_LOG_COMPILES", "JAX_NUM_CPU_DEVICES"}
"""Variables of JAX that may come from outside; others change arithmetic, types or what may be compiled."""
_PACKAGES = ("plegate", "numpy", "jax", "jaxlib", "gguf")


def set_aside() -> list[str]:
    """Take variables that engines must not follow out of the environment, before JAX is loaded. Gives their names."""
    found = sorted(f"{name}={os.environ[name]}" for name in os.environ if name.startswith("JAX_") and name not in _KEPT)
    for name in found:
        del os.environ[name.partition("=")[0]]
    return found


def platform_problem() -> str | None:
    """What is wrong with the JAX_PLATFORMS that was asked for; None where nothing is, or JAX was not loaded."""
    asked, jax = os.environ.get("JAX_PLATFORMS"), sys.modules.get("jax")
    if not asked or jax is None:
        return None
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        found = " ".join(str(error).split()) or "no such device is here"
        return f"JAX_PLATFORMS={asked}: {found}: run it without, or with JAX_PLATFORMS=cpu"
    return None


@cache
def environment() -> dict[str, Any]:
    """Facts by name. Units: ram_bytes in bytes. What cannot be found out is None."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or None,
        "cores": os.cpu_count(),
        "ram_bytes": _ram_bytes(),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        **_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _commit() -> dict[str, Any]:
    """The commit of the source tree and whether it has uncommitted changes; None where it is no checkout."""
    root = Path(__file__).parents[1]
    try:
        if not (root / ".git").exists():
            return {"commit": None, "dirty": None}
        commit = _git(root, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
