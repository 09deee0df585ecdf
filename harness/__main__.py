"""Start of `plegate`: Ctrl-C ends it properly from the first moment on, while commands and NumPy are still loading."""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from harness import supervise


def main() -> None:
    """Entry point of the `plegate` command."""
    supervise.start()
    normal = signal.getsignal(signal.SIGINT)
    if normal is signal.default_int_handler:  # otherwise whoever started it wants Ctrl-C ignored
        signal.signal(signal.SIGINT, _stop_loading)
    from harness.cli import main as start

    signal.signal(signal.SIGINT, normal)
    start()


def _stop_loading(*_: Any) -> NoReturn:
    """No exception: what is being loaded could swallow it, and there is nothing yet to clean up."""
    os.write(2, b"plegate: interrupted: stopped while starting\n")
    os._exit(130)


if __name__ == "__main__":
    main()
