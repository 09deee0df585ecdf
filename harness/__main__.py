"""Start of `plegate`: whoever ends it, it ends properly, while commands and NumPy are still loading too."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

from harness import supervise


def main() -> None:
    """Entry point of the `plegate` command."""
    _open_streams()
    supervise.start()
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # A signal that is ignored stays ignored: whoever started this wants it so (`nohup`, a script's `&`).
    normal = {number: found for number in ends if (found := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in normal:
        signal.signal(number, _stop_loading)
    from harness.cli import main as start

    for number, found in normal.items():
        signal.signal(number, found)
    start()


def _open_streams() -> None:
    """See that descriptors 0 to 2 exist: a model or a result would else be opened as one, and be printed into.

    Where standard output is closed, results go to standard error.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        os.dup2(2, 1)
        sys.stdout = sys.stderr


def _stop_loading(number: int, _: Any) -> NoReturn:
    """No exception: what is being loaded could swallow it, and there is nothing yet to clean up."""
    os.write(2, b"plegate: interrupted: stopped while starting\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
