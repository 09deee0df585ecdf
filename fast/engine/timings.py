"""Where an engine's time goes: compiling, computing, reading rows, and waiting for rows with nothing to compute."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import jax

KEPT_STEPS = 65_536
_COMPILED = "/jax/core/compile/backend_compile_duration"
_of_thread = threading.local()


def _count_program(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _COMPILED:
        _of_thread.programs = programs_compiled() + 1
        _of_thread.seconds = seconds_compiled() + duration_secs


jax.monitoring.register_event_duration_secs_listener(_count_program)


def programs_compiled() -> int:
    """Programs that this thread has compiled so far, or taken from the persistent cache, for whomever."""
    return getattr(_of_thread, "programs", 0)


def seconds_compiled() -> float:
    """Seconds that this thread has compiled so far."""
    return getattr(_of_thread, "seconds", 0.0)


@dataclass(frozen=True)
class Step:
    """One chunk of prefill, or one step of decode: a token, and the guesses after it that were accepted.

    Units: seconds. gather_s: reading its rows. exposed_wait_s: the part of that during which nothing was computed.
    compute_s: from handing the program its inputs to the result. compile_s: of this step alone, not part of compute_s.
    """

    tokens: int
    decode: bool
    gather_s: float
    exposed_wait_s: float
    compute_s: float
    compile_s: float = 0.0


@dataclass
class Timings:
    """Sums over an engine's steps since it was made or since `reset`, and the last steps themselves. Units: seconds.

    drafted: guesses of the draft head that were checked, accepted: those that were the trunk's own choice.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_compute_s: float = 0.0
    decode_compute_s: float = 0.0
    gather_s: float = 0.0
    exposed_wait_s: float = 0.0
    compile_s: float = 0.0
    drafted: int = 0
    accepted: int = 0
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS), repr=False)

    def add(self, step: Step) -> None:
        """Count one step."""
        if step.decode:
            self.decode_tokens += step.tokens
            self.decode_compute_s += step.compute_s
        else:
            self.prefill_tokens += step.tokens
            self.prefill_compute_s += step.compute_s
        self.gather_s += step.gather_s
        self.exposed_wait_s += step.exposed_wait_s
        self.compile_s += step.compile_s
        self.steps.append(step)

    def reset(self) -> None:
        """Forget everything: what follows is measured afresh."""
        self.__init__()  # type: ignore[misc]

    def as_dict(self) -> dict[str, Any]:
        """The sums and every kept step as plain values, for JSON."""
        sums = {name: getattr(self, name) for name in _SUMS}
        return {**sums, "steps": [vars(step) for step in self.steps]}


_SUMS = (
    "prefill_tokens",
    "decode_tokens",
    "prefill_compute_s",
    "decode_compute_s",
    "gather_s",
    "exposed_wait_s",
    "compile_s",
    "drafted",
    "accepted",
)
