"""An arm's process as its run sees it: started with a description, asked for blocks over a pipe, ended with the run."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OPEN_LIMIT_S, BLOCK_LIMIT_S = 1800.0, 1800.0
_FOLDER = Path(__file__).parent / "worker"
# By its folder, under a name that no tree has: another commit's `harness` may be on the path.
_START = """
import importlib.util, sys
from pathlib import Path
folder = Path(sys.argv[1])
search = {"submodule_search_locations": [str(folder)]}
spec = importlib.util.spec_from_file_location("arm_worker", folder / "__init__.py", **search)
sys.modules["arm_worker"] = importlib.util.module_from_spec(spec)
from arm_worker.session import main
sys.exit(main(int(sys.argv[2])))
"""


class ProcessFailed(Exception):
    """An arm's process gave no answer; the message begins with a word for reports: killed, failed or timeout."""


class Process:
    """The process of one arm. `opened` waits until it is ready, so that several can be started at once.

    Must be started by the main thread: the kernel ends the process with the thread that started it.
    """

    def __init__(self, spec: dict[str, Any], root: Path) -> None:
        self.spec = spec
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        kept = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *kept])}
        command = [sys.executable, "-c", _START, str(_FOLDER), str(os.getpid())]
        self._child = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self.pid = self._child.pid
        self._send(spec)

    def opened(self) -> dict[str, Any]:
        """Facts of what was opened. Raises: ProcessFailed."""
        return self._answer(OPEN_LIMIT_S)

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """The result of one block. Raises: ProcessFailed."""
        self._send(order)
        return self._answer(BLOCK_LIMIT_S)

    def close(self) -> None:
        """End the process; at once where it does not end by itself."""
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.close()
            self._child.wait(10)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            pass
        finally:
            self._child.kill()
            self._child.wait()
            self._child.stdout.close()
            self._errors.close()

    def _send(self, content: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(content).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: `_answer` says how

    def _answer(self, limit_s: float) -> dict[str, Any]:
        stream = self._child.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], limit_s)
        if not ready:
            self._child.kill()
            raise ProcessFailed(f"timeout: it took more than {limit_s:.0f} s")
        line = stream.readline()
        if not line.endswith(b"\n"):
            raise ProcessFailed(self._how_it_ended())
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise ProcessFailed(f"failed: {answer['failed']}")
        return answer

    def _how_it_ended(self) -> str:
        code = self._child.wait()
        if code < 0:
            name = signal.Signals(-code).name
            limit = self.spec.get("limit")
            hint = ""
            if limit and name == "SIGKILL":
                hint = f": it needed more than the limit of {limit['size_bytes']} bytes"
            return f"killed: its process was ended by {name}{hint}"
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").splitlines()
        return f"failed: its process ended with {code}: {_last(lines)}"


def _last(lines: Sequence[str]) -> str:
    return " | ".join([line for line in lines if line.strip()][-3:])
