"""The diagnosis of judged arms: whose answers are not ours, and which known fault they follow."""

from __future__ import annotations

from pathlib import Path

from fast.rows import locate_table
from harness.diagnose.diagnosis import CLOSE, Diagnoser, Observed, Report
from harness.gate.arm_verdicts import ArmsResult, ArmVerdict, kind_of
from harness.gate.our_view import does_not_fit
from model_file.gguf_file import open_gguf

MOST_PROMPTS = 4  # of an arm; those that differ come first
NOISES = 4.0  # times the median difference of logprobs that another arm has to our own run is no sign of a fault


def diagnose_arms(path: Path, result: ArmsResult, budget_s: float, report: Report) -> None:
    """Where ids differ clearly, say of every arm that is not ours whether a known fault explains its answers."""
    suspects = [
        arm for arm in result.arms if kind_of(arm.arm) != "ours" and any(a.tokens for a in arm.answers.values())
    ]
    if not suspects or not any(arm.clear for arm in result.arms):
        return
    with open_gguf(path) as model:
        if (why := does_not_fit(model, locate_table(model))) is not None:
            result.notes.append(f"no known fault was looked for: {why}")
            return
        prompts = {prompt.name: prompt.ids for case in result.cases for prompt in case.prompts}
        room = max(len(prompts[name]) + len(a.tokens) for arm in suspects for name, a in arm.answers.items())
        medians = [arm.ours.median for arm in result.arms if arm.ours is not None and not arm.clear]
        with Diagnoser(model, room, max(CLOSE, NOISES * min(medians, default=0.0))) as diagnoser:
            for arm in suspects:
                found = diagnoser.diagnose(_observed(arm, prompts), budget_s / len(suspects), report)
                if not found.plain.all_ids:
                    arm.diagnosis = found.sentence()
                    if found.left_out:
                        arm.diagnosis += f"; {found.left_out} known faults were not tried"


def _observed(arm: ArmVerdict, prompts: dict[str, tuple[int, ...]]) -> list[Observed]:
    differing = {one.prompt for one in arm.differences}
    named = sorted(arm.answers.items(), key=lambda pair: pair[0] not in differing)
    return [
        Observed(prompts[name], tuple(answer.tokens), tuple(answer.top) if all(answer.top) and answer.top else None)
        for name, answer in named
        if answer.tokens
    ][:MOST_PROMPTS]
