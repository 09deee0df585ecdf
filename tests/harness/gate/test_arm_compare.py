"""Comparing two arms' answers: forced continuation, noise, close calls, logprobs, and what must be equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.engines.arms import parse_arm
from harness.engines.protocol import Completion
from harness.gate.arm_compare import MOST_FORCED, Difference, Followed, apart, compare_text, follow, margin_of, noise_of
from harness.gate.arm_verdicts import UNDECIDED, ArmVerdict
from harness.gate.arms import why_equal
from harness.gate.verdicts import DIFFERENT, EQUAL


def done(tokens: Sequence[int]) -> Completion:
    return Completion(list(tokens), 1, 0.0, 0.0, top=[{token: -0.1, 99: -1.1} for token in tokens])


def test_the_right_id_is_forced_after_a_difference() -> None:
    asked: list[tuple[list[int], int]] = []

    def ask(ids: Sequence[int], count: int) -> Completion:
        asked.append((list(ids), count))
        return done([4, 5][:count])

    found = follow("p", [7, 8], [1, 2, 3, 4, 5], done([1, 2, 9, 9, 9]), ask)
    assert asked == [([7, 8, 1, 2, 3], 2)]
    assert [(one.step, one.found, one.expected) for one in found.differences] == [(2, 9, 3)]
    assert found.differences[0].margin_found == pytest.approx(1.0)
    assert (found.steps, len(found.tops), found.whole) == (5, 5, True)


def test_a_prompt_that_differs_everywhere_ends_and_says_so() -> None:
    right = list(range(1, 40))
    found = follow("p", [7], right, done([0] * 39), lambda _, count: done([0] * count))
    assert (found.steps, len(found.differences), found.whole) == (MOST_FORCED, MOST_FORCED, False)
    untold = Completion([9], 1, 0.0, 0.0, top=[{}])
    assert follow("p", [7], [1], untold, lambda *_: untold).differences[0].margin_found is None  # and no NaN
    short = follow("p", [7], [1], done([0]), lambda *_: pytest.fail("nothing is left to ask for"))
    assert (short.steps, len(short.differences), short.whole) == (1, 1, True)


def test_noise_is_of_steps_that_agree_and_unknown_for_few() -> None:
    tops = [{1: 0.0, 2: -1.0 - 0.001 * step} for step in range(40)]
    wrong = Difference("p", 39, 5, 6)
    tops[39] = {5: 0.0, 6: -50.0}
    way = Followed("p", 40, [wrong], tops)
    noise = noise_of([(way, [1.0] * 40)])
    assert noise is not None
    assert 0.037 < noise <= 0.038
    assert noise_of([(Followed("p", 19, [], tops[:19]), [1.0] * 19)]) is None
    assert noise_of([(Followed("p", 40, [], [{}] * 40), [1.0] * 40)]) is None


def test_the_larger_margin_of_a_difference_counts() -> None:
    assert Difference("p", 0, 1, 2, 0.1, 0.4).margin == 0.4
    assert Difference("p", 0, 1, 2, None, 0.4).margin == 0.4
    assert Difference("p", 0, 1, 2).margin is None


def test_logprobs_apart() -> None:
    half, most = math.log(0.5), math.log(0.75)
    same = apart([({1: half, 2: half}, {1: half, 2: half})])
    assert same is not None
    assert (same.largest, same.median, same.kl) == (0, 0, pytest.approx(0, abs=1e-9))
    found = apart([({1: half, 2: half}, {1: most, 2: math.log(0.25)}), ({1: half}, {3: half})])
    assert found is not None
    assert found.steps == 1
    assert found.largest == pytest.approx(math.log(2))
    assert found.kl == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert apart([({}, {1: half})]) is None
    rest = apart([({1: half}, {1: math.log(0.25)})])
    assert rest is not None
    assert rest.kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))
    assert math.isnan(margin_of({1: 0.0}))


def test_text_is_compared_by_character() -> None:
    assert compare_text("p", "same", "same") is None
    found = compare_text("p", "some", "same")
    assert found is not None
    assert (found.step, found.found_text, found.expected_text) == (1, "ome", "ame")
    longer = compare_text("p", "same", "sa")
    assert longer is not None
    assert longer.step == 2


def test_verdict_by_share_of_close_calls() -> None:
    verdict = ArmVerdict(parse_arm("a=llama-server"), steps=200)
    close = Difference("p", 1, 2, 3, close=True)
    verdict.differences = [close, close]
    assert verdict.verdict == EQUAL
    assert verdict.agreement == 0.99
    verdict.differences.append(close)
    assert verdict.verdict == UNDECIDED
    verdict.differences.append(Difference("p", 1, 2, 3))
    assert verdict.verdict == DIFFERENT
    states = ArmVerdict(parse_arm("a=llama-server"), states={"prefix": "different: x"})
    assert states.verdict == DIFFERENT


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("a=llama-server -lzm on", "b=/pr/llama-server --lazy-mode on-direct --lazy-workers 8", True),
        ("a=llama-server -lzm on -c 64", "b=llama-server -c 64 --no-mmap -lv 5", True),
        ("a=llama-server -ctk f16", "b=llama-server -ctk f32", False),
        ("a=llama-server -ctv f16 -lzm on", "b=llama-server -ctv f32 -lzm on", False),
        ("a=llama-server", "b=prefetch", False),
        ("a=llama-server", "b=http://localhost:1", False),
        ("a=llama-server -m COPY", "b=llama-server", True),
        ("a=llama-server -m OTHER", "b=llama-server", False),
        ("a=uring", "b=mmap,queue_depth=4", True),
        ("a=uring", "b=uring,precision=high", False),
        ("a=llama-server --temp -1", "b=llama-server --temp -2", False),
    ],
)
def test_what_must_be_equal(tmp_path: Path, one: str, other: str, equal: bool) -> None:
    for name, size in (("MODEL", 5), ("COPY", 5), ("OTHER", 6)):
        (tmp_path / name).write_bytes(bytes(size))
    texts = (text.replace("COPY", f"{tmp_path}/COPY").replace("OTHER", f"{tmp_path}/OTHER") for text in (one, other))
    arms = [parse_arm(text) for text in texts]
    assert (why_equal(arms[0], arms[1], tmp_path / "MODEL") is not None) == equal
