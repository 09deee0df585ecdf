"""A server as an arm: its program looked at, started, asked, and always stopped; or one that runs already.

What a kind of server is asked is its adapter's: `llama_server.py`, `openai.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Protocol

from harness.engines.arms import Arm
from harness.engines.closing import Closing
from harness.engines.program import ProgramFacts, inspect_program
from harness.engines.protocol import Completion
from harness.errors import CannotRun
from model_file.errors import InputError

KEY_VARIABLE = "PLEGATE_API_KEY"
START_LIMIT_S = 1800.0
ANSWER_LIMIT_S = 3600.0
LOG_BYTES = 64 << 10  # of a log, its end is kept with the result
_OURS = ("--host", "--port")
_LAST_LINES = 6
_KEEPER = Path(__file__).with_name("keeper.py")
_ADAPTERS = {"llama-server": "llama_server", "openai": "openai"}


@dataclass(frozen=True)
class Room:
    """What a server is started for. Units: context in tokens of each slot."""

    model: Path
    context: int
    slots: int = 1
    start_limit_s: float = START_LIMIT_S
    answer_limit_s: float = ANSWER_LIMIT_S
    tell: Callable[[str], None] = lambda _: None


class Server(Closing):
    """A server that answers. Use it as a context manager: leaving it ends what was started here, children too.

    facts: what of its program is known; None of one that ran already. process_id: None where it is not visible.
    Raises: CannotRun, with its last lines, where it does not come up.
    """

    def __init__(self, arm: Arm, room: Room, facts: ProgramFacts | None = None) -> None:
        self.name, self.room, self.facts = arm.name, room, facts
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._keeper: subprocess.Popen[bytes] | None = None
        self.command: list[str] = []
        began = time.monotonic()
        try:
            if arm.address:
                self.address = arm.address
                self._wait_until_ready(began)
                self.process_id = listening_process(self.address)
            else:
                self._start(arm)
                self._wait_until_ready(began)
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - began

    def _start(self, arm: Arm) -> None:
        self.facts = self.facts or inspect_program(arm)
        port = _free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.folder = Path(tempfile.gettempdir()) / f"plegate-server-{os.getpid()}-{port}"  # made by the keeper
        self.command = command_of(arm, self.facts, self.room, port, self.folder)
        self._keeper = subprocess.Popen(
            [sys.executable, "-P", "-S", str(_KEEPER), str(self.folder), *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self.facts.environment,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        self.process_id = int(self._keeper.stdout.readline() or 0) or None

    def _wait_until_ready(self, began: float) -> None:
        limit_s = self.room.start_limit_s
        while (waited_s := time.monotonic() - began) < limit_s:
            if self._keeper is not None and self._keeper.poll() is not None:
                raise CannotRun(f"{self.name}: {self._how_it_ended()} while it started{self._last()}")
            try:
                with self._open("/health", None, 5) as answer:
                    answer.read()
                return
            except (OSError, ValueError):  # not listening yet, or 503: still loading
                lines = self.log().splitlines()
                self.room.tell(
                    f"{self.name}: starting, {waited_s:.0f} s of at most {limit_s:.0f}: {lines[-1] if lines else ''}"
                )
                time.sleep(0.05)
                if self._keeper is None and waited_s > 5:
                    raise CannotRun(f"{self.name}: nothing answers at {self.address}: is the server running?") from None
        raise CannotRun(f"{self.name}: was not ready after {limit_s:.0f} s (--start-limit){self._last()}")

    def ask(self, path: str, body: dict[str, Any] | None = None, limit_s: float | None = None) -> Any:
        """The answer to a request. Raises: CannotRun saying what went wrong, with the server's last lines."""
        limit_s = self.room.answer_limit_s if limit_s is None else limit_s
        try:
            with self._open(path, body, limit_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            found = " ".join(error.read(400).decode("utf-8", "replace").split())
            raise CannotRun(f"{self.name}: {path} was answered with {error.code}: {found}{self._last()}") from None
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
                raise CannotRun(
                    f"{self.name}: no answer within {limit_s:.0f} s (--answer-limit){self._last()}"
                ) from None
            ended = self._how_it_ended() if self._gone() else " ".join(str(error).split()) or type(error).__name__
            raise CannotRun(f"{self.name}: {ended} while it was asked{self._last()}") from None

    def _open(self, path: str, body: dict[str, Any] | None, limit_s: float) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data=data, headers=headers)
        return urllib.request.urlopen(request, timeout=limit_s)

    def _gone(self) -> bool:
        """Whether it has ended; a connection that broke is given a moment to show it."""
        if self._keeper is None:
            return False
        try:
            self._keeper.wait(2)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _how_it_ended(self) -> str:
        code = self._keeper.returncode if self._keeper is not None else 0
        names = {128 + number: number.name for number in signal.Signals}
        return f"its process was ended by {names[code]}" if code in names else f"its process ended with {code}"

    def log(self) -> str:
        """The end of what it printed."""
        if self._log.closed:
            return self._kept
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), LOG_BYTES, max(0, size - LOG_BYTES)).decode("utf-8", "replace")

    def _last(self) -> str:
        lines = [line.strip() for line in self.log().splitlines() if line.strip()]
        return "".join(f"\n  {line}" for line in lines[-_LAST_LINES:])

    def close(self) -> None:
        """End what was started here, with its children; what it printed can still be asked for."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None and self._keeper.stdout is not None
            try:
                self._keeper.stdin.close()
                self._keeper.wait(30)
            finally:
                self._keeper.kill()
                self._keeper.wait()
                self._keeper.stdout.close()
        if not self._log.closed:
            self._kept = self.log()
            self._log.close()


class Adapter(Protocol):
    """What every kind of server can be asked; the server itself is `server`."""

    server: Server

    def complete(
        self, ids: Sequence[int], count: int, top: int = 0, remember: bool = False, slot: int = -1
    ) -> Completion:
        """Greedy continuation by `count` tokens, EOS or not, with the `top` best logprobs of every step.

        remember: keep and reuse what earlier requests computed. Raises: CannotRun, for nonsense too.
        """

    def tokenize(self, text: str) -> list[int]:
        """The ids that it makes of a text, no special tokens added."""


def checked(
    done: Completion, name: str, ids: Sequence[int], count: int, vocab: int, remember: bool = False
) -> Completion:
    """The answer, if it is one to what was asked. Raises: CannotRun saying what is nonsense about it."""
    written = len(done.tokens) if done.written is None or done.tokens else done.written
    if written != count:
        raise CannotRun(f"{name}: answered {written} tokens, expected the {count} that were asked for")
    if (wrong := next((token for token in done.tokens if not 0 <= token < vocab), None)) is not None:
        raise CannotRun(f"{name}: answered with id {wrong}, expected 0..{vocab - 1}, the model's vocabulary")
    told = done.prompt_tokens + done.cached_tokens
    if told != len(ids):
        raise CannotRun(f"{name}: says that its prompt had {told} tokens, expected the {len(ids)} that were sent")
    if done.cached_tokens and not remember and done.written is None:
        raise CannotRun(f"{name}: took {done.cached_tokens} tokens from its cache, expected none: it was asked not to")
    return done


def connect(arm: Arm, room: Room, facts: ProgramFacts | None = None) -> Adapter:
    """The arm's server, started where it is a program, behind the adapter of its kind. Raises: CannotRun."""
    adapter: Adapter = import_module(f"harness.engines.{_ADAPTERS[arm.mode]}").Adapter(Server(arm, room, facts))
    return adapter


