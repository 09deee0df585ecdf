"""The only way in which a golden changes: a candidate is looked at, then moved, with a reason."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from harness.answers.record import MARGIN_FACTOR, Golden, dumps
from harness.answers.store import CHECKOUT, candidate_path, how_to_make, read_golden
from harness.atomic import write_text
from harness.cases.case import Case
from model_file.errors import InputError


def promote(
    case: str, reason: str, candidates: Path | None = None, checkout: Path = CHECKOUT, registered: Case | None = None
) -> Path:
    """Move the candidate of a case into the goldens; the candidate stays where it is.

    Raises: InputError without a reason, without a candidate, on a tree with uncommitted changes, for a margin below
    ten times the stated numeric error of logits, or for a candidate that does not answer the registered case.
    """
    if not reason.strip():
        raise InputError(
            "--reason: found nothing, expected why this answer is right and why it changes: it is kept in the golden"
        )
    source = candidate_path(case, candidates)
    candidate = read_golden(case, source.parent)
    if candidate is None:
        raise InputError(f"{source}: no such candidate; {how_to_make(case)}")
    if registered is not None:
        check_answers(candidate, registered, str(source))
    check_margins(candidate, str(source))
    check_clean(checkout)
    target = checkout / "goldens" / f"{case}.json"
    target.parent.mkdir(exist_ok=True)
    write_text(target, dumps(replace(candidate, reason=reason.strip())))
    return target


def check_answers(golden: Golden, case: Case, place: str) -> None:
    """Raises: InputError where the golden is of other prompts, or lacks tokens or margins."""
    found, expected = ({prompt.name: prompt.ids for prompt in of.prompts} for of in (golden, case))
    if list(found.items()) != list(expected.items()):
        raise InputError(
            f"{place}: has prompts {', '.join(found) or 'none'}; expected {', '.join(expected)} with their ids as "
            f"registered; {how_to_make(case.id)}"
        )
    for prompt in golden.prompts:
        if not len(prompt.generated) == len(prompt.margins) == case.generate:
            raise InputError(
                f"{place}: prompt {prompt.name} has {len(prompt.generated)} tokens and {len(prompt.margins)} margins, "
                f"expected {case.generate} of each; {how_to_make(case.id)}"
            )


def check_margins(golden: Golden, place: str) -> None:
    """Raises: InputError naming the prompt and the step of its smallest margin where rounding could turn the token."""
    for prompt in golden.prompts:
        margin, step = prompt.smallest_margin
        if not margin >= golden.needed_margin:
            raise InputError(
                f"{place}: prompt {prompt.name}, step {step}: found a margin of {margin:g}, expected at least "
                f"{golden.needed_margin:g} ({MARGIN_FACTOR} times the stated numeric error of "
                f"{golden.numeric_error['logits']:g}): another machine may rightly choose another token there; change "
                "the prompt, or its length, until every margin is large"
            )


def check_clean(checkout: Path) -> None:
    """Raises: InputError when the checkout has uncommitted changes, or is none: a golden belongs to a commit."""
    try:
        command = ["git", "-C", str(checkout), "status", "--porcelain"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{checkout}: not a checkout whose state can be told, expected one: {error}") from error
    if done.stdout.strip():
        changed = [line[3:] for line in done.stdout.splitlines()]
        shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        raise InputError(
            f"{checkout}: uncommitted changes in {shown}; expected a clean tree, so that the golden belongs to a "
            "commit: commit or remove them first"
        )
