"""Results as JUnit XML, as CI servers read it (`harness/schema/junit.xsd`): suites of tests, each with its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.pages.tables import printable


@dataclass(frozen=True)
class Test:
    """One test. failure: a kind and what it found, line by line, None where it passed; skipped: why it was not run."""

    name: str
    failure: tuple[str, Sequence[str]] | None = None
    skipped: str | None = None


def as_junit(name: str, suites: Mapping[str, tuple[float, Sequence[Test]]], note: str) -> str:
    """XML text. suites: by name, the seconds they took and their tests; note: goes with the first test."""
    import junitparser
    from junitparser import Failure, Skipped, TestCase

    root: Any = junitparser.JUnitXml(name)
    for suite_name, (wall_s, tests) in suites.items():
        suite: Any = junitparser.TestSuite(printable(suite_name))
        for test in tests:
            case = TestCase(printable(test.name), classname=printable(f"{name}.{suite_name}".replace(" ", ".")), time=0)
            if test.failure is not None:
                kind, lines = test.failure
                found = Failure(printable(lines[0]), kind)
                found.text = "\n".join(map(printable, lines))
                case.result = [found]
            elif test.skipped is not None:
                case.result = [Skipped(printable(test.skipped))]
            if not len(root) and not len(suite):
                case.system_out = "\n".join(map(printable, note.split("\n")))
            suite.add_testcase(case)
        root.add_testsuite(suite)
        suite.update_statistics()
        suite.time = round(wall_s, 3)
    root.update_statistics()
    root.time = round(sum(wall_s for wall_s, _ in suites.values()), 3)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + root.tostring().decode("utf-8") + "\n"
