"""A run as plain values for JSON: groups, arms, ratios with intervals, verdicts and caveats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.measure.caveats import Caveat
from harness.measure.statistics import GroupSummary, Side, noise_of
from harness.measure.store import Results

SCHEMA = "plegate.bench/2"


def as_json(results: Results, summaries: Sequence[GroupSummary], found: Sequence[Caveat]) -> dict[str, Any]:
    """Everything that the summary says. Units: tokens_per_s, bytes and seconds as named; ratios without unit."""
    return {
        "schema": SCHEMA,
        "verdict": "changed" if results.changed else "invalid cells" if results.invalid else "measured",
        "model": results.plan.model,
        "machine": results.plan.machine,
        "device": next((cell["device"] for cell in results.valid.values() if cell.get("device")), None),
        "caveats": [asdict(caveat) for caveat in found],
        "timing": results.timing,
        "groups": [_group(results, summary) for summary in summaries],
    }


def _group(results: Results, summary: GroupSummary) -> dict[str, Any]:
    return {
        **asdict(summary.group),
        "unique_ratio": summary.unique_ratio,
        "noise": noise_of(summary.twin_ratio),
        "arms": [_side(results, side) for side in summary.sides.values()],
        "comparisons": [
            {
                "arm": comparison.arm,
                "baseline": comparison.baseline,
                "ratio": asdict(comparison.ratio) if comparison.ratio else None,
                "verdict": comparison.verdict,
                "why": comparison.why,
            }
            for comparison in summary.comparisons
        ],
    }


def _side(results: Results, side: Side) -> dict[str, Any]:
    return {
        "arm": side.arm,
        "ran": results.plan.arm(side.arm).ran or side.arm,
        "tokens_per_s": asdict(side.speed),
        "disk_bytes": side.middle("used", "disk_bytes"),
        "over_read": side.over_read,
        "gather_s": side.middle("gather", "wall_s"),
        "exposed_wait_s": side.middle("exposed_wait_s"),
        "effective_concurrency": side.middle("gather", "effective_concurrency"),
        "major_faults": side.middle("used", "major_faults"),
        "minor_faults": side.middle("used", "minor_faults"),
        "peak_rss_bytes": side.middle("memory", "peak_rss_bytes"),
        "anonymous_bytes": side.middle("memory", "anonymous_bytes"),
        "device_peak_bytes": side.middle("device", "peak_bytes"),
    }
