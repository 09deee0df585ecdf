"""A verdict of the trend as plain values for JSON."""

from __future__ import annotations

from typing import Any

from harness.measure.trend.compare import Verdict
from harness.measure.trend.runs import BenchRun
from harness.measure.trend.text import headline, notes

SCHEMA = "plegate.trend/1"


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Everything that the report says, and every cell. Units: seconds; factors above 1 are slower."""
    return {
        "schema": SCHEMA,
        "regressed": verdict.regressed,
        "headline": headline(verdict),
        "notes": notes(verdict),
        "machine": verdict.new.facts,
        "run": _run(verdict.new),
        "earlier": [_run(run) for run in verdict.earlier],
        "slower": [change.cell.name for change in verdict.slower],
        "faster": [change.cell.name for change in verdict.faster],
        "missing": verdict.missing,
        "added": verdict.added,
        "middle_factor": verdict.whole,
        "probes": verdict.probes,
        "cells": [
            {
                "cell": change.cell.name,
                **{name: change.cell.info[name] for name in ("mode", "state", "depth", "workload")},
                "before_s": change.before_s,
                "now_s": change.now_s,
                "factor": change.factor,
                "limit": change.limit,
                "p": change.p,
                "crept": change.crept,
                "compared_with": [run.path.name for run in change.runs],
            }
            for change in verdict.changes
        ],
    }


def _run(run: BenchRun) -> dict[str, Any]:
    return {"file": run.path.name, "commit": run.commit, "dirty": run.dirty, "when": run.when, "accepted": run.accepted}
