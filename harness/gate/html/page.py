"""One self-contained page of a run of the gate: verdicts with their controls, stories, counters, margins."""

from __future__ import annotations

import platform
from typing import Any

from harness.environment import environment
from harness.gate.checks import CHECKS
from harness.gate.html.plots import margin_panels, mode_panels
from harness.gate.report import LEVEL_COLUMNS, cell, described, repeat_command, summary
from harness.gate.verdicts import DIFFERENT, EQUAL, GateResult, MarginLine, ModeVerdict
from harness.pages.page import style, template


def gate_as_html(result: GateResult) -> str:
    """The whole page as HTML: no script, no font, no picture from elsewhere."""
    return template("gate.html.jinja", "harness.gate.html").render(
        style=style(),
        result=result,
        described=described(result),
        summary=summary(result),
        good=result.exit_code == 0,
        again=repeat_command(result) if result.exit_code == 1 else None,
        levels=LEVEL_COLUMNS,
        modes=[_mode(mode) for mode in result.modes],
        stories=_stories(result),
        counters=[_counters(mode) for mode in result.modes],
        evidence=[(mode.name, _evidence(mode)) for mode in result.modes if mode.evidence],
        margins=[_margins(line) for line in result.margins],
        mode_panels=mode_panels(result),
        margin_panels=margin_panels(result),
        checks=list(CHECKS.values()),
        machine=_machine(),
    )


def _mode(mode: ModeVerdict) -> dict[str, Any]:
    return {
        "name": mode.name,
        "cells": [cell(mode, level) for level in LEVEL_COLUMNS],
        "control": mode.control,
        "verdict": mode.verdict,
        "kind": {EQUAL: "faster", DIFFERENT: "slower"}.get(mode.verdict, "slower" if mode.controls else "dim"),
        "seconds": f"{mode.wall_s:.1f}",
        "note": "; ".join(mode.notes),
    }


def _stories(result: GateResult) -> list[dict[str, str]]:
    rows = [("any mode", finding) for finding in result.findings]
    rows += [(mode.name, finding) for mode in result.modes for finding in mode.ordered]
    return [
        {"mode": name, "level": finding.level, "check": finding.check, "story": finding.story} for name, finding in rows
    ]


def _counters(mode: ModeVerdict) -> dict[str, str]:
    """What the mode counted of itself, over all that it read in this run."""
    found = mode.counters
    rows = found.get("rows_requested") or 0
    device = found.get("bytes_device")
    return {
        "mode": mode.name,
        "effective": mode.effective,
        "batches": f"{found.get('batches', 0):,}",
        "rows": f"{rows:,}",
        "asked": _megabytes(found.get("bytes_asked")),
        "device": _megabytes(device),
        "calls": f"{found.get('read_calls', 0):,}",
        "minor": f"{found.get('minor_faults', 0):,}",
        "major": f"{found.get('major_faults', 0):,}",
        "plan_ms": _milliseconds(found.get("plan_s")),
        "read_ms": _milliseconds(found.get("read_s")),
        "copy_ms": _milliseconds(found.get("copy_s")),
        "row_us": f"{found['wall_s'] / rows * 1e6:.2f}" if rows and found.get("wall_s") else "",
    }


def _evidence(mode: ModeVerdict) -> str:
    assert mode.evidence is not None
    found = mode.evidence
    parts = [f"{found['rows']:,} different rows"]
    parts += [f"mapping with advice {name}" for name in found["mappings"]]
    parts += [f"{count} {name} descriptors" for name, count in found["descriptors"].items()]
    parts += [f"{found['rings']} rings"] if found["rings"] else []
    parts += [f"{found['read_calls']} read calls"]
    parts += [f"{count} {name}" for name, count in sorted(found["system_calls"].items())]
    parts += [f"{found['advised_pages']} of {found['pages']} pages advised"] if found["advised_pages"] else []
    return ", ".join(parts)


def _margins(line: MarginLine) -> dict[str, Any]:
    smallest = min(line.margins)
    return {
        "case": line.case,
        "prompt": line.prompt,
        "steps": len(line.margins),
        "smallest": f"{smallest:.4g}",
        "step": line.margins.index(smallest),
        "median": f"{sorted(line.margins)[len(line.margins) // 2]:.3g}",
        "needed": "" if line.needed is None else f"{line.needed:.3g}",
        "times": "" if not line.needed else f"{smallest / line.needed:.1f}",
    }


def _machine() -> list[tuple[str, str]]:
    facts = environment()
    commit = facts.get("commit")
    ram = facts.get("ram_bytes")
    return [
        ("processor", f"{facts.get('cpu') or platform.machine()}, {facts.get('cores')} cores"),
        ("memory", f"{ram / 2**30:.1f} GiB" if ram else "unknown"),
        ("kernel", f"{facts.get('system')} {facts.get('kernel')}"),
        ("python", str(facts.get("python"))),
        ("versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)),
        (
            "code",
            f"{commit[:12]}{', with changes in no commit' if facts.get('dirty') else ''}" if commit else "no checkout",
        ),
    ]


def _megabytes(size_bytes: float | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1e6:,.2f}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f}"
