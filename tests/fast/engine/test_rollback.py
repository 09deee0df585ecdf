"""What a wrong guess leaves behind: nothing. Against plain decoding, in every state by name."""

from __future__ import annotations

import inspect
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import harness.faults
from fast.engine import programs
from fast.engine.engine import FastEngine
from fast.engine.sequence import Saved
from fast.model.plan import Plan
from fast.model.state import settled
from fast.model.trunk import head, run_trunk
from harness.faults.planting import planted_text, rewrite
from tests.fast.engine.test_drafts import ANSWERS
from tests.fast.engines import STATE_BOUND, shared
from tests.fast.states import different

FAULTS: dict[str, list[str]] = tomllib.loads(
    (Path(harness.faults.__file__).parent / "faults.toml").read_text(encoding="utf-8")
)["rollback"]
GUESSES, STEPS, ROOM_AHEAD = 3, 48, 12


@cache
def plain() -> tuple[FastEngine, list[int], list[Saved]]:
    """An engine that drafts, and of its plain decoding, one token a step, the tokens and the state after each."""
    engine = shared("tiny-mtp", draft=GUESSES)
    sequence = engine.new_sequence()
    sequence.feed(ANSWERS["prompts"][0], last_only=True)
    states = [sequence.save()]
    for _ in range(STEPS):
        sequence.feed([sequence.next_token()[0]], last_only=True)
        states.append(sequence.save())
    return engine, list(sequence.tokens), states


def decoded(start: int, count: int, right: list[bool], garbage: int) -> Saved:
    """The state after `count` tokens, decoded with guesses from the state after `start`.

    right: of every guess in turn whether it is; a wrong one is `garbage` ids away from the right one.
    """
    engine, tokens, states = plain()
    turns = iter(right)

    def planted(known: list[int], guesses: list[int]) -> list[int]:
        truth = tokens[len(known) : len(known) + len(guesses)]
        return [token if next(turns) else (token + garbage) % engine.config.vocab for token in truth]

    sequence = engine.new_sequence()
    sequence.restore(states[start])
    engine.planted = planted
    try:
        sequence.greedy(count)
    finally:
        engine.planted = None
    return sequence.save()


@pytest.mark.parametrize("patterns", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_patterns_of_right_and_wrong_guesses_leave_the_state_of_plain_decoding(patterns: int) -> None:
    engine, _, states = plain()
    draw, seen = Random(f"rollback/{patterns}"), set()
    for _ in range(patterns):
        count = draw.randrange(1, ROOM_AHEAD)
        start = draw.randrange(STEPS - count - GUESSES)
        chance = draw.choice((0.2, 0.5, 0.9))
        right = [draw.random() < chance for _ in range(GUESSES * count)]
        engine.timings.reset()
        one = decoded(start, count, right, garbage=1)
        seen.add((engine.timings.drafted, engine.timings.accepted))
        # The same program with other wrong guesses: not a bit of them is left.
        assert not different(decoded(start, count, right, garbage=77), one, engine.plan)
        # Steps of 1 + 3 tokens sum in another order than steps of one: the bound of two splits of the same tokens.
        assert not different(one, states[start + count], engine.plan, STATE_BOUND)
    assert len(seen) > 20, "of all guesses some were right and some wrong, in many ways"


@cache
def opened_step(plan: Plan) -> Any:
    """The step that checks guesses, its states left open, compiled once."""

    @jax.jit
    def step(packed_weights: Any, tokens: Any, packed: Any, state: Any) -> Any:
        weights = packed_weights.unpack()
        with jax.default_matmul_precision(plan.precision):
            streams, (opened,) = run_trunk(weights, tokens, packed, (state,), None, plan, programs.dequantize)
            return programs.outcome_of(head(weights.head, weights.hc_out, streams, plan)), opened

    return step


def settled_now(weights: Any, tokens: Any, packed: Any, most: Any, state: Any, plan: Plan) -> Any:
    """`programs.check`, its states settled by `settled` as it is now, and not as it was compiled once."""
    every, opened = opened_step(plan)(weights, tokens, packed, state)
    accepted = int(np.cumprod(tokens[0, 1 : 1 + most] == np.asarray(every.tokens)[:most]).sum())
    last = programs.Outcome(*(x[accepted : accepted + 1] for x in every))
    checked = programs.Checked(last, every.tokens, every.margins, np.int32(accepted))
    return checked, settled(opened, jnp.int32(accepted + 1), tokens.shape[1])


def compiled_now() -> Any:
    """`programs.check` compiled anew, with what is planted now."""
    body = inspect.unwrap(programs.check)
    return jax.jit(lambda *given: body(*given), static_argnums=5)  # a new function: what was traced is remembered


def left_behind(check: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What differs from plain decoding after one step whose first guess is right and the others wrong.

    It begins two tokens before the end of a block, which the first guess completes.
    """
    engine, tokens, states = plain()
    start = next(place for place, state in enumerate(states) if len(state.tokens) % 4 == 2)
    first = len(states[start].tokens) + 1
    sequence = engine.new_sequence()
    sequence.restore(states[start])
    with monkeypatch.context() as patch:
        patch.setattr("fast.engine.step.check", check)
        patch.setattr(engine, "planted", lambda *_: [tokens[first], 0, 0])
        assert tokens[first + 1] != 0
        steps = sequence.generate(2 + GUESSES)
        assert next(steps)[0] == tokens[first - 1]
        left = different(sequence.save(), states[start + 2], engine.plan, STATE_BOUND)
    steps.close()
    return left


def test_a_step_with_wrong_guesses_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not left_behind(settled_now, monkeypatch)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_state_that_is_not_taken_back_is_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, name, function, old, new = FAULTS[fault]
    module = import_module(name)
    if "." in function:
        owner, method = getattr(module, function.partition(".")[0]), function.partition(".")[2]
        monkeypatch.setattr(owner, method, vars(owner)[method])  # taken back at the end
        rewrite(owner, method, old, new)
        left = left_behind(settled_now, monkeypatch)
    else:
        with planted_text(module, function, old, new):
            left = left_behind(settled_now if function == "settled" else compiled_now(), monkeypatch)
    assert state in left
    if function == "settled":
        kind = state.partition(" ")[2] if state.startswith("blk.") else state
        assert all(other.endswith(kind) for other in left), "nothing else is wrong"


def test_the_head_follows_padded_pieces_as_single_tokens() -> None:
    engine, tokens, states = plain()
    prompt = states[0].tokens
    sequence = engine.new_sequence()
    for piece in (1, 5, 2, len(tokens)):
        sequence.feed(prompt[sequence.position : sequence.position + piece], last_only=True)
    sequence.feed(tokens[len(prompt) :], last_only=True)
    assert not different(sequence.save(), states[-1], engine.plan, STATE_BOUND)
