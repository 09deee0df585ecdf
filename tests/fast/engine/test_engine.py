"""The engine around the model: nothing compiled twice, waits measured, failures without damage, forks refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from time import sleep

import numpy as np
import pytest

from fast.engine.engine import FastEngine
from model_file.errors import InputError
from tests.fast.engines import answers, opened


def test_nothing_is_compiled_after_warm_up() -> None:
    """Chunks of every length, decode, rollback, save, restore, fork, all logits and the last, to the context's end."""
    prompt = answers("tiny")["prompt_0"].tolist()
    with opened("tiny", chunk=64, buckets=(1, 16, 64)) as engine:
        assert engine.warm_up() > 0
        before = engine.compilations
        assert before > 0, "a warm-up that compiles nothing counts nothing"
        for length in (1, 2, 15, 16, 17, 63, 64, 65, 160):
            sequence = engine.new_sequence()
            sequence.feed(prompt[:length])
            sequence.feed(prompt[:length], last_only=True)
            sequence.greedy(3)
            saved = sequence.save()
            sequence.fork().greedy(3)
            sequence.truncate(sequence.position - 1)
            sequence.restore(saved)
            sequence.greedy(1)
        sequence = engine.new_sequence()
        sequence.feed((prompt * 6)[: engine.settings.context - 5], last_only=True)
        sequence.greedy(5)
        assert sequence.position == engine.settings.context
        assert engine.compilations == before


def test_the_compilation_counter_counts() -> None:
    with opened("tiny", chunk=64, context=91) as engine:
        engine.new_sequence().feed([1, 2, 3], last_only=True)
        assert engine.compilations > 0
        assert engine.timings.compile_s > 0


class Slow:
    """A reader that takes its time, and remembers what was asked of it and by whom."""

    def __init__(self, engine: FastEngine, seconds: float) -> None:
        self.inner, self.seconds, self.calls = engine.reader, seconds, list[tuple[int, str]]()

    def gather(self, ids, out=None):  # type: ignore[no-untyped-def]
        sleep(self.seconds)
        self.calls.append((len(ids), threading.current_thread().name))
        return self.inner.gather(ids, out)


def test_waits_for_rows_are_measured_and_mostly_hidden() -> None:
    prompt = answers("tiny")["prompt_0"].tolist()[:128]
    with opened("tiny", chunk=16) as engine:
        engine.warm_up(with_logits=False)
        engine.timings.reset()
        slow = Slow(engine, 0.05)
        engine.reader = engine.chunks.reader = slow
        sequence = engine.new_sequence()
        sequence.feed(prompt, last_only=True)
        steps = list(engine.timings.steps)
        assert [step.tokens for step in steps] == [16] * 8
        assert all(step.gather_s >= 0.05 for step in steps)
        # A chunk of this model computes in a few ms, so nearly all of a gather of 50 ms is waited for, and is shown.
        assert sum(step.exposed_wait_s for step in steps) >= 0.25
        assert sum(step.exposed_wait_s + step.compute_s for step in steps) >= 8 * 0.05
        assert all(thread.startswith("rows") for _, thread in slow.calls)
        engine.timings.reset()
        sequence.greedy(4)
        decoded = list(engine.timings.steps)
        assert [step.decode for step in decoded] == [True] * 4
        assert all(0.04 <= step.exposed_wait_s <= step.gather_s for step in decoded)
        report = engine.timings.as_dict()
        assert report["decode_tokens"] == len(report["steps"]) == 4


def test_no_row_is_read_that_no_token_names() -> None:
    with opened("tiny", chunk=16) as engine:
        slow = Slow(engine, 0)
        engine.reader = engine.chunks.reader = slow
        sequence = engine.new_sequence()
        sequence.feed([3] * 20, last_only=True)
        sequence.greedy(2)
        heads = engine.config.ple.heads
        assert [count for count, _ in slow.calls] == [16 * heads, 4 * heads, heads, heads]


def test_failed_gather_leaves_the_sequence_where_it_was() -> None:
    prompt = answers("tiny")["prompt_0"].tolist()[:64]
    with opened("tiny", chunk=16) as engine:
        honest, sequence = engine.reader, engine.new_sequence()
        whole = engine.new_sequence()
        whole.feed(prompt, last_only=True)

        class Failing:
            asked = 0

            def gather(self, ids, out=None):  # type: ignore[no-untyped-def]
                self.asked += 1
                if self.asked == 3:
                    raise InputError("model.gguf: row 7 is gone")
                return honest.gather(ids, out)

        engine.reader = engine.chunks.reader = Failing()
        with pytest.raises(InputError, match="row 7 is gone"):
            sequence.feed(prompt, last_only=True)
        assert sequence.position == 32
        engine.reader = engine.chunks.reader = honest
        sequence.feed(prompt[32:], last_only=True)
        np.testing.assert_array_equal(sequence.logits, whole.logits)

        class Broken:
            def gather(self, *_: object) -> None:
                raise InputError("model.gguf: row 8 is gone")

        engine.reader = Broken()
        with pytest.raises(InputError, match="row 8 is gone"):
            sequence.greedy(3)
        engine.reader = honest
        assert sequence.position == 64
        assert sequence.greedy(3) == whole.greedy(3)


FORKING = """
import os
from tests.fast.engines import opened

def refused(what):
    try:
        what()
    except ValueError as error:
        return str(error)
    return "not refused"

with opened("tiny", chunk=1) as engine:
    sequence = engine.new_sequence()
    sequence.feed([5, 6, 7])
    saved, begun = sequence.save(), sequence.generate(4)
    next(begun)
    child = os.fork()
    if not child:
        uses = {
            "feed": lambda: sequence.feed([1]),
            "greedy": lambda: sequence.greedy(1),
            "going on": lambda: next(begun),
            "batch": lambda: engine.feed_batch([(sequence, [1])]),
            "greedy_batch": lambda: engine.greedy_batch([sequence], 1),
            "recorded": lambda: engine.feed_recorded(sequence, [1]),
            "new": engine.new_sequence,
            "warm_up": engine.warm_up,
            "save": sequence.save,
            "restore": lambda: sequence.restore(saved),
            "fork": sequence.fork,
            "truncate": lambda: sequence.truncate(1),
            "logits": lambda: sequence.logits,
            "next": sequence.next_token,
        }
        wrong = {name: said for name, use in uses.items() if "forked from it" not in (said := refused(use))}
        engine.close()
        print("child", wrong, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    rest = [token for token, _ in begun]
    print("parent", len(rest), sequence.position)
"""


def test_a_fork_is_refused_by_name_and_its_parent_goes_on() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.stdout.splitlines() == ["child {}", "parent 3 7"], done.stderr
