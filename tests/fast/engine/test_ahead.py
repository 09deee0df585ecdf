"""Programs that are compiled in the background are the ones that steps use, and none is compiled twice."""

from __future__ import annotations

import numpy as np

from tests.fast.engines import opened, shared

TOKENS = list(range(3, 40))


def test_what_was_compiled_ahead_is_not_compiled_again() -> None:
    with opened("tiny", chunk=16, context=1000 - 16) as engine:  # shapes that no other engine has
        wait = engine.compile_ahead(batches=(1, 2), with_logits=True, recorded=True)
        assert engine.step.compiling
        wait()
        assert not engine.step.compiling
        compiled = engine.compilations
        assert compiled >= 2 * 2 + 2 + 2
        sequence, other = engine.new_sequence(), engine.new_sequence()
        logits = sequence.feed(TOKENS)
        engine.feed_recorded(sequence, TOKENS[:5])
        chosen = sequence.greedy(3)
        engine.feed_batch([(sequence, TOKENS), (other, TOKENS[:4])])
        assert engine.compilations == compiled
    same = shared("tiny", 16).new_sequence()
    np.testing.assert_array_equal(same.feed(TOKENS), logits)
    same.feed(TOKENS[:5], last_only=True)
    assert same.greedy(3) == chosen


def test_a_step_that_comes_first_waits_and_says_what_it_waited_for() -> None:
    with opened("tiny", chunk=16, context=1001 - 16) as engine:
        engine.compile_ahead()
        sequence = engine.new_sequence()
        sequence.feed(TOKENS[:16], last_only=True)
        first = engine.timings.steps[0]
        assert first.compile_s > first.compute_s
        engine.new_sequence().feed(TOKENS[:16], last_only=True)
        assert engine.timings.steps[1].compile_s < first.compile_s  # it is not waited for again
        assert len(sequence.greedy(2)) == 2


def test_an_engine_can_be_closed_while_it_compiles() -> None:
    with opened("tiny", chunk=16, context=1002 - 16) as engine:
        engine.compile_ahead(batches=(1, 2, 3))
    assert all(task.done() for task in engine._ahead._tasks)
