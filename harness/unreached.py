"""What of `fast/` no case of the gate reaches: every such line is reached, or listed with its reason.

`python -m harness.unreached REPORT.json`: the report of `coverage json` over `plegate gate`, branches included. A line
is known by its file and its text, so that a list stays right when lines move. Used by `nox -s coverage`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LISTED = ROOT / "harness" / "unreached.json"
SOMETIMES = "sometimes: "  # begins the reason of a line that the machine decides about: what is cached, who comes first


@dataclass(frozen=True)
class Unreached:
    """A line that never ran, or (`leads_to` set) one that never led to another."""

    file: str
    line: int
    text: str
    leads_to: str = ""

    @property
    def key(self) -> str:
        """How the list names it."""
        return f"{self.text} -> {self.leads_to}" if self.leads_to else self.text


def unreached(report: Mapping[str, Any], root: Path = ROOT) -> list[Unreached]:
    """Lines and branches that the report lacks; of a line that never ran its branches are not named beside."""
    found = []
    for name, covered in sorted(report["files"].items()):
        source = (root / name).read_text(encoding="utf-8").splitlines()
        missing = set(covered["missing_lines"])
        found += [Unreached(name, line, source[line - 1].strip()) for line in sorted(missing)]
        for start, end in covered.get("missing_branches", ()):
            if start not in missing and abs(end) not in missing:
                leads_to = source[end - 1].strip() if end > 0 else "leaves"
                found.append(Unreached(name, start, source[start - 1].strip(), leads_to))
    return found


Listed = Mapping[str, Mapping[str, list[str]]]
"""Of each file the reasons, and the lines that each holds for."""


def problems(found: list[Unreached], listed: Listed) -> list[str]:
    """What is unreached and not listed, listed and reached, or listed without a reason."""
    entries = [(file, key, why) for file, reasons in listed.items() for why, keys in reasons.items() for key in keys]
    known, reasoned = {(one.file, one.key) for one in found}, {(file, key) for file, key, _ in entries}
    lines = [f"{one.file}:{one.line}: {one.key}" for one in found if (one.file, one.key) not in reasoned]
    sometimes = {(file, key) for file, key, why in entries if why.startswith(SOMETIMES)}
    gone = sorted(reasoned - known - sometimes)
    lines += [f"{file}: {key}: is reached, or gone: take it off the list" for file, key in gone]
    return lines + [f"{file}: {key}: has no reason" for file, key, why in entries if not why.strip()]


def main(arguments: list[str]) -> int:
    """Print the figures and what is wrong; 1 where something is."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    listed = json.loads(LISTED.read_text(encoding="utf-8"))
    found, totals = unreached(report), report["totals"]
    wrong = problems(found, listed)
    print(f"lines {totals['covered_lines']} of {totals['num_statements']}, ", end="")
    print(
        f"branches {totals.get('covered_branches', 0)} of {totals.get('num_branches', 0)} of fast/ reached by the gate"
    )
    reasoned = sum(len(keys) for reasons in listed.values() for keys in reasons.values())
    print(f"{len(found)} unreached, {reasoned} texts of lines listed with a reason")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
