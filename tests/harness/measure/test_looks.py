"""How often equal arms are claimed when somebody looks after every repeat, and how soon a real difference is.

Simulated: noise as machines have it, with heavy tails, bursts, drift, and processes that are slow from their start.
`python -m measurements.looks` asks the same of the real machine.
"""

from __future__ import annotations

from math import comb, exp

import numpy as np
import numpy.typing as npt
import pytest

from harness.measure.statistics import CONFIDENCE, FEWEST_FOR_CLAIM, differs, spread

Times = npt.NDArray[np.float64]
ARMS, BASE, ARM, AGAIN = 3, 0, 1, 2
LOOKS, BLOCKS = 30, 8
SIMULATED, MOST = 2000, 0.12


def run_of(generator: np.random.Generator, kind: str, slower: float = 1.0) -> Times:
    """Log ratios [repeats, 2] to the baseline, of the arm and of the baseline's second run, as a run finds them.

    Times of blocks in the order of measuring: arms of a block next to each other, every other block backwards.
    """
    logs = np.zeros((LOOKS, BLOCKS, ARMS))
    order = np.empty_like(logs)
    for repeat in range(LOOKS):
        for block in range(BLOCKS):
            places = np.arange(ARMS) if (repeat + block) % 2 == 0 else np.arange(ARMS)[::-1]
            order[repeat, block] = (repeat * BLOCKS + block) * ARMS + places
    steps = LOOKS * BLOCKS * ARMS
    if kind == "heavy tails":
        logs += 0.05 * generator.standard_t(1.5, logs.shape)
    elif kind == "slow processes":
        logs += 0.1 * generator.standard_t(3, (LOOKS, 1, ARMS)) + generator.normal(0, 0.01, logs.shape)
    elif kind == "drift and bursts":
        noise = np.zeros(steps)
        for step in range(1, steps):
            noise[step] = 0.97 * noise[step - 1] + generator.normal(0, 0.03)
        for start in generator.integers(0, steps, 6):
            noise[start : start + generator.integers(5, 60)] += np.log(1.6)
        noise += np.linspace(0, generator.normal(0, 0.5), steps)
        logs += noise[order.astype(int)] + generator.normal(0, 0.03, logs.shape)
    else:
        logs += generator.normal(0, 0.1, logs.shape)
    logs[:, :, ARM] += np.log(slower)
    pairs: Times = np.median(logs[:, :, [BASE]] - logs[:, :, [ARM, AGAIN]], axis=1)
    return pairs


def claimed_after(pairs: Times) -> int | None:
    """The repeats after which the difference was first claimed, by whoever looks after each of them."""
    for count in range(FEWEST_FOR_CLAIM, len(pairs) + 1):
        arm, again = (spread([exp(value) for value in pairs[:count, column]]) for column in (0, 1))
        if differs(arm, again):
            return count
    return None


@pytest.mark.parametrize("kind", ["plain", "heavy tails", "slow processes", "drift and bursts"])
def test_equal_arms_are_seldom_claimed_however_often_one_looks(kind: str) -> None:
    """500 runs of each kind are 2,000 together; the bound leaves room for chance in counting them."""
    generator = np.random.default_rng(20_26)
    claimed = sum(claimed_after(run_of(generator, kind)) is not None for _ in range(SIMULATED // 4))
    assert claimed <= MOST * SIMULATED / 4


def test_interval_alone_keeps_its_promise_at_every_look() -> None:
    """Without the second run of the baseline: the true ratio lies outside at some look in a tenth of runs at most."""
    generator = np.random.default_rng(7)
    left = 0
    for _ in range(500):
        pairs = run_of(generator, "heavy tails")[:, 0]
        left += any(spread([exp(v) for v in pairs[:count]]).excludes_one for count in range(6, LOOKS + 1))
    assert left <= (MOST + 0.02) * 500
    assert left > 0  # one that never leaves anything out would promise nothing
    assert CONFIDENCE == 0.90


def test_looks_at_an_interval_for_one_look_would_not_keep_it() -> None:
    """Planted: the rank interval that is right for a single look, at every look, is not honest; the test sees it."""
    generator = np.random.default_rng(7)
    left = 0
    for _ in range(200):
        pairs = run_of(generator, "heavy tails")[:, 0]
        for count in range(6, LOOKS + 1):
            tails = [sum(comb(count, k) for k in range(few + 1)) / 2**count for few in range(count)]
            few = max(k for k in range(count) if 2 * tails[k] <= 1 - CONFIDENCE)
            ordered = np.sort(pairs[:count])
            if ordered[few] > 0 or ordered[-1 - few] < 0:
                left += 1
                break
    assert left > (MOST + 0.02) * 200


@pytest.mark.parametrize("kind", ["plain", "heavy tails", "slow processes", "drift and bursts"])
def test_arm_that_takes_a_third_longer_is_claimed(kind: str) -> None:
    generator = np.random.default_rng(9)
    found = [claimed_after(run_of(generator, kind, 1.33)) for _ in range(100)]
    assert sum(count is not None for count in found) >= 95
    assert float(np.median([count for count in found if count is not None])) <= 14
