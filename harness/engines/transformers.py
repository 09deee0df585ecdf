"""transformers' own qwen4_exp on the weights of a GGUF file, in a Python of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.engines.by_request import RequestEngine
from harness.engines.closing import Closing
from harness.engines.protocol import LOGITS
from harness.errors import CannotRun
from model_file.config import config_from
from model_file.gguf_file import GgufFile

VARIABLE = "PLEGATE_TRANSFORMERS_PYTHON"


@dataclass(frozen=True)
class Answer:
    """One request. Units: seconds. `logits` float32 [t, v] when asked for."""

    tokens: list[int]
    margins: list[float]
    prompt_s: float
    decode_s: float
    logits: npt.NDArray[np.float32] | None


class TransformersEngine(Closing):
    """A running worker. Use it as a context manager: leaving it ends the process.

    python: one with torch, transformers and gguf; left out, the environment's choice or this one.
    Raises: CannotRun when that Python lacks something or the model cannot be built.
    """

    def __init__(self, model: Path, threads: int, python: Path | None = None) -> None:
        program = str(python or os.environ.get(VARIABLE) or sys.executable)
        root = Path(__file__).resolve().parents[2]
        environment = dict(os.environ, PYTHONPATH=str(root), OMP_NUM_THREADS=str(threads))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        command = [program, "-m", "harness.engines.transformers_worker", str(model), str(threads)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, text=True
            )
        except OSError as error:
            self._errors.close()
            raise CannotRun(f"transformers: {program} cannot be run: {error.strerror}: check {VARIABLE}") from error
        try:
            self.versions: list[str] = self._line()["ready"]
        except BaseException:
            self.close()
            raise

    def open(self, model: Path) -> None:
        """Take another model in place of this one. Raises: CannotRun where it cannot be built; this one stays then."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"open": str(model)}) + "\n")
        self._process.stdin.flush()
        if why := self._line().get("refused"):
            raise CannotRun(f"transformers: {model} is refused: {why}")

    def complete(self, tokens: Sequence[int], count: int, with_logits: bool = False) -> Answer:
        """Feed token ids and continue greedily by `count` tokens."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "logits.npy"
            request = {"tokens": [int(token) for token in tokens], "count": count}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request | ({"logits": str(file)} if with_logits else {})) + "\n")
            self._process.stdin.flush()
            answer = self._line()
            logits = np.load(file) if with_logits else None
        return Answer(answer["tokens"], answer["margins"], answer["prompt_s"], answer["decode_s"], logits)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        tail = b"\n".join(self._errors.read().splitlines()[-8:]).decode("utf-8", "replace")
        raise CannotRun(
            f"transformers: the worker ended with {self._process.returncode}:\n{tail}\n"
            f"It needs a Python with torch, transformers and gguf: name one with --python or {VARIABLE}"
        )


def load(model: GgufFile, *_: object) -> RequestEngine:
    """A worker over the model's file, on every core; the whole table is in its memory."""
    worker = TransformersEngine(model.paths[0], os.cpu_count() or 1)
    engine = RequestEngine("transformers", config_from(model), worker.complete, worker.close)
    engine.abilities |= {LOGITS}
    return engine
