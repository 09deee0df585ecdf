"""The gate's result as JUnit XML: one test suite for each mode, one test for each level, as CI servers show them."""

from __future__ import annotations

from xml.etree import ElementTree as Tree

from harness.cases.case import LEVELS
from harness.gate.checks import CONTROL, GOLDEN, MODE, Finding
from harness.gate.report import repeat_command, summary
from harness.gate.verdicts import GateResult, ModeVerdict

_TESTS = (MODE, *LEVELS, CONTROL)


def gate_as_junit(result: GateResult) -> str:
    """XML text in the layout of `harness/schema/junit.xsd`. A level that was not run is skipped, with the reason."""
    root = Tree.Element("testsuites", name="plegate gate", time=f"{result.wall_s:.3f}")
    suites = [_suite("goldens", _about_goldens(result), 0.0)]
    suites += [_suite(mode.name, _about_mode(mode), mode.wall_s) for mode in result.modes]
    for count in ("tests", "failures", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    root.extend(suites)
    text = Tree.SubElement(suites[0], "system-out")
    text.text = _clean(f"{summary(result)}\nagain: {repeat_command(result)}")
    Tree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Tree.tostring(root, encoding="unicode") + "\n"


Outcome = tuple[str, list[Finding], str | None]
"""A test's name, what it found, and why it was skipped (None: it was run)."""


def _about_goldens(result: GateResult) -> list[Outcome]:
    """One test for each case's golden, one for everything else that no mode is the cause of."""
    outcomes: list[Outcome] = []
    for case in result.cases:
        mine = [finding for finding in result.golden_findings if finding.case == case.id]
        why = None if result.goldens else "nothing is recorded for prompts of one's own"
        outcomes.append((case.id, mine, None if mine else why))
    rest = [finding for finding in result.findings if finding.level != GOLDEN]
    return [*outcomes, ("unpacking", rest, None)]


def _about_mode(mode: ModeVerdict) -> list[Outcome]:
    compared = {level: mode.compared(level) for level in LEVELS} | {MODE: 1, CONTROL: mode.rows_compared}
    outcomes: list[Outcome] = []
    for level in _TESTS:
        mine = [finding for finding in mode.findings if finding.level == level]
        why = None
        if level == MODE and mode.notes:
            why = "; ".join(mode.notes)
        elif not compared[level]:
            why = "not compared: nothing is recorded, other modes run it, or they are compared with this one"
        outcomes.append((level, mine, None if mine else why))
    return outcomes


def _suite(name: str, outcomes: list[Outcome], wall_s: float) -> Tree.Element:
    suite = Tree.Element(
        "testsuite",
        name=_clean(name),
        tests=str(len(outcomes)),
        failures=str(sum(bool(found) for _, found, _ in outcomes)),
        errors="0",
        skipped=str(sum(why is not None for _, _, why in outcomes)),
        time=f"{wall_s:.3f}",
    )
    for test, found, why in outcomes:
        case = Tree.SubElement(suite, "testcase", classname=_clean(f"plegate.gate.{name}"), name=test, time="0.000")
        if found:
            failure = Tree.SubElement(case, "failure", type=found[0].check, message=_clean(found[0].story))
            failure.text = _clean("\n".join(f"{finding.check}: {finding.story}" for finding in found))
        elif why is not None:
            Tree.SubElement(case, "skipped", message=_clean(why))
    return suite


def _clean(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold, whatever a file name brings."""
    return "".join(
        c
        if c in "\t\n" or (ord(c) >= 32 and not 0xD800 <= ord(c) <= 0xDFFF and ord(c) not in (0xFFFE, 0xFFFF))
        else "?"
        for c in text
    )
