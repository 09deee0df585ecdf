"""Our own model beside the arms: its logprobs along the right ids, and its closest calls where an arm's ids differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fast.rows import Table, open_rows
from fast.rows.resident import available_bytes
from harness.engines.recorded import recorded
from harness.engines.settings import engine_settings
from harness.engines.table import load_engine
from harness.gate.arm_compare import Difference, Followed, Top, apart, known, margin_of
from harness.gate.arm_runs import Subject, best_of, log_softmax
from harness.gate.arm_verdicts import ArmVerdict
from model_file.gguf_file import GgufFile
from reference.closeness import gaps

MEMORY_SHARE = 0.6  # of what is available; the weights are unpacked to float32
_UNPACKED = 8  # bytes of a weight in memory for a byte of it in the file, at most
FLIP = 2e-3
"""A call of ours this close, relative, is one that another engine's rounding may turn: 16-bit caches and activations
round by 2^-11 = 5e-4, and a score is made of several of them."""
_CALLS = {
    "block_gap": "kept against dropped block",
    "expert_gap": "kept against dropped expert",
    "ple_agreement": "gate",
}


def does_not_fit(model: GgufFile, table: Table) -> str | None:
    """Why our model is not loaded here; None where it is."""
    weights, available = model.size_bytes - table.size_bytes, available_bytes()
    if available is not None and weights * _UNPACKED > MEMORY_SHARE * available:
        return f"its weights of {weights / 2**30:.1f} GiB do not fit into this machine's memory beside the rest"
    return None


class OurView:
    """Loads our engine once, when it is asked."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def compare(
        self,
        prompts: Sequence[tuple[str, Sequence[int], Sequence[int]]],
        ways: Sequence[tuple[ArmVerdict, Sequence[Followed]]],
    ) -> None:
        """Fill in every verdict's logprobs against ours, and our margin, id and closest call at each difference.

        prompts: name, ids, and the right answer's.
        """
        pairs: dict[str, list[tuple[Top, Top]]] = {verdict.arm.name: [] for verdict, _ in ways}
        with open_rows(self.subject.table, "auto") as reader:
            settings = engine_settings(self.subject.room, cache_dir=self.subject.program_cache)
            engine = load_engine("fast", self.subject.model, reader, settings)
            with engine:
                for name, ids, answer in prompts:
                    if not answer:
                        continue
                    sequence = engine.new_sequence()
                    sequence.feed(ids[:-1]) if len(ids) > 1 else None
                    logits = sequence.logits([ids[-1], *answer[:-1]])
                    for verdict, followed in ways:
                        mine = next((one for one in followed if one.prompt == name), None)
                        if mine is None:
                            continue
                        pairs[verdict.arm.name] += [
                            (_of(logits[step], top), top) for step, top in enumerate(mine.tops) if top
                        ]
                    found = [d for verdict, _ in ways for d in verdict.differences if d.prompt == name]
                    self._look_closer(
                        engine, [*ids, *answer], len(ids), logits, [d for d in found if d.found is not None]
                    )
        for verdict, _ in ways:
            verdict.ours = apart(pairs[verdict.arm.name])

    def _look_closer(
        self, engine: Any, seen: Sequence[int], prompt: int, logits: Any, found: Sequence[Difference]
    ) -> None:
        if not found:
            return
        positions = {prompt - 1 + one.step: one for one in found}
        for one in found:
            best = best_of(logits[one.step], 2)
            one.ours, one.margin_ours = next(iter(best)), known(margin_of(best))
        for start, named in recorded(engine, seen[: max(positions) + 1]):
            calls = gaps(named, engine.config)
            for position in positions:
                if not 0 <= (at := position - start) < len(named["logits"]):
                    continue
                for one in (d for d in found if prompt - 1 + d.step == position):
                    one.flip = _closest(calls, at) or one.flip


def _closest(calls: dict[str, Any], at: int) -> str | None:
    """Our closest call at a position, where it is close enough for rounding to turn it."""
    sizes = {name: float(np.abs(np.asarray(values, np.float64)[at]).min()) for name, values in calls.items()}
    name = min(sizes, key=lambda each: sizes[each], default=None)
    if name is None or not sizes[name] < FLIP:
        return None
    layer, _, kind = name.removeprefix("blk.").partition(".")
    return f"our own call there is close: {_CALLS[kind]} of layer {layer} by {sizes[name]:.1e}, a flip explains it"


def _of(logits: Any, top: Top) -> Top:
    """Our logprobs of the ids that an arm told."""
    exact = log_softmax(logits)
    return {token: float(exact[token]) for token in top}
