"""What judging arms found, as one HTML page."""

from __future__ import annotations

from harness.environment import environment
from harness.gate.arm_verdicts import ArmsResult
from harness.pages import arms_text
from harness.pages.html import FACTS, machine_rows, page
from harness.pages.numbers import seconds
from harness.pages.tables import text_column


def arms_as_html(result: ArmsResult) -> str:
    """The whole page."""
    ran = [
        (
            arm.arm.name,
            "\n".join(
                [arm.command or arm.arm.label]
                + ([arm.facts.version, f"SHA-256 {arm.facts.sha256}"] if arm.facts else [])
            ),
        )
        for arm in result.arms
    ]
    return page(
        "arms.html.jinja",
        machine_rows(environment()),
        result=result,
        described=arms_text.described(result),
        summary=arms_text.summary(result),
        wall=seconds(result.wall_s),
        verdicts=(arms_text.COLUMNS, [arms_text.cells(arm) for arm in result.arms]),
        ran=(FACTS, ran),
        details=[(arm.arm.name, line) for arm in result.arms for line in arms_text.details(arm)],
        logs=[(arm.arm.name, arm.log) for arm in result.arms if arm.log],
        evidence=(
            (text_column("arm"), text_column("what the kernel saw", wrap=True)),
            [(arm.arm.name, arms_text.evidence(arm.evidence)) for arm in result.arms if arm.evidence],
        ),
    )
