"""Two arms' answers: ids step by step, with the right id forced after a difference, margins, noise, and logprobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from harness.engines.protocol import Completion

MOST_FORCED = 16  # differences of one prompt after which the rest of it is left out, and said to be
LEAST_STEPS = 20  # steps that agree, below which the noise of a pair is not known and no difference is a close call
NOISE_PERCENTILE = 99.9
MOST_CLOSE = 0.01
"""Share of the compared steps that may be close calls before nothing is decided."""
Ask = Callable[[Sequence[int], int], Completion]
Top = dict[int, float]


@dataclass
class Difference:
    """A step at which an arm chose another id. margins: best minus second logprob there, None where not told.

    ours: our own margin and ids; flip: the call of ours that is so close there that rounding may turn it.
    """

    prompt: str
    step: int
    found: int | None
    expected: int | None
    margin_found: float | None = None
    margin_expected: float | None = None
    found_text: str = ""
    expected_text: str = ""
    close: bool = False
    margin_ours: float | None = None
    ours: int | None = None
    flip: str | None = None

    @property
    def margin(self) -> float | None:
        """The larger of both arms' margins, which must have moved for the ids to differ; None where none is known."""
        return max((m for m in (self.margin_found, self.margin_expected) if m is not None), default=None)

    def message(self) -> str:
        """One sentence with everything needed to look at it."""
        names = {"this arm": self.margin_found, "expected": self.margin_expected, "ours": self.margin_ours}
        margins = ", ".join(f"{name} {value:.3g}" for name, value in names.items() if value is not None)
        text = (
            f"prompt {self.prompt}, step {self.step}: found {self.found} ({self.found_text!r}), expected "
            f"{self.expected} ({self.expected_text!r}); margins: {margins or 'not told'}"
        )
        text += "" if self.ours is None else f"; our own model chooses {self.ours}"
        return text + (f"; {self.flip}" if self.flip else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"message": self.message(), **asdict(self)}


@dataclass
class Followed:
    """An arm's answer along the right ids of one prompt.

    tops: the arm's best logprobs at every step that was compared. whole: no step was left out.
    """

    prompt: str
    steps: int = 0
    differences: list[Difference] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    whole: bool = True


def follow(prompt: str, ids: Sequence[int], right: Sequence[int], first: Completion, ask: Ask) -> Followed:
    """Compare an answer with the right ids; after a difference the arm is asked again with the right id in place."""
    found, done, offset = Followed(prompt), first, 0
    while True:
        margins = done.margins
        for step in range(offset, len(right)):
            token = done.tokens[step - offset]
            found.steps += 1
            found.tops.append(done.top[step - offset] if done.top else {})
            if token != right[step]:
                margin = known(margins[step - offset]) if margins else None
                found.differences.append(Difference(prompt, step, token, right[step], margin))
                break
        else:
            return found
        offset = step + 1
        if offset == len(right):
            return found
        if len(found.differences) >= MOST_FORCED:
            found.whole = False
            return found
        done = ask([*ids, *right[:offset]], len(right) - offset)


def compare_text(prompt: str, found: str, expected: str) -> Difference | None:
    """The first character that differs, where one side tells no ids."""
    if found == expected:
        return None
    at = next(
        (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    one = Difference(prompt, at, None, None)
    one.found_text, one.expected_text = found[at : at + 20], expected[at : at + 20]
    return one


def known(margin: float) -> float | None:
    """The margin; None where the arm told fewer than two logprobs, as for a token that ends inside a character."""
    return margin if math.isfinite(margin) else None


def margin_of(top: Top) -> float:
    """Best logprob minus the second, which is the margin of the logits; NaN where fewer than two are told."""
    ranked = sorted(top.values(), reverse=True)
    return ranked[0] - ranked[1] if len(ranked) > 1 else float("nan")


def noise_of(pairs: Sequence[tuple[Followed, Sequence[float]]]) -> float | None:
    """The 99.9th percentile of the change of margins on steps that agree; None where too few are known.

    pairs: an arm's way along the right ids, and the margins of the right answer.
    """
    changes = []
    for followed, margins in pairs:
        wrong = {difference.step for difference in followed.differences}
        steps = zip(followed.tops, margins, strict=False)
        changes += [abs(margin_of(top) - margin) for step, (top, margin) in enumerate(steps) if step not in wrong]
    told = [change for change in changes if math.isfinite(change)]
    return float(np.percentile(told, NOISE_PERCENTILE)) if len(told) >= LEAST_STEPS else None


@dataclass(frozen=True)
class Apart:
    """How far the logprobs of two arms are apart, over the steps where both tell them.

    largest, median: of the difference of an id's logprob, of ids that both tell. kl: mean divergence of a step, over
    these ids and the rest together.
    """

    steps: int
    largest: float
    median: float
    kl: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def apart(pairs: Sequence[tuple[Top, Top]]) -> Apart | None:
    """Compare the best logprobs of steps, right ones first; None where nothing is told by both."""
    changes: list[float] = []
    divergences: list[float] = []
    for right, mine in pairs:
        shared = [token for token in right if token in mine]
        if not shared:
            continue
        p, q = (np.array([side[token] for token in shared]) for side in (right, mine))
        changes += np.abs(p - q).tolist()
        rest_p, rest_q = (max(1e-12, 1.0 - float(np.exp(side).sum())) for side in (p, q))
        divergences.append(float((np.exp(p) * (p - q)).sum()) + rest_p * math.log(rest_p / rest_q))
    if not changes:
        return None
    return Apart(len(divergences), max(changes), float(np.median(changes)), float(np.mean(divergences)))
