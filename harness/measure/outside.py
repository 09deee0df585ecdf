"""Another engine as an arm: a server program, a running one, or transformers, on the same file and ids, by its clock.

A server program is measured cold too: it is started, warmed up on other ids and filled to the depth; then its mapping
of the table is paged out, the table dropped from the page cache, and that is verified. What the device then read for
the process must cover the rows. A server that has read the whole table while loading is never cold: after the eviction
was tried its cells are what they are, and are named `loaded`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fast.rows import locate_table, residency
from fast.rows.resident import available_bytes
from harness.engines.arms import SERVERS, Arm
from harness.engines.process_view import Counted, descriptors, page_out
from harness.engines.protocol import Completion
from harness.engines.serving import Adapter, Room, checked, connect
from harness.engines.transformers import TransformersEngine
from harness.errors import CannotRun
from harness.measure.cells import COLD
from harness.measure.process import ProcessFailed
from harness.measure.worker import proof, tree
from harness.measure.worker.proof import LOADED
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf

_WHOLE = 0.99  # of the table in memory once a server is ready: it was read as a whole
_REMEMBERED = 16  # llama-server goes back to a checkpoint so many tokens before the end of what it remembers
_FEW = 24  # tokens of the warm-up
_NOTE = "an outside engine, by its own clock"
_UNSEEN = f"{_NOTE}: how it reads the table, and what of it was in memory, is not proven"
_KERNEL = proof.Kernel()
PAGE_OUTS = 3
"""Pages that a process touched last wait in lists of its processor, where the kernel pages nothing out; an attempt to
drop them empties these lists, and the next paging out finds them."""


class Outside:
    """One engine, started; answers the same orders as an arm's process of ours."""

    def __init__(self, arm: Arm, model: Path, context: int) -> None:
        self._arm, self._stack = arm, ExitStack()
        self.spec: dict[str, Any] = {}
        self._room = Room(model, context)
        began = perf_counter()
        self._transformers: TransformersEngine | None = None
        self._server: Adapter | None = None
        self._loaded = False
        if arm.mode in SERVERS:
            opened = self._stack.enter_context(open_gguf(model))
            self._table, self._config = locate_table(opened), config_from(opened)
            self._start()
        else:
            chosen = arm.engine_settings
            threads = chosen.get("threads") or len(os.sched_getaffinity(0))
            program = Path(chosen["program"]) if "program" in chosen else None
            self._transformers = self._stack.enter_context(TransformersEngine(model, threads, program))
        self._opened_s = perf_counter() - began

    def _start(self) -> None:
        if self._arm.words:
            residency.evict(self._table)
        self._server = connect(self._arm, self._room)
        self._own = self._stack.enter_context(ExitStack())
        self._own.enter_context(self._server.server)
        self._loaded = bool(self._arm.words) and residency.resident_fraction(self._table) >= _WHOLE

    def opened(self) -> dict[str, Any]:
        """What is running."""
        facts: dict[str, Any] = {"opened_s": self._opened_s}
        if self._server is not None:
            server = self._server.server
            facts["server"] = {"command": server.command or [server.address], "log": server.log()[-2000:]}
            if (known := server.facts) is not None:
                about = {"version": known.version, "sha256": known.sha256, "libraries_sha256": known.libraries}
                facts["server"] |= about
        return facts

    def measure(self, order: dict[str, Any]) -> dict[str, Any]:
        """The result of one block. Raises: ProcessFailed."""
        began = perf_counter()
        try:
            if self._transformers is not None:
                result = self._of_transformers(self._transformers, order)
            else:
                result = self._cold(order) if order["state"] == COLD else self._warm(order)
        except (CannotRun, InputError, OSError, KeyError, ValueError) as error:
            raise ProcessFailed(f"failed: {' '.join(str(error).split())}") from None
        return result | {"process": {"whole_s": perf_counter() - began, "other_cpu": None}}

    def close(self) -> None:
        """End its process."""
        self._stack.close()

    def _cold(self, order: dict[str, Any]) -> dict[str, Any]:
        """Warm up, go to the depth, evict, prove, measure, prove again; started anew once where eviction fails."""
        for attempt in (1, 2):
            assert self._server is not None
            self._complete(order["warm_up"][:_FEW], 1, False)
            self._go_to(order)
            proven = proof.Proof(COLD, reopened=attempt > 1)
            process = self._server.server.process_id
            paged_out = 0
            for _ in range(PAGE_OUTS):
                paged_out += page_out(process, self._table) if process is not None else 0
                eviction = residency.make_cold(self._table, order["drop_caches"])
                if eviction.cold:
                    break
            proven.before, proven.attempts = residency.resident_fraction(self._table), eviction.attempts
            proven.method = f"{paged_out} bytes paged out, {eviction.method}"
            if eviction.cold or self._loaded or attempt == 2:
                break
            self._own.close()
            self._start()
        proven.holes = proof.hole_share(self._table)
        if self._loaded:
            proven.state = LOADED
        elif not proven.before <= residency.COLD_FRACTION:
            proven.reasons.append(
                f"eviction-failed: {proven.before:.1%} of the table's pages were still in memory after the server's "
                f"mapping was paged out ({proven.method}), expected at most {residency.COLD_FRACTION:.0%}"
            )
        return self._measured(order, proven)

    def _warm(self, order: dict[str, Any]) -> dict[str, Any]:
        """The same order twice, the second time counts."""
        self._go_to(order)
        done = self._ask(order)
        proven = proof.make_warm(self._table, self._ids(order, done), _KERNEL)
        self._go_to(order)
        return self._measured(order, proven)

    def _measured(self, order: dict[str, Any], proven: proof.Proof) -> dict[str, Any]:
        assert self._server is not None
        process = self._server.server.process_id
        before, available = _counted(process), available_bytes()
        done = self._ask(order)
        after, lowest = _counted(process), available_bytes()
        ids = self._ids(order, done)
        pages = int(tree.count_pages(self._table, np.unique(ids)))
        disk = after.read_bytes - before.read_bytes if before and after else None
        way = "direct-uncached" if process is not None and descriptors(process, self._table)[0]["uncached"] else "mmap"
        if proven.state != LOADED:
            proof.check_afterwards(proven, self._table, ids, pages, disk, way, _KERNEL)
        else:
            proven.after = residency.resident_fraction(self._table)
        decode = order["kind"] == "decode"
        seconds = done.decode_s if decode else done.prompt_s * len(order["fed"]) / max(1, done.prompt_tokens)
        result = self._result(order, seconds, done.tokens[0] if decode and done.tokens else None, proven.reasons)
        unique = int(np.unique(ids).size)
        result["rows"] = {
            "total": int(ids.size), "unique": unique, "unique_ratio": unique / ids.size, "pages": pages,
            "row_bytes": self._table.row_bytes, "table_pages": self._table.pages(),
        }  # fmt: skip
        if before and after:
            result["used"] = {
                "disk_bytes": disk,
                "major_faults": after.major_faults - before.major_faults,
                "minor_faults": after.minor_faults - before.minor_faults,
            }
            result["memory"] = {"peak_rss_bytes": after.peak_bytes, "available_bytes": min(available or 0, lowest or 0)}
        result["notes"] = [_UNSEEN] if process is None else [_NOTE]
        if proven.state == LOADED:
            result["notes"].append(
                f"{LOADED}: {self._arm.name} has read the whole table while it loaded: not cold, measured as it is "
                "after the eviction was tried"
            )
        result["drafted"], result["accepted"] = done.drafted, done.accepted
        return result | {"residency": asdict(proven), "effective_mode": LOADED if self._loaded else self._arm.mode}

    def _of_transformers(self, engine: TransformersEngine, order: dict[str, Any]) -> dict[str, Any]:
        if order["context"]:
            raise CannotRun("transformers is measured at depth 0 only: its selection loops over every query")
        decode = order["kind"] == "decode"
        count = order["count"] if decode else 1
        engine.complete(order["fed"], count)
        answer = engine.complete(order["fed"], count)
        return self._result(order, answer.decode_s if decode else answer.prompt_s, answer.tokens[0], [])

    def _result(self, order: dict[str, Any], seconds: float, first: int | None, reasons: list[str]) -> dict[str, Any]:
        reasons = [*reasons, *([] if seconds > 0 else ["no-time: it took no time"])]
        nothing = ("total", "unique", "unique_ratio", "pages", "row_bytes", "table_pages")
        return {
            "valid": not reasons, "reasons": reasons, "notes": [_UNSEEN], "seconds": seconds,
            "tokens_per_s": order["count"] / seconds if seconds > 0 else None,
            "steps": [[order["count"], seconds, 0.0]], "exposed_wait_s": None, "compute_s": None, "residency": {},
            "effective_mode": self._arm.mode, "first_token": first, "gather": {}, "memory": {},
            "rows": dict.fromkeys(nothing), "used": {"disk_bytes": None},
        }  # fmt: skip

    def _go_to(self, order: dict[str, Any]) -> None:
        """Fill the prompt cache to the depth."""
        if order["context"]:
            self._complete(order["context"], 1, True)

    def _ask(self, order: dict[str, Any]) -> Completion:
        before, fed = order["context"], order["fed"]
        done = self._complete([*before, *fed], order["count"] if order["kind"] == "decode" else 1, bool(before))
        if done.written is None and not len(fed) <= done.prompt_tokens <= len(fed) + _REMEMBERED:
            raise CannotRun(
                f"{self._arm.name}: computed {done.prompt_tokens} tokens of the prompt, expected the {len(fed)} after "
                f"depth {len(before)}: it remembered {done.cached_tokens}, more or less than that depth"
            )
        return done

    def _complete(self, ids: Sequence[int], count: int, remember: bool) -> Completion:
        assert self._server is not None
        done = self._server.complete(ids, count, 0, remember, 0)
        return checked(done, self._arm.name, ids, count, self._config.vocab, remember)

    def _ids(self, order: dict[str, Any], done: Completion) -> Any:
        """The rows that the measured tokens need."""
        fed = [*order["fed"], *(done.tokens[:-1] if order["kind"] == "decode" else [])]
        return tree.row_ids(self._config, fed, order["context"])


def _counted(process: int | None) -> Counted | None:
    try:
        return Counted.of(process) if process is not None else None
    except (OSError, ValueError, IndexError):
        return None
