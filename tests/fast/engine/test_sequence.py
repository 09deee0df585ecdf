"""Going on, back and apart: whatever way a sequence got to a position, its state and its tokens are the same."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fast.engine.engine import FastEngine
from fast.engine.sequence import Saved, Sequence, _least_useful
from model_file.errors import InputError
from tests.fast.engines import LOGIT_BOUND, STATE_BOUND, answers, opened, shared, worst_error

CHUNK = 16
LENGTH = 3 * CHUNK + 2


class Unbroken(NamedTuple):
    """A run without breaks: logits and state after every token."""

    tokens: list[int]
    logits: list[np.ndarray]
    saved: list[Saved]


def tiny() -> FastEngine:
    return shared("tiny", CHUNK)


@cache
def unbroken() -> Unbroken:
    """One token at a time. EOS stands before, on and after a block's and a chunk's edge, doubled once."""
    engine = tiny()
    tokens = answers("tiny")["prompt_0"].tolist()[:LENGTH]
    for place in (7, 15, 16, 28, 33):
        tokens[place] = engine.config.ple.hash.eos
    sequence, logits, saved = engine.new_sequence(), [], []
    for token in tokens:
        logits.append(sequence.feed([token], last_only=True))
        saved.append(sequence.save())
    return Unbroken(tokens, logits, saved)


def assert_same(sequence: Sequence, position: int) -> None:
    """The sequence is where the unbroken run was after `position` tokens: tokens, logits and every state array."""
    run = unbroken()
    assert sequence.position == position
    assert sequence.tokens == run.tokens[:position]
    assert worst_error(sequence.logits, run.logits[position - 1]) <= LOGIT_BOUND
    assert sequence.next_token()[0] == int(np.argmax(run.logits[position - 1]))
    found, expected = sequence.save(), run.saved[position - 1]
    for ours, theirs in zip(*map(jax.tree_util.tree_leaves, _states(found, expected)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert np.linalg.norm(ours - theirs) <= STATE_BOUND * np.linalg.norm(theirs)


def _states(*saved: Saved) -> list[object]:
    return [(one.recurrent, one.caches) for one in saved]


def assert_same_bits(found: Saved, expected: Saved) -> None:
    assert found.tokens == expected.tokens
    for ours, theirs in zip(*map(jax.tree_util.tree_leaves, _states(found, expected)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_every_split_in_two_equals_an_unbroken_run() -> None:
    run = unbroken()
    for first in range(1, LENGTH):
        sequence = tiny().new_sequence()
        sequence.feed(run.tokens[:first], last_only=True)
        sequence.feed(run.tokens[first:], last_only=True)
        assert_same(sequence, LENGTH)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_any_split_equals_an_unbroken_run(sizes: list[int]) -> None:
    run, sequence = unbroken(), tiny().new_sequence()
    for size in sizes:
        piece = run.tokens[sequence.position : sequence.position + size]
        if piece:
            sequence.feed(piece, last_only=True)
    assert_same(sequence, min(sum(sizes), LENGTH))


@pytest.mark.parametrize("back", range(1, 17))
def test_rollback_at_every_position_equals_an_unbroken_run(back: int) -> None:
    """Positions around every block, chunk and EOS of two chunks; then on again to the end: nothing is left over."""
    run = unbroken()
    for position in range(back + 1, LENGTH):
        sequence = tiny().new_sequence()
        sequence.feed(run.tokens[:position], last_only=True)
        sequence.truncate(position - back)
        assert_same(sequence, position - back)
        if position % 7 == 0:
            sequence.feed(run.tokens[sequence.position :], last_only=True)
            assert_same(sequence, LENGTH)


def test_rollback_of_generated_tokens_generates_them_again() -> None:
    sequence = tiny().new_sequence()
    sequence.feed(unbroken().tokens, last_only=True)
    chosen = sequence.greedy(40)
    for back in range(1, 17):
        sequence.truncate(sequence.position - back)
        assert sequence.greedy(back) == chosen[-back:]


def test_rollback_drops_what_was_fed() -> None:
    """The check can fail: other tokens after the rollback give another state."""
    run, sequence = unbroken(), tiny().new_sequence()
    sequence.feed(run.tokens[:30], last_only=True)
    sequence.truncate(20)
    sequence.feed([token + 1 for token in run.tokens[20:30]], last_only=True)
    assert worst_error(sequence.logits, run.logits[29]) > 10 * LOGIT_BOUND


def test_rollback_to_the_start_is_a_fresh_sequence() -> None:
    run, sequence = unbroken(), tiny().new_sequence()
    sequence.feed(run.tokens[:20], last_only=True)
    sequence.truncate(0)
    with pytest.raises(ValueError, match="no token has been fed"):
        sequence.next_token()
    sequence.feed(run.tokens, last_only=True)
    assert_same(sequence, LENGTH)


@pytest.mark.parametrize("position", [1, 3, 4, 5, 15, 16, 17, 32, 33])
def test_saved_sequence_is_restored_bit_for_bit(position: int) -> None:
    run, sequence = unbroken(), tiny().new_sequence()
    sequence.feed(run.tokens[:position], last_only=True)
    saved = sequence.save()
    onward = sequence.greedy(12)
    other = tiny().new_sequence()
    other.feed(run.tokens[::-1], last_only=True)  # restored over something else, not into an empty sequence
    for target in (sequence, other, tiny().new_sequence()):
        target.restore(saved)
        assert_same_bits(target.save(), saved)
        assert target.greedy(12) == onward
        assert_same_bits(target.save(), sequence.save())
    assert_same_bits(saved, saved)


def test_restored_sequence_can_be_rolled_back() -> None:
    run, sequence = unbroken(), tiny().new_sequence()
    sequence.feed(run.tokens[:40], last_only=True)
    other = tiny().new_sequence()
    other.restore(sequence.save())
    other.truncate(29)
    assert_same(other, 29)


def test_fork_goes_its_own_way() -> None:
    run, first = unbroken(), tiny().new_sequence()
    first.feed(run.tokens[:18], last_only=True)
    second = first.fork()
    first.feed([5, 6, 7], last_only=True)
    second.feed(run.tokens[18:], last_only=True)
    assert_same(second, LENGTH)
    third = tiny().new_sequence()
    third.feed([*run.tokens[:18], 5, 6, 7], last_only=True)
    assert first.greedy(8) == third.greedy(8)


def test_generated_tokens_are_fed() -> None:
    run, engine = unbroken(), tiny()
    one, two = engine.new_sequence(), engine.new_sequence()
    one.feed(run.tokens, last_only=True)
    two.feed(run.tokens, last_only=True)
    together = one.greedy(9)
    assert two.greedy(4) + two.greedy(5) == together
    assert one.position == two.position == LENGTH + 9
    assert len(one.margins) == len(two.margins) == 9
    teacher = engine.new_sequence()
    teacher.feed([*run.tokens, *together], last_only=True)
    assert worst_error(one.logits, teacher.logits) <= LOGIT_BOUND


@pytest.mark.parametrize("more", [1, 2, CHUNK, CHUNK + 1])
def test_sequence_that_is_through_waits_unchanged_for_the_others(more: int) -> None:
    """Padding leaves no trace, in a chunk and in a step of single tokens: bit for bit what it was."""
    run, engine = unbroken(), tiny()
    first, second, alone, with_others = (engine.new_sequence() for _ in range(4))
    engine.feed_batch([(first, run.tokens[:CHUNK]), (second, run.tokens[:CHUNK])], last_only=True)
    engine.feed_batch([(alone, run.tokens[:CHUNK]), (with_others, run.tokens[: CHUNK + more])], last_only=True)
    assert_same_bits(alone.save(), first.save())
    assert_same(with_others, CHUNK + more)


@pytest.mark.parametrize(("context", "chunk", "before"), [(64, CHUNK, 48), (61, 2, 60)])
def test_full_sequence_keeps_its_blocks_while_others_go_on(context: int, chunk: int, before: int) -> None:
    """It is stepped with padding alone at the very end of its room, or with more padding than is left of it."""
    tokens = answers("tiny")["prompt_0"].tolist()[:context]
    other = [token + 1 for token in tokens]
    with opened("tiny", chunk=chunk, context=context) as engine:
        full, alone = engine.new_sequence(), engine.new_sequence()
        full.feed(tokens[:before], last_only=True)
        engine.feed_batch([(full, tokens[before:]), (engine.new_sequence(), other)], last_only=True)
        alone.feed(tokens, last_only=True)
        found, expected = full.save(), alone.save()
    assert found.tokens == expected.tokens
    for ours, theirs in zip(*map(jax.tree_util.tree_leaves, _states(found, expected)), strict=True):
        assert ours.shape == theirs.shape
        assert np.linalg.norm(ours - theirs) <= STATE_BOUND * np.linalg.norm(theirs)


def test_a_stopped_generator_leaves_a_sequence_that_goes_on() -> None:
    run, engine = unbroken(), tiny()
    one, two = engine.new_sequence(), engine.new_sequence()
    for sequence in (one, two):
        sequence.feed(run.tokens, last_only=True)
    expected = two.greedy(10)
    stopped = one.generate(10)
    begun = [next(stopped)[0] for _ in range(3)]
    stopped.close()
    assert one.position == LENGTH + 3
    assert begun + one.greedy(7) == expected


def test_contexts_and_models_share_nothing() -> None:
    run = unbroken()
    alone = tiny().new_sequence()
    alone.feed(run.tokens, last_only=True)
    expected = alone.greedy(8)
    with opened("tiny-quant", chunk=CHUNK) as quant:
        one, two = tiny().new_sequence(), quant.new_sequence()
        for token in run.tokens:
            one.feed([token], last_only=True)
            two.feed([token % quant.config.vocab], last_only=True)
        assert one.greedy(8) == expected
        with pytest.raises(InputError, match="belongs to another engine"):
            quant.feed_batch([(one, [1])])
        with pytest.raises(InputError, match="the saved sequence is of"):
            two.restore(one.save())


@settings(max_examples=settings.default.max_examples // 2)
@given(st.integers(2, 12), st.integers(40, 400))
def test_checkpoints_reach_back_ever_further_apart(kept: int, length: int) -> None:
    positions: list[int] = []
    for end in range(1, length + 1):
        positions.append(end)
        if len(positions) > kept:
            del positions[_least_useful(positions)]
    assert positions[-1] == length
    assert len(positions) == min(kept, length)
    if kept >= 4:
        assert positions[0] <= length - 2 * kept + 2, "all of them stand at the end"


def test_sequence_refuses_what_it_cannot_do() -> None:
    engine = tiny()
    sequence = engine.new_sequence()
    with pytest.raises(InputError, match="no tokens to feed"):
        sequence.feed([])
    with pytest.raises(InputError, match=r"token -1 at place 1, expected 0 to"):
        sequence.feed([3, -1])
    with pytest.raises(InputError, match=rf"token {engine.config.vocab} at place 0"):
        sequence.feed([engine.config.vocab])
    with pytest.raises(InputError, match="expected at most the context of"):
        sequence.feed([1] * (engine.settings.context + 1))
    with pytest.raises(ValueError, match="nothing can be continued"):
        sequence.greedy(1)
    with pytest.raises(InputError, match="cannot go to position 1, expected 0 to 0"):
        sequence.truncate(1)
    with pytest.raises(InputError, match="twice in one batch"):
        engine.feed_batch([(sequence, [1]), (sequence, [2])])
    assert sequence.position == 0
