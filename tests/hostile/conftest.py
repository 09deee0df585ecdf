"""What the hostile tests counted, printed at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

COUNTS: pytest.StashKey[Counter[str]] = pytest.StashKey()
Count = Callable[[str, int], None]


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Count:
    """count(what, number): added up over all tests, also over those that another process ran."""

    def add(what: str, number: int) -> None:
        record_property("hostile", (what, number))

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each thing that was counted, and one for each test that could not run here."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "hostile" and getattr(report, "when", "") == "call":
                    total[value[0]] += value[1]
    if total:
        terminalreporter.section("hostile")
        for what, number in sorted(total.items()):
            terminalreporter.line(f"{number:,} {what}")
