"""The most memory of its own that this process has had: anonymous pages, without files that it maps."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

EVERY_S = 0.05


class OwnMemory:
    """Looks at it in a thread, because the kernel keeps no such peak; `peak_bytes` is what was seen, or 0.

    Source: RssAnon of /proc/self/status.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.peak_bytes = max(self.peak_bytes, own_bytes())


def own_bytes() -> int:
    """Anonymous memory of this process now."""
    try:
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)
