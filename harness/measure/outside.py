"""Another engine as an arm: llama.cpp's server or transformers, on the same file and ids, by its own clock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from harness.engines.arms import SERVERS, Arm
from harness.engines.serving import Adapter, Room, connect
from harness.engines.transformers import TransformersEngine
from harness.errors import CannotRun
from harness.measure.process import ProcessFailed
from model_file.errors import InputError

_REMEMBERED = 16  # llama-server goes back to a checkpoint so many tokens before the end of what it remembers
_NOTE = "an outside engine, by its own clock: how it reads the table, and what of it was in memory, is not proven"


class Outside:
    """One engine, started; answers the same orders as an arm's process of ours. Warm only."""

    def __init__(self, arm: Arm, model: Path, context: int) -> None:
        self._arm, self._stack = arm, ExitStack()
        self.spec: dict[str, Any] = {}
        chosen = arm.engine_settings
        started = perf_counter()
        self._llama: Adapter | None = None
        self._transformers: TransformersEngine | None = None
        if arm.mode in SERVERS:
            self._llama = connect(arm, Room(model, context))
            self._stack.enter_context(self._llama.server)
        else:
            threads = chosen.get("threads") or len(os.sched_getaffinity(0))
            program = Path(chosen["program"]) if "program" in chosen else None
            self._transformers = self._stack.enter_context(TransformersEngine(model, threads, program))
        self._opened_s = perf_counter() - started

    def opened(self) -> dict[str, Any]:
        """What is running."""
        return {"opened_s": self._opened_s}

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run the order twice, and report the second time. Raises: ProcessFailed."""
        began = perf_counter()
        try:
            self._run(order)
            seconds, first = self._run(order)
        except (CannotRun, InputError, OSError, KeyError, ValueError) as error:
            raise ProcessFailed(f"failed: {' '.join(str(error).split())}") from None
        count = order["count"]
        result: dict[str, Any] = {"valid": seconds > 0, "reasons": [] if seconds > 0 else ["no-time: it took no time"]}
        result |= {"notes": [_NOTE], "seconds": seconds, "tokens_per_s": count / seconds if seconds > 0 else None}
        result |= {"steps": [[count, seconds, 0.0]], "exposed_wait_s": None, "compute_s": None, "residency": {}}
        result |= {"effective_mode": self._arm.mode, "first_token": first, "gather": {}, "memory": {}}
        nothing = ("total", "unique", "unique_ratio", "pages", "row_bytes", "table_pages")
        result |= {"rows": dict.fromkeys(nothing), "used": {"disk_bytes": None}}
        return result | {"process": {"whole_s": perf_counter() - began, "other_cpu": None}}

    def close(self) -> None:
        """End its process."""
        self._stack.close()

    def _run(self, order: dict[str, Any]) -> tuple[float, int | None]:
        """Seconds of the work, and the first token that it answered with, which shows a wrong engine."""
        decode = order["kind"] == "decode"
        count = order["count"] if decode else 1
        before, fed = order["context"], order["fed"]
        if self._llama is None:
            assert self._transformers is not None
            if before:
                raise CannotRun("transformers is measured at depth 0 only: its selection loops over every query")
            answer = self._transformers.complete(fed, count)
            return answer.decode_s if decode else answer.prompt_s, answer.tokens[0]
        return self._of_llama(self._llama, before, fed, count, decode)

    def _of_llama(
        self, server: Adapter, before: Sequence[int], fed: Sequence[int], count: int, decode: bool
    ) -> tuple[float, int | None]:
        if before:
            server.complete(before, 1, remember=True)
        done = server.complete([*before, *fed], count, remember=bool(before))
        if not len(fed) <= done.prompt_tokens <= len(fed) + _REMEMBERED:
            raise CannotRun(
                f"llama-server computed {done.prompt_tokens} tokens of the prompt, expected the {len(fed)} after depth "
                f"{len(before)}: it remembered more or less than that depth"
            )
        prompt_s = done.prompt_s * len(fed) / done.prompt_tokens
        return done.decode_s if decode else prompt_s, done.tokens[0]
