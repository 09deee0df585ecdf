"""tests/README.md names tests that are there, and that `nox -s hostile` runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import HOSTILE

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`(?:((?:\w+/)*test_\w+\.py))?(?:::)?(test_\w+)?`")


def test_every_test_in_the_list_is_there_and_marked() -> None:
    """A test without a file stands in the file of its section's head, or of the line's first test."""
    found, head, last = 0, "", ""
    for line in (TESTS / "README.md").read_text().splitlines():
        named = NAMED.findall(line) if line.startswith(("|", "### ")) else ()
        if line.startswith("#"):
            head = last = named[0][0] if named else ""
        file = head or last
        for path, name in named:
            file = last = path or file
            found += 1
            source = (TESTS / file).read_text()
            assert not name or f"def {name}(" in source, line
            marked = file.startswith("hostile/") or f"{file}::{name}".startswith(HOSTILE) or "mark.hostile" in source
            marked |= "= pytest.mark.slow" in source  # oracles, for `nox -s slow` and `nox -s oracles`
            assert marked, f"{file}::{name} is no hostile test: {line}"
    assert found > 40
    for each in HOSTILE:
        path, _, name = each.partition("::")
        assert f"def {name}" in (TESTS / path).read_text(), each