def command_of(arm: Arm, facts: ProgramFacts, room: Room, port: int, folder: Path) -> list[str]:
    """The effective command line: what the arm does not say itself is the model, one slot, and room for the context.

    Raises: InputError for arguments that plegate must choose.
    """
    words = arm.words[1:]
    if mine := next((word for word in words if word in _OURS), None):
        raise InputError(
            f"--arm {arm.name}: {mine} is chosen by plegate: leave it out, or name the address of a server"
        )
    ours = ["--host", "127.0.0.1", "--port", str(port)]
    if arm.mode == "llama-server":
        slots = next((int(b) for a, b in pairwise(words) if a in ("-np", "--parallel")), room.slots)
        ours += [] if {"-np", "--parallel"} & {*words} else ["-np", str(slots)]
        ours += [] if {"-c", "--ctx-size"} & {*words} else ["-c", str(slots * room.context)]
        ours += ["--slot-save-path", str(folder)] if room.slots > 1 and "--slot-save-path" not in words else []
    model = [] if facts.names_model(words) else ["-m", str(room.model)]
    return [str(facts.program), *model, *ours, *words]


def listening_process(address: str) -> int | None:
    """The process that listens at an address of this machine, by /proc; None where it is not visible (a container)."""
    port = address.rpartition(":")[2].split("/")[0]
    wanted = f":{int(port):04X}" if port.isdecimal() else None
    try:
        lines = [
            line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
        ]
    except OSError:
        return None
    sockets = {f"socket:[{line[9]}]" for line in lines if wanted and line[1].endswith(wanted) and line[3] == "0A"}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(entry) in sockets for entry in folder.iterdir()):  # noqa: PTH115
                return int(folder.parent.name)
        except OSError:
            continue
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
